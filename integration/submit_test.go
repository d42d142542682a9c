package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// The tests in this file say what becomes of a group whose changes were sent behind the
// COMMIT of the one before.

// TestCutBehindACommit: the connection breaks around a COMMIT behind which the next group
// is on its way, or will be.
func TestCutBehindACommit(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, n int)`, `INSERT INTO t SELECT g, 0 FROM generate_series(1, 30) g`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	proxy, through := l.proxied()
	var workload []string
	for range 30 {
		workload = append(workload, `UPDATE t SET n = n + 1 WHERE id = 1`, `UPDATE t SET n = (2 * n + 1) % 1009 WHERE id = 2`, `UPDATE t SET n = n + 1 WHERE id > 10`)
	}
	for _, workers := range []int{1, 4} {
		for _, cut := range []func(int) *faultnet.Fault{proxy.CutBeforeCommit, proxy.CutAfterCommit, proxy.CutCommitReply} {
			for _, n := range []int{2, 5} {
				l.backlog(workload...)
				blocker := pgtest.Open(t, l.target)
				blocker.Exec(`BEGIN`, `SELECT FROM t WHERE id = 1 FOR UPDATE`)
				l.start(through, sized(6, workers))
				l.blocked(1)
				l.received()
				fault := cut(n)
				blocker.Exec(`ROLLBACK`)
				<-fault.Fired()
				l.awaitRetries(1)
				l.catchUp()
				l.sameTables("t")
				require.Zero(t, l.engine.Status().Misses)
			}
		}
	}
}

// committing has the COMMIT of a group take until it is let go of, with others behind it.
func (l *link) committing(workers int) (letGo func()) {
	l.t.Helper()
	l.both(`CREATE TABLE t (id int PRIMARY KEY, n int)`, `INSERT INTO t SELECT g, 0 FROM generate_series(1, 5) g`, `CREATE TABLE slow (id int PRIMARY KEY)`)
	l.onTarget(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END'`,
		`CREATE CONSTRAINT TRIGGER w AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`,
		`ALTER TABLE slow ENABLE ALWAYS TRIGGER w`)
	l.onSource(`CREATE PUBLICATION p FOR ALL TABLES`)
	l.start(sized(1, workers))
	l.onSource(`UPDATE t SET n = 1 WHERE id = 1`)
	l.catchUp()
	row, commit := pgtest.Open(l.t, l.target), pgtest.Open(l.t, l.target)
	row.Exec(`BEGIN`, `SELECT FROM t WHERE id = 1 FOR UPDATE`)
	commit.Exec(`SELECT pg_advisory_lock(7)`)
	l.onSource(`UPDATE t SET n = 2 WHERE id = 1`)
	l.blocked(1)
	l.onSource(`INSERT INTO slow VALUES (1)`, `UPDATE t SET n = n + 1 WHERE id = 2`, `UPDATE t SET n = n + 1 WHERE id = 2`,
		`INSERT INTO slow VALUES (2)`, `UPDATE t SET n = n + 1 WHERE id = 2`)
	l.received()
	row.Exec(`ROLLBACK`)
	pgtest.WaitFor(l.t, l.target, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = 7 AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, "1")
	return func() { commit.Exec(`SELECT pg_advisory_unlock(7)`) }
}

// TestStopBehindACommit: the engine ends while a group's COMMIT is on its way. That group is
// done, perhaps the one that was sent behind it, and nothing else.
func TestStopBehindACommit(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 4} {
		l := newLink(t)
		letGo := l.committing(workers)
		l.cancel()
		letGo()
		require.NoError(t, l.wait())
		require.Equal(t, "1", pgtest.Query(t, l.target, `SELECT count(*) FROM slow`))
		require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT n <= 1 FROM t WHERE id = 2`))
		l.start(sized(1, workers))
		l.catchUp()
		l.sameTables("t", "slow")
		require.Zero(t, l.engine.Status().Misses)
	}
}

// TestPauseBehindACommit: the same with a pause.
func TestPauseBehindACommit(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	letGo := l.committing(1)
	l.onTarget(`UPDATE pgapply.subscription SET enabled = false`)
	letGo()
	pgtest.WaitFor(t, l.source, `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, "f", l.name)
	l.onTarget(`UPDATE pgapply.subscription SET enabled = true`)
	l.catchUp()
	l.sameTables("t", "slow")
	require.Zero(t, l.engine.Status().Misses)
}

// TestBackendLostBehindACommit: the target ends the session in the middle of a COMMIT.
func TestBackendLostBehindACommit(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	letGo := l.committing(4)
	pgtest.Exec(t, l.target, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ ':w0'`)
	letGo()
	l.awaitRetries(1)
	l.catchUp()
	l.sameTables("t", "slow")
	require.Zero(t, l.engine.Status().Misses)
}
