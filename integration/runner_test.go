package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/pgtest"
)

// TestPauseOnError: --on-error pause disables the subscription, keeps lock and
// status, and goes on once somebody has enabled it again.
func TestPauseOnError(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE PUBLICATION p FOR TABLE t`)
	l.start(func(o *apply.Options) { o.OnError = "pause" })
	l.onSource(`INSERT INTO t VALUES (1)`)
	pgtest.WaitFor(t, l.target, `SELECT enabled, last_error LIKE '%public.t%', last_error_hint <> '' FROM pgapply.subscription`, "f|t|t")
	pgtest.WaitFor(t, l.target, `SELECT status ->> 'state', last_error LIKE '%public.t%' FROM pgapply.runner`, "paused|t")
	require.Equal(t, state.Paused, l.engine.Status().Phase)
	l.onTarget(`CREATE TABLE t (id int PRIMARY KEY)`, `UPDATE pgapply.subscription SET enabled = true`)
	pgtest.WaitFor(t, l.target, `SELECT id FROM t`, "1")
	pgtest.WaitFor(t, l.target, `SELECT last_error IS NULL FROM pgapply.subscription`, "t")
}

// TestControlSessionLost: with the control session goes the lock; the engine stops
// applying, takes it again and goes on.
func TestControlSessionLost(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	for i := range 3 {
		before := pgtest.Query(t, l.target, `SELECT pid FROM pg_stat_activity WHERE application_name = $1`, "pgapply:"+l.name+":control")
		require.NotEmpty(t, before)
		l.onTarget(`SELECT pg_terminate_backend(` + before + `)`)
		pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND pid <> $2`, "1", "pgapply:"+l.name+":control", before)
		l.onSource(`INSERT INTO t SELECT generate_series(1, 10) + (SELECT count(*) FROM t)`)
		l.catchUp()
		require.Equal(t, l.same(`SELECT count(*) FROM t`), pgtest.Query(t, l.target, `SELECT $1::int * 10`, i+1))
	}
	require.Equal(t, "1", pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.runner`))
	l.stop()
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.runner`), "an orderly end takes the runner row away")
}

// TestStatusWhileRetrying: who looks while the publisher is away sees why.
func TestStatusWhileRetrying(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE PUBLICATION p`)
	l.start()
	l.stop()
	l.launch(l.options(func(o *apply.Options) { o.Source += "&host=127.0.0.1&port=1" }))
	pgtest.WaitFor(t, l.target, `SELECT 1`, "1")
	l.failure("connect")
	require.Contains(t, []state.Phase{state.Starting, state.Retrying}, l.engine.Status().Phase)
}

// TestTargetLosesItsKey: a table that was recreated without its key, beside the
// engine's back, must not have more rows changed than the publisher's.
func TestTargetLosesItsKey(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 'a')`, `UPDATE t SET v = 'b'`)
	l.catchUp()
	l.onTarget(`ALTER TABLE t DROP CONSTRAINT t_pkey`, `INSERT INTO t VALUES (1, 'twin')`)
	l.onSource(`UPDATE t SET v = 'c'`)
	l.failure("neither REPLICA IDENTITY index nor PRIMARY KEY")
	require.Equal(t, "1|b\n1|twin", pgtest.Query(t, l.target, `SELECT * FROM t ORDER BY v`))
	l.onTarget(`DELETE FROM t WHERE v = 'twin'`, `ALTER TABLE t ADD PRIMARY KEY (id)`)
	l.catchUp()
	l.same(`SELECT * FROM t`)
}
