package integration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// TestCopyBetweenPreparedTransactions: what is prepared before, during and after the copy
// of a late table reaches it once, or not at all where it is rolled back.
func TestCopyBetweenPreparedTransactions(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		t.Run(strings.ToLower(end), func(t *testing.T) {
			_, target := pgtest.Shared(t)
			publisher := pgtest.Start(t, pgtest.OnMajor(max(15, pgtest.Major(t)))) // what others prepare holds up a slot
			l := linkOf(t, publisher, target)
			l.both(`CREATE TABLE a (id int PRIMARY KEY, v text)`, `CREATE TABLE x (id int, v text)`)
			l.onSource(`INSERT INTO x VALUES (0, 'before')`, `CREATE PUBLICATION p FOR TABLE a`)
			l.start(copying, twoPhase)
			prepare := func(name, id string) {
				t.Helper()
				l.onSource(`BEGIN; INSERT INTO a VALUES (` + id + `, '` + name + `'); INSERT INTO x VALUES (` + id + `, '` + name + `'); PREPARE TRANSACTION '` + name + `'`)
			}
			decide := func(name string) { t.Helper(); l.onSource(end + ` PREPARED '` + name + `'`) }

			// Before the slot, which waits for its end.
			prepare("first", "1")
			pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`, "1")
			l.onSource(`ALTER PUBLICATION p ADD TABLE x`)
			l.refresh()
			pgtest.WaitFor(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, "1", l.name+"_sync")
			// The stream waits, so that what follows is between slot and hand-over.
			lock := session(t, l.target)
			lock(`BEGIN; LOCK TABLE x IN SHARE MODE`)
			decide("first")
			l.copyBlocked()
			prepare("second", "2")
			pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`, "1")
			lock(`ROLLBACK`)
			l.states("ar xs")
			l.tableError("x", "waits for prepared transaction")
			prepare("third", "3")
			pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`, "2")
			// A start in between waits with the hand-over too.
			l.stop()
			l.start(copying, twoPhase)
			l.onSource(`INSERT INTO a VALUES (10, 'meanwhile')`, `INSERT INTO x VALUES (10, 'meanwhile')`)
			pgtest.WaitFor(t, l.target, `SELECT count(*) FROM x WHERE id = 10`, "1")
			l.states("ar xs")
			decide("second")
			prepare("fourth", "4")
			decide("third")
			decide("fourth")
			l.states("ar xr")
			prepare("fifth", "5")
			decide("fifth")
			l.settledTables("a", "x")
			l.onlySlot()

			// Copied again, while one that has rows of it is prepared on the target, and
			// removes them by DELETE.
			l.both(`CREATE TABLE child (id int PRIMARY KEY, a int REFERENCES a)`)
			prepare("sixth", "6")
			pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`, "1")
			_, err := operate.Resync(t.Context(), l.endpoints(), []string{"a", "x"}, true)
			require.NoError(t, err)
			pgtest.WaitFor(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, "1", l.name+"_sync")
			decide("sixth")
			l.states("ar xr")
			l.settledTables("a", "x")

			// Committed by hand on the target, before the publisher says so.
			l.both(`CREATE TABLE late (id int)`)
			l.onSource(`INSERT INTO late VALUES (1)`, `ALTER PUBLICATION p ADD TABLE late`)
			lock(`BEGIN; LOCK TABLE late IN SHARE MODE`)
			l.refresh()
			l.copyBlocked()
			l.onSource(`BEGIN; INSERT INTO a VALUES (7, 'seventh'); INSERT INTO late VALUES (7); PREPARE TRANSACTION 'seventh'`)
			pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`, "1")
			gid := pgtest.Query(t, l.target, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`)
			l.onTarget(`COMMIT PREPARED '` + gid + `'`)
			lock(`ROLLBACK`)
			l.states("ar lates xr")
			l.onSource(`COMMIT PREPARED 'seventh'`)
			l.states("ar later xr")
			l.settledTables("a", "late", "x")
			l.stop()
			l.cleanedUp()
		})
	}
}

// TestPreparedTransactionsThatDoNotMeetTheCopy: a late table waits for no transaction that
// is prepared without having changed it, so that there may always be one.
func TestPreparedTransactionsThatDoNotMeetTheCopy(t *testing.T) {
	t.Parallel()
	_, target := pgtest.Shared(t)
	publisher := pgtest.Start(t, pgtest.OnMajor(max(15, pgtest.Major(t)))) // what others prepare holds up a slot
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE a (id int PRIMARY KEY, v text)`, `CREATE TABLE x (id int, v text)`)
	l.onSource(`INSERT INTO x VALUES (0, 'before')`, `CREATE PUBLICATION p FOR TABLE a`)
	l.start(copying, twoPhase)
	l.onSource(`ALTER PUBLICATION p ADD TABLE x`)
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE x IN SHARE MODE`)
	l.refresh()
	l.copyBlocked()
	l.onSource(`BEGIN; INSERT INTO a VALUES (1, 'one'); PREPARE TRANSACTION 'one'`, `INSERT INTO x VALUES (1, 'meanwhile')`)
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`, "1")
	lock(`ROLLBACK`)
	l.states("ar xr")
	require.Equal(t, "1", l.prepared())
	l.onSource(`INSERT INTO x VALUES (2, 'after')`, `COMMIT PREPARED 'one'`)
	l.settledTables("a", "x")

	// Of two late tables one is held up so, and the other is truncated meanwhile, together
	// with one that is ready and refers to it.
	l.both(`CREATE TABLE parent (id int PRIMARY KEY)`, `ALTER TABLE a ADD parent int REFERENCES parent`, `CREATE TABLE y (id int)`)
	l.onSource(`INSERT INTO parent VALUES (1)`, `INSERT INTO y VALUES (1)`, `ALTER PUBLICATION p ADD TABLE parent, y`)
	lock(`BEGIN; LOCK TABLE y IN SHARE MODE`)
	l.refresh()
	l.copyBlocked()
	l.onSource(`BEGIN; INSERT INTO y VALUES (2); PREPARE TRANSACTION 'two'`)
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`, "1")
	lock(`ROLLBACK`)
	l.states("ar parents xr ys")
	l.onSource(`TRUNCATE parent, a`, `INSERT INTO parent VALUES (3)`, `INSERT INTO a VALUES (4, 'four', 3)`)
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM parent WHERE id = 3`, "1")
	l.onSource(`COMMIT PREPARED 'two'`)
	l.states("ar parentr xr yr")
	l.settledTables("a", "parent", "y")
	l.onlySlot()
	l.stop()
	l.cleanedUp()
}

// settledTables proves that tables have the same rows and that the target holds nothing prepared.
func (l *link) settledTables(tables ...string) {
	l.t.Helper()
	l.catchUp()
	require.Equal(l.t, "0", l.prepared())
	for _, name := range tables {
		l.same(`SELECT * FROM ` + name + ` ORDER BY id`)
	}
}

// TestTransactionsOpenOverTheHandOver: large ones that are streamed while they run, begun
// before and during the copy, and ended after it.
func TestTransactionsOpenOverTheHandOver(t *testing.T) {
	t.Parallel()
	publisher := pgtest.Start(t)
	_, target := pgtest.Shared(t)
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE a (id int PRIMARY KEY, v text)`, `CREATE TABLE x (id int, v text)`)
	l.onSource(`INSERT INTO a VALUES (1, 'one')`, `INSERT INTO x VALUES (1, 'one')`, `CREATE PUBLICATION p FOR TABLE a`)
	l.streamEarly()
	l.start(copying)
	many := func(first string) string {
		return `INSERT INTO a SELECT ` + first + ` + g, repeat('a', 100) FROM generate_series(1, 3000) g; INSERT INTO x SELECT ` + first + ` + g, repeat('x', 100) FROM generate_series(1, 3000) g`
	}
	// One that began before the slot holds it up; it has changed the table already.
	before, during, lost := session(t, l.source), session(t, l.source), session(t, l.source)
	before(`BEGIN; ` + many("10000"))
	l.onSource(`ALTER PUBLICATION p ADD TABLE x`)
	l.refresh()
	pgtest.WaitFor(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, "1", l.name+"_sync")
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE x IN SHARE MODE`)
	before(many("20000"))
	before(`COMMIT`)
	l.copyBlocked()
	during(`BEGIN; ` + many("30000"))
	lost(`BEGIN; ` + many("40000"))
	lock(`ROLLBACK`)
	l.states("ar xr")
	during(many("50000"))
	lost(many("60000"))
	during(`COMMIT`)
	lost(`ROLLBACK`)
	l.catchUp()
	l.same(`SELECT count(*), count(DISTINCT id), sum(id) FROM a`)
	l.same(`SELECT count(*), count(DISTINCT id), sum(id) FROM x`)
	l.onlySlot()
}

// TestFarApart: the stream is far behind where a late table begins, and the table far
// behind the stream.
func TestFarApart(t *testing.T) {
	t.Parallel()
	l := lateLink(t)
	l.both(`CREATE TABLE x (id int PRIMARY KEY, v text)`)
	l.onSource(`INSERT INTO x SELECT g, 'copied' FROM generate_series(1, 1000) g`)
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE a IN EXCLUSIVE MODE`)
	l.onSource(`UPDATE a SET v = 'held'`)
	l.awaitBlocked()
	for range 10 {
		l.onSource(`INSERT INTO a SELECT (SELECT max(id) FROM a) + g, repeat('far', 300) FROM generate_series(1, 2000) g`, `UPDATE x SET v = v || '.' WHERE id % 10 = 0`)
	}
	l.refresh()
	l.states("ar xf") // and cannot go on before the stream is there
	l.onSource(`UPDATE x SET v = v || '!' WHERE id % 3 = 0`)
	lock(`ROLLBACK`)
	l.states("ar xr")
	l.catchUp()
	l.same(`SELECT * FROM x ORDER BY id`)
	l.same(`SELECT count(*), sum(id) FROM a`)

	_, err := operate.Resync(t.Context(), l.endpoints(), []string{"x"}, true)
	require.NoError(t, err)
	lock(`BEGIN; LOCK TABLE x IN SHARE MODE`)
	l.copyBlocked()
	for range 10 {
		l.onSource(`INSERT INTO a SELECT (SELECT max(id) FROM a) + g, repeat('far', 2500) FROM generate_series(1, 1000) g`, `UPDATE x SET v = v || '.' WHERE id % 10 = 0`)
	}
	l.catchUp()
	lock(`ROLLBACK`)
	l.states("ar xr")
	l.catchUp()
	l.same(`SELECT * FROM x ORDER BY id`)
	l.onlySlot()
}

// TestPauseCopy: a pause ends a late copy, which begins again when it is over, and lets the
// first one come to its end, since its snapshot cannot be had again.
func TestPauseCopy(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY)`, `CREATE TABLE x (id int PRIMARY KEY)`)
	l.onSource(`INSERT INTO a SELECT generate_series(1, 100)`, `INSERT INTO x SELECT generate_series(1, 100)`, `CREATE PUBLICATION p FOR TABLE a`)
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE a IN SHARE MODE`)
	l.launch(l.options(copying))
	l.copyBlocked()
	pause, resume := func() {
		t.Helper()
		_, err := operate.Pause(t.Context(), l.endpoints(), "")
		require.NoError(t, err)
	}, func() {
		t.Helper()
		_, err := operate.Resume(t.Context(), l.endpoints(), nil)
		require.NoError(t, err)
	}
	paused := func() {
		t.Helper()
		pgtest.WaitFor(t, l.target, `SELECT status ->> 'state' FROM pgapply.runner`, "paused")
	}
	pause()
	lock(`ROLLBACK`)
	paused()
	l.states("ar")
	resume()
	l.onSource(`INSERT INTO a VALUES (101)`, `ALTER PUBLICATION p ADD TABLE x`)
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM a`, "101")
	lock(`BEGIN; LOCK TABLE x IN SHARE MODE`)
	l.refresh()
	l.copyBlocked()
	pause()
	paused()
	// A second runner waits for the first.
	second := &link{t: t, source: l.source, target: l.target, name: l.name}
	second.launch(second.options(copying, func(o *apply.Options) { o.Wait = true }))
	lock(`ROLLBACK`)
	l.states("ar xd")
	resume()
	l.states("ar xr")
	l.stop()
	l.onSource(`INSERT INTO x VALUES (101)`)
	l.catchUp()
	l.same(`SELECT * FROM x ORDER BY id`)
	l.onlySlot()
	second.stop()
	l.cleanedUp()
}

// TestCopyDoesNotComeBack: two servers that replicate to each other, of several majors.
func TestCopyDoesNotComeBack(t *testing.T) {
	t.Parallel()
	publisher := pgtest.Start(t, pgtest.OnMajor(16))
	_, target := pgtest.Shared(t)
	if target.Major() < 16 {
		target = pgtest.Start(t, pgtest.OnMajor(cluster.NewestMajor))
	}
	l := linkOf(t, publisher, target)
	back := &link{t: t, source: l.target, target: l.source, name: l.name + "_back"}
	l.both(`CREATE TABLE a (id int, v text)`, `CREATE TABLE x (id int, v text)`)
	l.onSource(`INSERT INTO a SELECT g, 'here' FROM generate_series(1, 20000) g`, `INSERT INTO x VALUES (1, 'here')`)
	l.both(`CREATE PUBLICATION p FOR TABLE a`)
	none := func(o *apply.Options) { o.Origin = "none" }
	back.start(none)
	l.start(none, copying, inParts)
	l.onSource(`INSERT INTO a VALUES (-1, 'there')`)
	l.onTarget(`INSERT INTO a VALUES (-2, 'back')`)
	l.catchUp()
	back.catchUp()
	l.same(`SELECT count(*), count(DISTINCT id), sum(id) FROM a`)
	require.Equal(t, "20002", pgtest.Query(t, l.source, `SELECT count(*) FROM a`))
	// A late one, and what it catches up with.
	l.onTarget(`ALTER PUBLICATION p ADD TABLE x`)
	back.stop()
	back.start(none)
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE x IN SHARE MODE`)
	l.onSource(`ALTER PUBLICATION p ADD TABLE x`)
	l.refresh()
	l.copyBlocked()
	l.onSource(`INSERT INTO x VALUES (2, 'late')`)
	lock(`ROLLBACK`)
	l.states("ar xr")
	l.onTarget(`INSERT INTO x VALUES (-2, 'back')`)
	l.catchUp()
	back.catchUp()
	require.Equal(t, "-2\n1\n2", l.same(`SELECT id FROM x ORDER BY id`))
	l.stop()
	back.stop()
}

// TestCopyFromOldPublisher: the oldest major that copies in ranges of pages.
func TestCopyFromOldPublisher(t *testing.T) {
	t.Parallel()
	publisher := pgtest.Start(t, pgtest.OnMajor(14))
	_, target := pgtest.Shared(t)
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE a (id int, v text)`, `CREATE TABLE x (id int, v text)`)
	l.onSource(`INSERT INTO a SELECT g, repeat('here', 20) FROM generate_series(1, 20000) g`, `INSERT INTO x VALUES (1, 'here')`, `CREATE PUBLICATION p FOR TABLE a`)
	l.start(copying, inParts)
	l.onSource(`INSERT INTO a VALUES (-1, 'after')`, `ALTER PUBLICATION p ADD TABLE x`)
	l.refresh()
	l.states("ar xr")
	l.onSource(`INSERT INTO x VALUES (2, 'late')`)
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.same(`SELECT * FROM x ORDER BY id`)
	l.onlySlot()
}

// TestEndAfterCopy: with an end position, pgapply ends once all tables are ready.
func TestEndAfterCopy(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE a (id int)`, `CREATE TABLE x (id int)`)
	l.onSource(`INSERT INTO a SELECT generate_series(1, 1000)`, `INSERT INTO x SELECT generate_series(1, 1000)`, `CREATE PUBLICATION p FOR TABLE a`)
	end := func(o *apply.Options) { o.EndAtCurrent = true }
	require.NoError(t, l.run(copying, end))
	require.Equal(t, "1000", pgtest.Query(t, l.target, `SELECT count(*) FROM a`))
	l.onSource(`ALTER PUBLICATION p ADD TABLE x`, `INSERT INTO x VALUES (1001)`, `INSERT INTO a VALUES (1001)`)
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE x IN SHARE MODE`)
	p := l.spawnCopy("--endpos", "current")
	l.copyBlocked()
	l.onSource(`INSERT INTO x VALUES (1002)`)
	p.alive()
	lock(`ROLLBACK`)
	require.Zero(t, p.exitCode(patience))
	l.states("ar xr")
	require.Equal(t, "1001", pgtest.Query(t, l.target, `SELECT count(*) FROM x WHERE id <= 1001`))
	require.Equal(t, "1001", pgtest.Query(t, l.target, `SELECT count(*) FROM a`))
	l.onlySlot()
	l.start(copying)
	l.catchUp()
	l.same(`SELECT * FROM x ORDER BY id`)
	l.stop()
	l.cleanedUp()
}
