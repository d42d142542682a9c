package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// inParts copies every table of more than a megabyte in several transactions.
func inParts(o *apply.Options) { o.SplitLargerThan = 1 << 20 }

func (l *link) endpoints() operate.Endpoints {
	return operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}
}

func (l *link) refresh() {
	l.t.Helper()
	_, err := operate.Refresh(l.t.Context(), l.endpoints(), true)
	require.NoError(l.t, err)
}

// states waits until the tables are in these states, such as "ar bi".
func (l *link) states(want string) {
	l.t.Helper()
	pgtest.WaitFor(l.t, l.target, `SELECT string_agg(table_name || state::text, ' ' ORDER BY table_name) FROM pgapply.subscription_table`, want)
}

// tableError waits for an error of a table that contains the text.
func (l *link) tableError(table, text string) {
	l.t.Helper()
	pgtest.WaitFor(l.t, l.target, `SELECT strpos(coalesce(last_error, ''), $2) > 0 FROM pgapply.subscription_table WHERE table_name = $1`, "t", table, text)
}

// onlySlot proves that the publisher has no slot but the subscription's.
func (l *link) onlySlot() {
	l.t.Helper()
	pgtest.WaitFor(l.t, l.source, `SELECT string_agg(slot_name, ' ') FROM pg_replication_slots WHERE database = current_database()`, l.name)
}

// lateLink is a link that streams table a.
func lateLink(t *testing.T, change ...func(*apply.Options)) *link {
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY, v text)`)
	l.onSource(`INSERT INTO a VALUES (1, 'one')`, `CREATE PUBLICATION p FOR ALL TABLES`)
	l.start(append([]func(*apply.Options){copying}, change...)...)
	return l
}

// TestLateTablesThatFail: each table's trouble is its own, and over when it is mended.
func TestLateTablesThatFail(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY, v text)`)
	l.onSource(`INSERT INTO a VALUES (1, 'one')`, `CREATE PUBLICATION p FOR TABLE a`)
	l.start(copying, inParts)
	for _, name := range []string{"good", "narrow", "half", "twice"} {
		l.both(`CREATE TABLE ` + name + ` (id int PRIMARY KEY, v int, w text)`)
	}
	l.onSource(`CREATE TABLE lonely (id int)`, `INSERT INTO lonely VALUES (1)`,
		`INSERT INTO good SELECT g, g FROM generate_series(1, 100) g`,
		`INSERT INTO narrow SELECT g, g * 400 FROM generate_series(1, 100) g`,
		`INSERT INTO half SELECT g, g, repeat('x', 200) FROM generate_series(1, 20000) g`,
		`INSERT INTO twice VALUES (1, 1), (2, 2), (3, 1)`)
	// As natively, the stream stops at a change of a published table that the target lacks.
	l.catchUp()
	l.onSource(`ALTER PUBLICATION p ADD TABLE good, narrow, half, twice, lonely`)
	l.onTarget(`ALTER TABLE narrow ALTER v TYPE smallint`, `ALTER TABLE half ADD CHECK (v < 15000)`, `CREATE UNIQUE INDEX twice_v ON twice (v)`)
	l.refresh()
	l.tableError("narrow", `"public.narrow", line 82`)
	l.tableError("half", "public.half")
	l.tableError("twice", `"public.twice", line 3`)
	l.tableError("lonely", "public.lonely")
	pgtest.WaitFor(t, l.target, `SELECT state FROM pgapply.subscription_table WHERE table_name = 'good'`, "r")
	l.onSource(`UPDATE good SET v = 0 WHERE id < 50`, `INSERT INTO a VALUES (2, 'two')`, `DELETE FROM half WHERE id % 7 = 0`)
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.same(`SELECT * FROM good ORDER BY id`)
	require.Equal(t, "a good", pgtest.Query(t, l.target, `SELECT string_agg(table_name, ' ' ORDER BY table_name) FROM pgapply.subscription_table WHERE state = 'r'`))

	l.onTarget(`ALTER TABLE narrow ALTER v TYPE int`, `ALTER TABLE half DROP CONSTRAINT half_v_check`, `DROP INDEX twice_v`, `CREATE TABLE lonely (id int)`)
	l.stop() // so as not to wait for the back-off
	l.start(copying, inParts)
	l.states("ar goodr halfr lonelyr narrowr twicer")
	l.onSource(`UPDATE half SET v = 1 WHERE id = 15001`)
	l.catchUp()
	for _, name := range []string{"half", "narrow", "twice", "lonely"} {
		l.same(`SELECT * FROM ` + name + ` ORDER BY id`)
	}
	require.Equal(t, "", pgtest.Query(t, l.target, `SELECT string_agg(last_error, ' ') FROM pgapply.subscription_table`))
	l.onlySlot()
	l.stop()
	l.cleanedUp()
}

// behind lets the stream wait for a lock on the target, so that late tables are copied
// and have to wait for it, and returns what lets it go on.
func (l *link) behind() (release func()) {
	l.t.Helper()
	lock := session(l.t, l.target)
	lock(`BEGIN; LOCK TABLE a IN EXCLUSIVE MODE`)
	l.onSource(`UPDATE a SET v = 'held'`)
	l.awaitBlocked()
	return func() { l.t.Helper(); lock(`ROLLBACK`) }
}

// TestConflictWhileCatchingUp: a late table that does not take a change stops neither the
// stream nor the other tables that were copied with it.
func TestConflictWhileCatchingUp(t *testing.T) {
	t.Parallel()
	l := lateLink(t)
	for _, name := range []string{"x", "y"} {
		l.both(`CREATE TABLE ` + name + ` (id int PRIMARY KEY, v text)`)
		l.onSource(`INSERT INTO ` + name + ` VALUES (1, 'copied')`)
	}
	release := l.behind()
	l.refresh()
	l.states("ar xf yf")
	l.onTarget(`INSERT INTO x VALUES (2, 'a stranger')`)
	l.onSource(`INSERT INTO x VALUES (2, 'late')`, `INSERT INTO y VALUES (2, 'late')`)
	release()
	l.states("ar xr yr")
	l.onSource(`INSERT INTO x VALUES (3, 'after')`, `INSERT INTO y VALUES (3, 'after')`)
	l.catchUp()
	for _, name := range []string{"a", "x", "y"} {
		l.same(`SELECT * FROM ` + name + ` ORDER BY id`)
	}
	require.Equal(t, "insert_exists|public.x", pgtest.Query(t, l.target, `SELECT DISTINCT conflict_type, schemaname || '.' || relname FROM pgapply.conflict`))
	l.onlySlot()
}

// TestConflictOfTheOnlyLateTable: it keeps its rows and waits for somebody to mend it,
// also over a start, which does not wait for it.
func TestConflictOfTheOnlyLateTable(t *testing.T) {
	t.Parallel()
	l := lateLink(t)
	l.both(`CREATE TABLE x (id int PRIMARY KEY, v text)`)
	l.onSource(`INSERT INTO x VALUES (1, 'copied')`)
	release := l.behind()
	l.refresh()
	l.states("ar xf")
	l.onTarget(`INSERT INTO x VALUES (2, 'a stranger')`)
	l.onSource(`INSERT INTO x VALUES (2, 'late')`)
	release()
	l.tableError("x", "public.x")
	l.states("ar xf")
	l.stop()
	l.onSource(`INSERT INTO a VALUES (10, 'more')`)
	l.start(copying)
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.stop()
	err := l.run(copying, func(o *apply.Options) { o.OnError = "stop" })
	requireClass(t, apply.Conflict, err, "public.x", "conflict insert_exists")
	l.onTarget(`DELETE FROM x WHERE v = 'a stranger'`)
	l.start(copying)
	l.states("ar xr")
	l.catchUp()
	l.same(`SELECT * FROM x ORDER BY id`)
	l.onlySlot()
}

// TestSlotOfAnother: a slot that has the name of the copy's is left alone.
func TestSlotOfAnother(t *testing.T) {
	t.Parallel()
	l := lateLink(t)
	slot := l.name + "_sync"
	pgtest.Query(t, l.source, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	l.both(`CREATE TABLE x (id int PRIMARY KEY)`)
	l.onSource(`INSERT INTO x VALUES (1)`)
	l.refresh()
	l.onSource(`INSERT INTO a VALUES (2, 'goes on')`)
	l.catchUp()
	l.stop()
	l.start(copying)
	l.catchUp()
	require.Equal(t, "1", pgtest.Query(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, slot))
	l.states("ar xi")
	pgtest.Query(t, l.source, `SELECT pg_drop_replication_slot($1)`, slot)
	l.states("ar xr")
	l.same(`SELECT * FROM x ORDER BY id`)
	l.onlySlot()
}

// TestKilledWhileTheCopysSlotIsCreated: the publisher goes on making the slot, until an old
// transaction ends, and that does not hold up the stream.
func TestKilledWhileTheCopysSlotIsCreated(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY, v text)`, `CREATE TABLE x (id int PRIMARY KEY)`)
	l.onSource(`INSERT INTO a VALUES (1, 'one')`, `CREATE PUBLICATION p FOR TABLE a`)
	p := l.spawnCopy()
	l.streams(p)
	p.stop()
	l.onSource(`ALTER PUBLICATION p ADD TABLE x`, `INSERT INTO x VALUES (1)`)
	old := session(t, l.source)
	old(`BEGIN; INSERT INTO a VALUES (2, 'old')`)
	p = l.spawnCopy()
	waits := func() {
		t.Helper()
		pgtest.WaitFor(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, "1", l.name+"_sync")
	}
	waits()
	p.kill()
	p = l.spawnCopy()
	l.streams(p)
	l.onSource(`INSERT INTO a VALUES (3, 'meanwhile')`)
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM a WHERE id = 3`, "1")
	waits()
	p.stop() // also while it waits for that
	p = l.spawnCopy()
	waits()
	old(`COMMIT`)
	l.states("ar xr")
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.same(`SELECT * FROM x ORDER BY id`)
	l.onlySlot()
	p.stop()
	l.cleanedUp()
}

// TestCopyIntoRows: what becomes of the rows that the target has.
func TestCopyIntoRows(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE a (id int, v text)`, `CREATE TABLE b (id int, v text)`)
	l.onSource(`INSERT INTO a SELECT g, 'copied' FROM generate_series(1, 1000) g`, `INSERT INTO b VALUES (1, 'copied')`, `CREATE PUBLICATION p FOR TABLE a`)
	l.onTarget(`INSERT INTO a VALUES (0, 'own')`, `INSERT INTO b VALUES (0, 'own')`)
	requireClass(t, apply.Refused, l.run(copying), "public.a", "--if-not-empty append")
	requireClass(t, apply.Refused, l.run(copying, func(o *apply.Options) { o.IfNotEmpty = "truncate" }), "public.a", "--yes")
	require.Equal(t, "0", pgtest.Query(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`))

	// Killed in the middle, the rows come once beside the target's own.
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE a IN SHARE MODE`)
	p := l.spawnCopy("--if-not-empty", "append")
	l.copyBlocked()
	p.kill()
	lock(`ROLLBACK`)
	p = l.spawnCopy("--if-not-empty", "append")
	l.states("ar")
	l.catchUp()
	require.Equal(t, "1001|1001", pgtest.Query(t, l.target, `SELECT count(*), count(DISTINCT id) FROM a`))
	p.stop()

	// Later ones are refused one by one.
	l.onSource(`ALTER PUBLICATION p ADD TABLE b`)
	l.start(copying)
	l.tableError("b", "not empty")
	l.states("ar bi")
	l.onSource(`INSERT INTO a VALUES (2000, 'goes on')`)
	l.catchUp()
	require.Equal(t, "1002", pgtest.Query(t, l.target, `SELECT count(*) FROM a`))
	_, err := operate.Resync(t.Context(), l.endpoints(), []string{"b", "a"}, true)
	require.NoError(t, err)
	l.states("ar br")
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.same(`SELECT * FROM b ORDER BY id`)
	l.stop()
	l.cleanedUp()

	require.NoError(t, l.run(copying, func(o *apply.Options) { o.IfNotEmpty, o.Confirmed, o.EndAtCurrent = "truncate", true, true }))
	l.same(`SELECT * FROM a ORDER BY id`)
	l.same(`SELECT * FROM b ORDER BY id`)
}

// copyBlocked waits until a session that copies waits for a lock on the target.
func (l *link) copyBlocked() {
	l.t.Helper()
	pgtest.WaitFor(l.t, l.target, `SELECT count(*) > 0 FROM pg_stat_activity WHERE starts_with(application_name, $1) AND wait_event_type = 'Lock'`, "t", l.name+":copy")
}

// TestTablesGoneDuringTheCopy: one that is dropped on either end, and what is left of the
// others when the snapshot is lost.
func TestTablesGoneDuringTheCopy(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		l.both(`CREATE TABLE ` + name + ` (id int PRIMARY KEY)`)
		l.onSource(`INSERT INTO ` + name + ` SELECT generate_series(1, 100)`)
	}
	l.onSource(`CREATE PUBLICATION p FOR ALL TABLES`)
	one := func(o *apply.Options) { o.TableJobs = 1 }
	for _, late := range []bool{false, true} {
		lock := session(t, l.target)
		lock(`BEGIN; LOCK TABLE a IN SHARE MODE`)
		if late {
			_, err := operate.Resync(t.Context(), l.endpoints(), []string{"a", "b", "c", "d"}, true)
			require.NoError(t, err)
		} else {
			l.launch(l.options(copying, one))
		}
		l.copyBlocked()
		l.onSource(`DROP TABLE b`)
		l.onTarget(`DROP TABLE c`)
		if late {
			pgtest.Query(t, l.source, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1`, l.name+":sync")
		}
		lock(`ROLLBACK`)
		l.tableError("b", "published")
		l.tableError("c", "public.c")
		pgtest.WaitFor(t, l.target, `SELECT string_agg(table_name, ' ' ORDER BY table_name) FROM pgapply.subscription_table WHERE state = 'r'`, "a d")
		l.onTarget(`DROP TABLE b; CREATE TABLE b (id int PRIMARY KEY)`, `CREATE TABLE c (id int PRIMARY KEY)`)
		l.onSource(`CREATE TABLE b (id int PRIMARY KEY)`, `INSERT INTO b VALUES (1)`, `INSERT INTO d VALUES (1000 + `+fmt.Sprint(len(l.name))+`)`)
		l.refresh()
		l.states("ar br cr dr")
		l.catchUp()
		for _, name := range []string{"a", "b", "c", "d"} {
			l.same(`SELECT * FROM ` + name + ` ORDER BY id`)
		}
		l.onlySlot()
		l.onSource(`DELETE FROM d WHERE id >= 1000`)
	}
	l.stop()
	l.cleanedUp()
}

// TestStopCopy: asked to stop, pgapply ends in time whatever a copy waits for, and goes on
// at its next start.
func TestStopCopy(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	for _, name := range []string{"a", "x", "y"} {
		l.both(`CREATE TABLE ` + name + ` (id int PRIMARY KEY, v text)`)
		l.onSource(`INSERT INTO ` + name + ` SELECT g FROM generate_series(1, 1000) g`)
	}
	l.onSource(`CREATE PUBLICATION p FOR TABLE a`)
	stopsWhile := func(what, mode string, blocked string) {
		t.Helper()
		lock := session(t, l.target)
		lock(`BEGIN; LOCK TABLE ` + what + ` IN ` + mode + ` MODE`)
		p := l.spawnCopy()
		pgtest.WaitFor(t, l.target, `SELECT count(*) > 0 FROM pg_stat_activity WHERE starts_with(application_name, $1) AND wait_event_type = 'Lock'`, "t", l.name+blocked)
		asked := time.Now()
		p.stop()
		t.Logf("%s on %s: stopped after %s", mode, what, time.Since(asked).Round(time.Millisecond))
		lock(`ROLLBACK`)
	}
	stopsWhile("a", "SHARE", ":copy")
	p := l.spawnCopy()
	l.states("ar")
	p.stop()
	l.onSource(`ALTER PUBLICATION p ADD TABLE x, y`)
	stopsWhile("x", "SHARE", ":copy")
	stopsWhile("x", "ACCESS EXCLUSIVE", ":copy")

	// While the copied tables catch up.
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE a IN EXCLUSIVE MODE`)
	l.onSource(`UPDATE a SET v = 'held'`)
	p = l.spawnCopy()
	// Table y may have been copied when the stop came, and be ready by now.
	pgtest.WaitFor(t, l.target, `SELECT state FROM pgapply.subscription_table WHERE table_name = 'x'`, "f")
	l.onSource(`UPDATE x SET v = 'late'`)
	second := session(t, l.target)
	second(`BEGIN; LOCK TABLE x IN EXCLUSIVE MODE`)
	lock(`ROLLBACK`)
	pgtest.WaitFor(t, l.target, `SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'`, "t", l.name+":sync")
	asked := time.Now()
	p.stop()
	t.Logf("catching up: stopped after %s", time.Since(asked).Round(time.Millisecond))
	second(`ROLLBACK`)

	p = l.spawnCopy()
	l.states("ar xr yr")
	l.catchUp()
	for _, name := range []string{"a", "x", "y"} {
		l.same(`SELECT * FROM ` + name + ` ORDER BY id`)
	}
	l.onlySlot()
	p.stop()
	l.cleanedUp()
}
