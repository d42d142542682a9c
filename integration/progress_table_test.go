package integration

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/pgtest"
)

// Without replication origins, as a role that may not use them: the position in the table
// and the fence alone must keep each change from being lost or repeated.

// inTable gives the link such a role.
func (l *link) inTable() (administrator *link) {
	l.t.Helper()
	administrator = l.plainRole()
	administrator.initialize()
	administrator.withoutOrigins(l.role())
	l.flags = []string{"--progress", "table"}
	return administrator
}

func TestKillPgapplyInTable(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	l.inTable()
	l.killPgapply(4)
}

func TestKillTargetInTable(t *testing.T) {
	t.Parallel()
	l, target := crashing(t)
	l.inTable()
	l.killTarget(target, 2)
}

// TestFrozenRunner: a runner that is frozen while another takes over, and then goes on, has
// nothing left to write with, in the middle of whatever it was.
func TestFrozenRunner(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	administrator := l.inTable()
	w := l.startLoad(4)
	frozen := l.spawn()
	l.streams(frozen)
	for range crashes(t, 1) {
		w.issue(100)
		l.awaitSome(w)
		require.NoError(t, frozen.command.Process.Signal(syscall.SIGSTOP))
		second := l.spawn()
		second.says("waiting: ")
		require.NotContains(t, second.stderr.String(), "streaming")
		// Nobody but the server can tell that the first one is not coming back. It is told
		// about the one session that holds the lock: those that write are the fence's to end.
		administrator.onTarget(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgapply:` + l.name + `:control'`)
		pgtest.WaitFor(t, l.source, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_replication WHERE application_name = $1`, "1", l.name)
		second.says(`"streaming"`)
		w.issue(50)
		require.NoError(t, frozen.command.Process.Signal(syscall.SIGCONT))
		frozen.says("waiting: subscription")
		l.awaitSome(w)
		frozen.kill()
		frozen = second
	}
	w.finish()
	l.catchUp()
	l.sameLoad()
	frozen.stop()
}

// TestProgressMoves: from the table into origins once they are granted, which a start
// takes up, and never the other way by itself. Rows of the time in the table are not
// mistaken for somebody else's.
func TestProgressMoves(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	administrator := l.inTable()
	refusals := []struct {
		text   string
		change func(*apply.Options)
	}{
		{"--progress origin needs: it lacks EXECUTE on function pg_catalog.pg_replication_origin_advance(text,pg_lsn)", func(o *apply.Options) { o.Progress = "origin" }},
		{"last_update_wins", onConflict("update_origin_differs=last_update_wins")},
		{"--origin none", func(o *apply.Options) { o.Origin = "none" }},
	}
	for _, refusal := range refusals {
		requireClass(t, apply.Refused, l.run(refusal.change), refusal.text, "pgapply init")
	}
	// An earlier subscription of the name has left this, far ahead.
	oid := pgtest.Query(t, administrator.target, `SELECT oid FROM pg_database WHERE datname = current_database()`)
	for _, name := range []string{"_0", "_copy0"} {
		administrator.onTarget(`SELECT pg_replication_origin_create('pgapply_` + l.name + `_` + oid + name + `')`)
		administrator.onTarget(`SELECT pg_replication_origin_advance('pgapply_` + l.name + `_` + oid + name + `', 'FF/0')`)
	}
	l.start() // auto
	require.Equal(t, state.InTable, l.engine.Status().Stream.Progress)
	l.onSource(`INSERT INTO t SELECT g, 'table' FROM generate_series(1, 100) g`)
	l.catchUp()
	l.stop()

	administrator.initialize()
	l.start()
	require.Equal(t, "0", pgtest.Query(t, administrator.target, `SELECT count(*) FROM pg_replication_origin_status WHERE remote_lsn >= 'FF/0'`))
	require.Equal(t, state.InOrigins, l.engine.Status().Stream.Progress)
	administrator.onTarget(`UPDATE t SET v = 'local' WHERE id = 1`)
	l.onSource(`UPDATE t SET v = 'origin'`, `UPDATE t SET v = 'again'`)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
	require.Equal(t, "update_origin_differs|1", pgtest.Query(t, l.target, `SELECT conflict_type, replica_identity ->> 'id' FROM pgapply.conflict`))
	l.stop()

	administrator.withoutOrigins(l.role())
	requireClass(t, apply.Refused, l.run(), "keeps its progress in replication origins", "may not use them any more", "--progress table")
	l.start(func(o *apply.Options) { o.Progress = "table" })
	l.onSource(`DELETE FROM t WHERE id > 50`)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
	l.stop()
	administrator.initialize()
	l.start()
	l.onSource(`UPDATE t SET v = 'end'`)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
	require.Equal(t, "1", pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.conflict`))
	l.stop()
}
