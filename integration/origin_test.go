package integration

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
	"pgapply/origin"
)

// plain is a connection as package origin wants it.
type plain struct{ *pgconn.PgConn }

func (p plain) Query(sql string, parameters ...string) ([][][]byte, error) {
	values := make([][]byte, len(parameters))
	for i, parameter := range parameters {
		values[i] = []byte(parameter)
	}
	result := p.ExecParams(context.Background(), sql, values, nil, nil, nil).Read()
	return result.Rows, result.Err
}

// TestResumePointIsDurable: what a start takes as the point to resume at, and so
// tells the publisher to forget, survives a crash of the target.
func TestResumePointIsDurable(t *testing.T) {
	t.Parallel()
	t.Run("in an origin", func(t *testing.T) {
		resumePointIsDurable(t, func(t *testing.T, writer plain) {
			_, err := writer.Query(`SELECT pg_catalog.pg_replication_origin_create($1)`, "o")
			require.NoError(t, err)
			require.NoError(t, origin.Acquire(writer, "o"))
		}, func(reader plain) (lsn.LSN, error) { return origin.Resume(reader, "o", "s", 0) },
			origin.RecordStampSQL, "0/1234", "s", "2024-01-01 00:00:00+00")
	})
	t.Run("in the table", func(t *testing.T) {
		resumePointIsDurable(t, func(*testing.T, plain) {},
			func(reader plain) (lsn.LSN, error) { return origin.ResumeRecorded(reader, "s", 1) },
			origin.RecordSQL, "0/1234", "s")
	})
}

func resumePointIsDurable(t *testing.T, prepare func(*testing.T, plain), resume func(plain) (lsn.LSN, error), record string, parameters ...string) {
	target := pgtest.Start(t, pgtest.Durable(), pgtest.With("wal_writer_delay", "10s"), pgtest.With("wal_writer_flush_after", "64MB"))
	uri := pgtest.Database(t, target)
	connect := func() plain {
		conn, err := pgconn.Connect(t.Context(), uri)
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = conn.Close(context.Background())
			<-conn.CleanupDone()
		})
		return plain{conn}
	}
	writer := connect()
	pgtest.Exec(t, uri, `CREATE SCHEMA pgapply CREATE TABLE progress (subscription text, position pg_lsn, gid text)`)
	prepare(t, writer)
	for _, sql := range []string{`SET synchronous_commit = off`, `BEGIN`} {
		_, err := writer.Query(sql)
		require.NoError(t, err)
	}
	_, err := writer.Query(record, parameters...)
	require.NoError(t, err)
	_, err = writer.Query(`COMMIT`)
	require.NoError(t, err)
	read := func() string {
		reader := connect()
		_, err := reader.Query(`SET synchronous_commit = off`)
		require.NoError(t, err)
		progress, err := resume(reader)
		require.NoError(t, err)
		return progress.String()
	}
	require.Equal(t, "0/1234", read())
	require.NoError(t, target.Kill())
	require.NoError(t, target.Restart(t.Context()))
	require.Equal(t, "0/1234", read())
}
