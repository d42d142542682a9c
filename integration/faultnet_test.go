package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// The fault proxy rests on how a server behaves: these prove it on a real one.

func TestFaultProxyDecidesWhatBecomesOfACommit(t *testing.T) {
	for _, test := range []struct {
		name      string
		cut       func(p *faultnet.Proxy, n int) *faultnet.Fault
		committed string // rows of both transactions
	}{
		{"before", (*faultnet.Proxy).CutBeforeCommit, "1"},
		{"after", (*faultnet.Proxy).CutAfterCommit, "2"},
		{"reply", (*faultnet.Proxy).CutCommitReply, "2"},
	} {
		for name, send := range map[string]func(*testing.T, *pgconn.PgConn) error{"simple": insertSimply, "pipeline": insertInPipeline} {
			t.Run(test.name+" "+name, func(t *testing.T) {
				uri := pgtest.Database(t, pgtest.SharedServer(t))
				pgtest.Exec(t, uri, "CREATE TABLE t (a int)")
				proxy, through, err := faultnet.ListenURI(uri)
				require.NoError(t, err)
				t.Cleanup(proxy.Close)
				fault := test.cut(proxy, 2)
				conn := dial(t, through)
				require.NoError(t, send(t, conn))
				require.Error(t, send(t, conn))
				<-fault.Fired()
				// A server that was cut off works on until it is done.
				pgtest.WaitFor(t, uri, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()", "0")
				require.Equal(t, test.committed, pgtest.Query(t, uri, "SELECT count(*) FROM t"))
			})
		}
	}
}

func TestFaultProxyCountsOnlyCommitsThatAreAnswered(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, "CREATE TABLE t (a int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
	proxy, through, err := faultnet.ListenURI(uri)
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	fault := proxy.CutCommitReply(1)
	conn := dial(t, through)
	require.ErrorContains(t, insertInPipeline(t, conn), "t_pkey", "the commit behind an error is skipped")
	require.NoError(t, conn.Exec(t.Context(), "ROLLBACK; DELETE FROM t").Close())
	require.Error(t, insertInPipeline(t, conn))
	<-fault.Fired()
	require.Equal(t, "1", pgtest.Query(t, uri, "SELECT count(*) FROM t"))
}

func insertSimply(t *testing.T, conn *pgconn.PgConn) error {
	return conn.Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (1); COMMIT").Close()
}

func insertInPipeline(t *testing.T, conn *pgconn.PgConn) error {
	pipeline := conn.StartPipeline(t.Context())
	for _, sql := range []string{"BEGIN", "INSERT INTO t VALUES (1)", "COMMIT"} {
		pipeline.SendQueryParams(sql, nil, nil, nil, nil)
	}
	if err := pipeline.Sync(); err != nil {
		return err
	}
	return pipeline.Close()
}

func dial(t *testing.T, uri string) *pgconn.PgConn {
	conn, err := pgconn.Connect(t.Context(), uri)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn.Close(ctx)
		<-conn.CleanupDone()
	})
	return conn
}
