package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// Collisions that only the target sees, while streamed transactions are applied ahead
// of their turn. Each ends with the publisher's tables, by itself.

// isApplied stands in the place of a number of sessions.
const isApplied = -1

// collisions come from an index of the target alone, which forbids two rows with the
// same n.
var collisions = []struct {
	name, script string
	// After the script so many sessions of ours wait for locks, or what has committed is
	// applied; then comes the rest.
	waiting int
	rest    string
	cured   bool // by rolling back a worker, or several
}{
	{"two workers in a deadlock", `
		a: BEGIN
		a: INSERT INTO t VALUES (1, 1)
		a: push
		b: BEGIN
		b: INSERT INTO t VALUES (2, 2)
		b: push
		ahead: 2
		a: INSERT INTO t VALUES (11, 2)
		a: push
		b: INSERT INTO t VALUES (12, 1)
		b: push
		a: UPDATE t SET n = id + 50
		b: UPDATE t SET n = id + 50
		a: push
		b: push
		`, 0, `
		-: INSERT INTO t VALUES (3, 3)
		b: COMMIT
		a: COMMIT
		`, false},
	{"an ordinary transaction behind a worker", `
		a: BEGIN
		a: INSERT INTO t VALUES (101, 101)
		a: push
		ahead: 1
		-: INSERT INTO t VALUES (102, 101)
		`, isApplied, `
		-: UPDATE t SET n = 102 WHERE id = 102
		a: COMMIT
		`, true},
	{"a later worker behind an earlier one", `
		a: BEGIN
		a: INSERT INTO t VALUES (201, 201)
		a: push
		ahead: 1
		b: BEGIN
		b: INSERT INTO t VALUES (202, 201)
		b: push
		`, 1, `
		a: UPDATE t SET n = 299 WHERE id = 201
		a: COMMIT
		b: COMMIT
		`, false},
	{"an earlier worker behind a later one", `
		a: BEGIN
		a: INSERT INTO t VALUES (301, 301)
		a: push
		ahead: 1
		b: BEGIN
		b: INSERT INTO t VALUES (302, 301)
		b: push
		`, 1, `
		b: UPDATE t SET n = 399 WHERE id = 302
		b: COMMIT
		a: COMMIT
		`, true},
	{"three in a chain", `
		a: BEGIN
		a: INSERT INTO t VALUES (401, 401)
		a: push
		ahead: 1
		b: BEGIN
		b: INSERT INTO t VALUES (402, 402)
		b: push
		ahead: 2
		b: INSERT INTO t VALUES (403, 401)
		b: push
		c: BEGIN
		c: INSERT INTO t VALUES (404, 402)
		c: push
		`, 2, `
		c: DELETE FROM t WHERE id = 404
		c: COMMIT
		b: DELETE FROM t WHERE id = 403
		b: COMMIT
		a: COMMIT
		`, true},
}

func TestCollisionsOnTheTarget(t *testing.T) {
	t.Parallel()
	s := newStage(newLink(t))
	s.both(`CREATE TABLE t (id int PRIMARY KEY, n int)`)
	s.onTarget(`CREATE UNIQUE INDEX ON t (n)`)
	s.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	s.start(s.counting)
	for _, c := range collisions {
		before := s.yields.Load()
		s.script(c.script)
		switch {
		case c.waiting == isApplied: // else both transactions may come in one group, and meet nobody
			s.catchUp()
		case c.waiting > 0:
			s.blocked(c.waiting)
		}
		s.script(c.rest)
		s.catchUp()
		s.sameTables("t")
		require.Equal(t, "0", pgtest.Query(t, s.target, `SELECT count(*) `+workerQuery), c.name)
		if c.cured {
			require.Greater(t, s.yields.Load(), before, c.name)
		}
	}
	require.Zero(t, s.engine.Status().Retries)
	require.Zero(t, s.engine.Status().Misses)
	s.stop()
}

// TestStopWithOneInTheWay: whoever stands in the way of the group in work gives way also when
// that is all that a stop waits for.
func TestStopWithOneInTheWay(t *testing.T) {
	t.Parallel()
	s := newStage(newLink(t))
	s.both(`CREATE TABLE t (id int PRIMARY KEY, n int)`)
	s.onTarget(`CREATE UNIQUE INDEX ON t (n)`)
	s.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	s.start()
	s.script(`
		a: BEGIN
		a: INSERT INTO t VALUES (101, 101)
		a: push
		ahead: 1
		-: INSERT INTO t VALUES (102, 101)
		`)
	s.blocked(1)
	s.stop()
	require.Equal(t, "102|101", pgtest.Query(t, s.target, `SELECT * FROM t`), "the group in work is finished")
	s.start()
	s.script(`
		-: UPDATE t SET n = 102 WHERE id = 102
		a: COMMIT
		`)
	s.catchUp()
	s.sameTables("t")
}

// TestSharedCounter: a trigger of the target makes all transactions meet in one row.
func TestSharedCounter(t *testing.T) {
	t.Parallel()
	s := newStage(newLink(t))
	s.both(`CREATE TABLE t (id int PRIMARY KEY, n int)`)
	s.onTarget(`CREATE TABLE counter (n int)`, `INSERT INTO counter VALUES (0)`,
		`CREATE FUNCTION count_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE public.counter SET n = n + 1; RETURN NULL; END $$`,
		`CREATE TRIGGER count AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION count_rows()`, `ALTER TABLE t ENABLE ALWAYS TRIGGER count`)
	s.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	s.start(s.counting)
	s.script(`
		a: BEGIN
		a: INSERT INTO t SELECT g, 1 FROM generate_series(1, 10) g
		a: push
		b: BEGIN
		b: INSERT INTO t SELECT g, 2 FROM generate_series(11, 20) g
		b: push
		c: BEGIN
		c: INSERT INTO t SELECT g, 3 FROM generate_series(21, 30) g
		c: push
		`)
	s.blocked(2)
	s.script(`
		-: INSERT INTO t VALUES (40, 4)
		c: COMMIT
		b: ROLLBACK
		a: COMMIT
		`)
	s.catchUp()
	s.sameTables("t")
	require.Equal(t, "21", pgtest.Query(t, s.target, `SELECT n FROM counter`))
	require.NotZero(t, s.yields.Load())
	require.Zero(t, s.engine.Status().Retries)
	s.stop()
}

// TestStallThroughAnApplication: the transaction whose turn it is waits for an
// application on the target, and that for a later transaction of ours.
func TestStallThroughAnApplication(t *testing.T) {
	t.Parallel()
	s := newStage(newLink(t))
	s.both(`CREATE TABLE t (id int PRIMARY KEY, n int)`, `INSERT INTO t VALUES (1, 0), (2, 0), (3, 0)`)
	s.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	s.start(s.counting)
	for _, turn := range []string{
		`-: UPDATE t SET n = n + 1 WHERE id = 1`, // on the head's own session
		`
		b: BEGIN
		b: UPDATE t SET n = n + 1 WHERE id = 1
		b: push
		b: COMMIT
		`, // on a worker's
	} {
		before := s.yields.Load()
		application := pgtest.Open(t, s.target)
		application.Exec(`BEGIN`, `SELECT FROM t WHERE id = 1 FOR UPDATE`)
		s.script(`
			a: BEGIN
			a: UPDATE t SET n = n + 1 WHERE id = 2
			a: push
			`)
		s.ahead(1)
		released := make(chan struct{})
		go func() {
			defer close(released)
			application.Exec(`SELECT FROM t WHERE id = 2 FOR UPDATE`, `COMMIT`)
		}()
		pgtest.WaitFor(t, s.target, `SELECT wait_event_type FROM pg_stat_activity WHERE pid = $1`, "Lock", application.PID())
		s.script(turn)
		<-released
		s.catchUp()
		require.Greater(t, s.yields.Load(), before)
		s.script(`a: COMMIT`)
		s.catchUp()
		s.sameTables("t")
	}
	require.Zero(t, s.engine.Status().Retries)
	s.stop()
}
