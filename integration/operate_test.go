package integration

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

// store opens the subscription's state beside the running engine, as the verbs do.
func (l *link) store() *state.Store {
	l.t.Helper()
	conn, err := pgx.Connect(l.t.Context(), l.target)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { _ = conn.Close(l.t.Context()) })
	store, err := state.OpenExisting(l.t.Context(), conn, l.name)
	require.NoError(l.t, err)
	return store
}

// TestPauseAndResume: a running engine stops at a transaction's end, keeps its lock,
// and goes on.
func TestPauseAndResume(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	store := l.store()
	_, err := store.Pause(t.Context(), "maintenance")
	require.NoError(t, err)
	pgtest.WaitFor(t, l.target, `SELECT status ->> 'state' FROM pgapply.runner`, "paused")
	pgtest.WaitFor(t, l.source, `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, "f", l.name)
	l.onSource(`INSERT INTO t VALUES (1)`)
	_, err = store.Resume(t.Context())
	require.NoError(t, err)
	pgtest.WaitFor(t, l.target, `SELECT id FROM t`, "1")
}

// TestSkip: exactly the transaction that ends at the position is left out, and all
// of its changes are kept.
func TestSkip(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE bad (id int PRIMARY KEY, v text, n numeric)`)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t, bad`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`,
		`BEGIN; INSERT INTO t VALUES (2); INSERT INTO bad VALUES (1, 'it''s "odd" \ ü', 1.50), (2, NULL, NULL); UPDATE bad SET id = 3 WHERE id = 1; DELETE FROM bad WHERE id = 2; TRUNCATE bad; COMMIT`,
		`INSERT INTO t VALUES (3)`)
	l.failure("public.bad", "does not exist")
	store := l.store()
	position, err := lsn.Parse(finishedAt(t, l.engine.Status().LastError))
	require.NoError(t, err)
	_, err = store.SetSkip(t.Context(), position)
	require.NoError(t, err)
	l.catchUp()
	require.Equal(t, "1\n3", pgtest.Query(t, l.target, `SELECT * FROM t ORDER BY id`))
	require.Equal(t, `t|INSERT||{"id": "2"}
bad|INSERT||{"n": "1.50", "v": "it's \"odd\" \\ ü", "id": "1"}
bad|INSERT||{"n": null, "v": null, "id": "2"}
bad|UPDATE|{"n": null, "v": null, "id": "1"}|{"n": "1.50", "v": "it's \"odd\" \\ ü", "id": "3"}
bad|DELETE|{"n": null, "v": null, "id": "2"}|
bad|TRUNCATE||`, pgtest.Query(t, l.target, `SELECT relname, operation, replica_identity, remote_tuple FROM pgapply.conflict WHERE resolution = 'skipped_transaction' ORDER BY id`))
	pgtest.WaitFor(t, l.target, `SELECT skip_lsn IS NULL FROM pgapply.subscription`, "t")
	require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT bool_and(remote_commit_lsn = $1::pg_lsn) FROM pgapply.conflict`, position.String()))
}

// TestSkipOfNothing: a position that is passed without a transaction ending there is
// forgotten, and everything is applied.
func TestSkipOfNothing(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.stop()
	position, err := lsn.Parse(pgtest.Query(t, l.source, `SELECT pg_current_wal_insert_lsn() + 5`))
	require.NoError(t, err)
	_, err = l.store().SetSkip(t.Context(), position)
	require.NoError(t, err)
	l.onSource(`INSERT INTO t VALUES (1)`, `INSERT INTO t VALUES (2)`)
	l.start()
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
	pgtest.WaitFor(t, l.target, `SELECT skip_lsn IS NULL FROM pgapply.subscription`, "t")
}

// TestMissingTableSkip: with --missing-table skip a table that the target does not
// have is passed over, in all kinds of changes.
func TestMissingTableSkip(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE TABLE absent (id int PRIMARY KEY)`, `CREATE PUBLICATION p FOR TABLE t, absent`)
	l.start(func(o *apply.Options) { o.MissingTable = "skip" })
	l.onSource(`BEGIN; INSERT INTO absent VALUES (1), (2); INSERT INTO t VALUES (1); UPDATE absent SET id = 3 WHERE id = 1; COMMIT`, `TRUNCATE absent, t`, `INSERT INTO t VALUES (2)`)
	l.catchUp()
	l.same(`SELECT * FROM t`)
	// From the moment that it exists it takes part.
	l.onTarget(`CREATE TABLE absent (id int PRIMARY KEY)`)
	l.onSource(`INSERT INTO absent VALUES (7)`, `INSERT INTO absent VALUES (8)`)
	l.catchUp()
	require.Equal(t, "7\n8", pgtest.Query(t, l.target, `SELECT * FROM absent ORDER BY id`))
}

// TestLogicalMessages: those of transactions commit with them, in order; others come
// at once; none is kept twice.
func TestLogicalMessages(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start(func(o *apply.Options) { o.Messages = "table" })
	l.onSource(`BEGIN; SELECT pg_logical_emit_message(true, 'a', 'one'); INSERT INTO t VALUES (1); SELECT pg_logical_emit_message(true, '', E'\\x00ff'::bytea); COMMIT`,
		`BEGIN; SELECT pg_logical_emit_message(false, 'now', 'two'); SELECT pg_logical_emit_message(true, 'gone', 'x'); ROLLBACK`,
		`BEGIN; SELECT pg_logical_emit_message(true, 'alone', 'three'); COMMIT`)
	l.catchUp()
	require.Equal(t, `a|\x6f6e65|t|t
|\x00ff|t|t
now|\x74776f|f|f
alone|\x7468726565|t|t`, pgtest.Query(t, l.target, `SELECT prefix, content, transactional, remote_xid IS NOT NULL FROM pgapply.message ORDER BY remote_lsn`))
	l.same(`SELECT * FROM t`)
	l.stop()
	l.start(func(o *apply.Options) { o.Messages = "count" })
	l.onSource(`SELECT pg_logical_emit_message(true, 'b', 'four')`)
	l.catchUp()
	require.Equal(t, "4", pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.message`))
}
