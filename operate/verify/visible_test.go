package verify

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// TestWhatIsNotVisibleYet: a row that the target has already, since the publisher has sent
// it, whereas the publisher itself still waits for a standby before it shows it.
func TestWhatIsNotVisibleYet(t *testing.T) {
	publisher := pgtest.Start(t)
	p := newPair(t, publisher, pgtest.SharedServer(t))
	p.options.Follow = follower(upToDate)
	p.both(`CREATE TABLE t (id int PRIMARY KEY, v int)`, `INSERT INTO t SELECT g, g FROM generate_series(1, 100) g`)
	p.onSource(publish, `ALTER SYSTEM SET synchronous_standby_names = 'nobody'`, `SELECT pg_reload_conf()`)
	pgtest.WaitFor(t, p.source, `SELECT current_setting('synchronous_standby_names')`, "nobody")
	const change = `UPDATE t SET v = 0 WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (200, 0)`
	writer, err := pgx.Connect(t.Context(), p.source)
	require.NoError(t, err)
	written := make(chan error, 1)
	go func() {
		_, err := writer.Exec(t.Context(), change)
		written <- err
	}()
	pgtest.WaitFor(t, p.source, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`, "1")
	p.onTarget(change)
	looked := make(chan []string, 1)
	go func() { looked <- p.found("t") }()
	pgtest.WaitFor(t, p.source, `SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'verify' AND query LIKE '%virtualtransaction%'`, "t")
	p.onSource(`ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
	require.NoError(t, <-written)
	require.Empty(t, <-looked)
	require.NoError(t, writer.Close(t.Context()))
}
