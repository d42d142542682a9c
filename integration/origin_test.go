package integration

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

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
	_, err := origin.Ensure(writer, "o")
	require.NoError(t, err)
	require.NoError(t, origin.Acquire(writer, "o"))
	for _, sql := range []string{`SET synchronous_commit = off`, `BEGIN`} {
		_, err := writer.Query(sql)
		require.NoError(t, err)
	}
	_, err = writer.Query(origin.RecordSQL, "0/1234", "2024-01-01 00:00:00+00", "s")
	require.NoError(t, err)
	_, err = writer.Query(`COMMIT`)
	require.NoError(t, err)
	read := func() string {
		progress, err := origin.Resume(connect(), "o", "s", 0)
		require.NoError(t, err)
		return progress.String()
	}
	require.Equal(t, "0/1234", read())
	require.NoError(t, target.Kill())
	require.NoError(t, target.Restart(t.Context()))
	require.Equal(t, "0/1234", read())
}
