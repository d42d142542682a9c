package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	applystream "pgapply/apply/stream"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

// The tests in this file say how groups of ordinary transactions are applied by several
// workers at a time. Where a test wants to look, all transactions arrive while the head
// waits for an application on the target, and then wait in line behind another such lock.

// sized makes groups of n transactions, with that many workers.
func sized(n, workers int) func(*apply.Options) {
	return func(o *apply.Options) {
		o.Workers = workers
		o.MaxGroup = applystream.Limits{Transactions: n, Rows: 10_000, Bytes: 1 << 20, Age: time.Hour}
	}
}

// backlog has the workload wait for a start, each string a transaction.
func (l *link) backlog(workload ...string) {
	l.t.Helper()
	if l.engine == nil {
		l.start()
	}
	l.stop()
	l.onSource(workload...)
}

// inParallel waits until the status shows what each worker is at: a state for each, and
// in brackets how many transactions its group has.
func (l *link) inParallel(want ...string) {
	l.t.Helper()
	describe := func(w state.Worker) string {
		if w.Transactions == 0 {
			return w.State
		}
		return fmt.Sprintf("%s (%d)", w.State, w.Transactions)
	}
	deadline := time.After(time.Minute)
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		var have []string
		for _, w := range l.engine.Status().Workers {
			have = append(have, describe(w))
		}
		if strings.Join(have, ", ") == strings.Join(want, ", ") {
			return
		}
		select {
		case <-pause.C:
		case <-deadline:
			require.Fail(l.t, "the workers are at something else", "want %q, have %q", want, have)
		}
	}
}

// lineUp has the workload applied such that the first group in line is the head's own and
// waits for an application's lock, and the workload's groups come behind it. It returns
// how to let go of that lock. The engine is started unless it runs; t is published.
func (l *link) lineUp(start func(*apply.Options), workload ...string) (letGo func()) {
	l.t.Helper()
	l.both(`CREATE TABLE IF NOT EXISTS first (id int PRIMARY KEY)`, `CREATE TABLE IF NOT EXISTS second (id int PRIMARY KEY)`)
	if l.engine == nil {
		l.onSource(`CREATE PUBLICATION p FOR ALL TABLES`)
		l.start(start)
	}
	l.onSource(`INSERT INTO second VALUES (1)`)
	l.catchUp()
	first, second := pgtest.Open(l.t, l.target), pgtest.Open(l.t, l.target)
	first.Exec(`BEGIN`, `SELECT FROM first`)
	second.Exec(`BEGIN`, `SELECT FROM second FOR UPDATE`)
	// While the head waits with this one, which is alone, all others arrive.
	l.onSource(`TRUNCATE first`)
	l.blocked(1)
	l.onSource(append([]string{`DELETE FROM second`}, workload...)...)
	l.received()
	first.Exec(`ROLLBACK`)
	pgtest.WaitFor(l.t, l.target, `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ ':w0' AND query ~ 'second' AND wait_event_type = 'Lock'`, "t")
	return func() { second.Exec(`ROLLBACK`) }
}

// received waits until all that was written on the publisher has arrived.
func (l *link) received() {
	l.t.Helper()
	position, err := lsn.Parse(pgtest.Query(l.t, l.source, `SELECT pg_current_wal_flush_lsn()`))
	require.NoError(l.t, err)
	require.Eventually(l.t, func() bool { return lsn.LSN(l.engine.Status().Received) >= position }, time.Minute, 10*time.Millisecond)
}

// counters are the groups that ran beside others, and those that had to wait for their
// turn.
func (l *link) counters() (parallel, replays int64) {
	status := l.engine.Status()
	return status.ParallelGroups, status.ParallelReplays
}

// TestGroupsRunBeside: while the first group waits for a lock, those behind it are
// applied, and wait for their turn. They commit in order.
func TestGroupsRunBeside(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, n int)`, `INSERT INTO t SELECT g, 0 FROM generate_series(1, 5) g`)
	letGo := l.lineUp(sized(1, 4), `UPDATE t SET n = 2 WHERE id = 2`, `UPDATE t SET n = 3 WHERE id = 3`,
		`INSERT INTO t VALUES (6, 6)`, `DELETE FROM t WHERE id = 5`, `UPDATE t SET n = 1 WHERE id = 1`)
	l.ahead(3)
	l.inParallel("applying", "waiting (1)", "waiting (1)", "waiting (1)")
	require.Equal(t, "1|0\n2|0\n3|0\n4|0\n5|0", pgtest.Query(t, l.target, `SELECT * FROM t ORDER BY id`))
	for _, w := range l.engine.Status().Workers[1:] {
		require.Equal(t, "its turn to commit", w.WaitingFor)
	}
	letGo()
	l.catchUp()
	l.sameTables("t")
	parallel, replays := l.counters()
	require.Equal(t, int64(5), parallel)
	require.Zero(t, replays)
	require.Zero(t, l.engine.Status().Replays)
}

// TestGroupsOfMany: groups of several transactions. One that might still grow does not
// run beside others.
func TestGroupsOfMany(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, n int)`, `INSERT INTO t SELECT g, 0 FROM generate_series(1, 5) g`)
	letGo := l.lineUp(sized(2, 4), `INSERT INTO t VALUES (6, 6)`, `UPDATE t SET n = 1 WHERE id = 1`, `UPDATE t SET n = 2 WHERE id = 1`,
		`UPDATE t SET n = 3 WHERE id = 2`, `UPDATE t SET n = 4 WHERE id = 2`, `DELETE FROM t WHERE id = 3`)
	l.inParallel("applying", "waiting (2)", "waiting (2)", "idle")
	letGo()
	l.catchUp()
	l.sameTables("t")
}

// TestGroupsCommitInOrder: each group is committed before the next one, whichever was
// done first. A trigger would make the table a barrier; commit times tell.
func TestGroupsCommitInOrder(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	l := &link{t: t, source: pgtest.Database(t, publisher), target: pgtest.Database(t, target), name: "ordered"}
	l.both(`CREATE TABLE t (id int PRIMARY KEY, n int)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	var workload []string
	for i := range 300 {
		workload = append(workload, fmt.Sprintf(`INSERT INTO t VALUES (%d, %d)`, i, i))
	}
	l.backlog(workload...)
	l.start(sized(1, 8))
	l.catchUp()
	l.sameTables("t")
	require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT bool_and(id = place) FROM (
		SELECT id, row_number() OVER (ORDER BY (pg_xact_commit_timestamp_origin(xmin)).timestamp) - 1 AS place FROM t) r`))
	require.Equal(t, "300", pgtest.Query(t, l.target, `SELECT count(DISTINCT xmin::text) FROM t`))
	require.NotEqual(t, "1", pgtest.Query(t, l.target, `SELECT count(DISTINCT (pg_xact_commit_timestamp_origin(xmin)).roident) FROM t`))
	parallel, replays := l.counters()
	require.Greater(t, parallel, int64(100))
	require.Zero(t, replays)
	require.Zero(t, l.engine.Status().Replays)
}

// groupCases are backlogs that would go wrong if groups ran beside each other, or do so
// and find out. Those that meet by their keys cost no replay.
var groupCases = []struct {
	name string
	// setup on both ends, and on the target alone.
	setup, target []string
	workload      []string
	// meets: no group may have to be replayed, since the keys tell.
	meets bool
	// textOnly: the target's column does not take the binary form.
	textOnly bool
}{
	{
		"key chains",
		[]string{`CREATE TABLE t (id int PRIMARY KEY, n int)`, `INSERT INTO t VALUES (1, 1)`},
		nil,
		[]string{`UPDATE t SET id = 2, n = 2 WHERE id = 1`, `UPDATE t SET id = 3, n = 3 WHERE id = 2`, `INSERT INTO t VALUES (1, 4)`, `UPDATE t SET id = 4 WHERE id = 3`, `DELETE FROM t WHERE id = 1`},
		true, false,
	},
	{
		"delete and insert again",
		[]string{`CREATE TABLE t (id int PRIMARY KEY, n int)`, `INSERT INTO t VALUES (1, 1)`},
		nil,
		[]string{`DELETE FROM t`, `INSERT INTO t VALUES (1, 2)`, `DELETE FROM t`, `INSERT INTO t VALUES (1, 3)`, `UPDATE t SET n = n + 1`},
		true, false,
	},
	{
		"unique values swapped",
		[]string{`CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE)`, `INSERT INTO t VALUES (1, 10), (2, 20)`},
		nil,
		[]string{`UPDATE t SET u = 0 WHERE id = 1`, `UPDATE t SET u = 10 WHERE id = 2`, `UPDATE t SET u = 20 WHERE id = 1`},
		false, false,
	},
	{
		"unique values swapped in one",
		[]string{`CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY IMMEDIATE)`, `INSERT INTO t VALUES (1, 10), (2, 20)`},
		[]string{`ALTER TABLE t DROP CONSTRAINT t_u_key`, `CREATE UNIQUE INDEX ON t (u)`},
		[]string{`BEGIN; UPDATE t SET u = 0 WHERE id = 1; UPDATE t SET u = 10 WHERE id = 2; UPDATE t SET u = 20 WHERE id = 1; COMMIT`, `INSERT INTO t VALUES (3, 30)`, `UPDATE t SET u = 40 WHERE id = 3`},
		false, false,
	},
	{
		"unique value freed by a delete",
		[]string{`CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE)`, `INSERT INTO t VALUES (1, 10), (2, 20)`},
		nil,
		[]string{`DELETE FROM t WHERE id = 1`, `INSERT INTO t VALUES (3, 10)`, `DELETE FROM t WHERE id = 2`, `INSERT INTO t VALUES (4, 20)`},
		false, false,
	},
	{
		"unique value freed by an update",
		[]string{`CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE)`, `INSERT INTO t VALUES (1, 10), (2, 20)`},
		nil,
		[]string{`UPDATE t SET u = 11 WHERE id = 1`, `INSERT INTO t VALUES (3, 10)`, `UPDATE t SET u = 21 WHERE id = 2`, `UPDATE t SET u = 20 WHERE id = 3`},
		false, false,
	},
	{
		"unique index of the target",
		[]string{`CREATE TABLE t (id int PRIMARY KEY, u int)`, `INSERT INTO t VALUES (1, 10)`},
		[]string{`CREATE UNIQUE INDEX ON t (abs(u))`},
		[]string{`DELETE FROM t WHERE id = 1`, `INSERT INTO t VALUES (3, -10)`, `UPDATE t SET u = 5 WHERE id = 3`, `INSERT INTO t VALUES (4, 10)`},
		false, false,
	},
	{
		"numeric keys",
		[]string{`CREATE TABLE t (id numeric PRIMARY KEY, n int)`, `INSERT INTO t VALUES (1.0, 1)`},
		nil,
		[]string{`UPDATE t SET n = 2 WHERE id = 1`, `UPDATE t SET id = 1.00, n = 3 WHERE id = 1`, `UPDATE t SET n = 4 WHERE id = 1`, `DELETE FROM t WHERE id = 1`, `INSERT INTO t VALUES (1, 5)`, `UPDATE t SET id = 1.000`},
		true, false,
	},
	{
		"float keys",
		[]string{`CREATE TABLE t (id float8 PRIMARY KEY, n int)`, `INSERT INTO t VALUES ('-0', 1)`},
		nil,
		[]string{`UPDATE t SET n = 2`, `UPDATE t SET id = 0, n = 3`, `UPDATE t SET n = 4`, `DELETE FROM t`, `INSERT INTO t VALUES ('-0', 5)`},
		true, false,
	},
	{
		"char keys",
		[]string{`CREATE TABLE t (id char(5) PRIMARY KEY, n int)`, `INSERT INTO t VALUES ('a', 1)`},
		nil,
		[]string{`UPDATE t SET n = 2`, `DELETE FROM t`, `INSERT INTO t VALUES ('a  ', 3)`, `UPDATE t SET n = 4`, `UPDATE t SET id = 'b'`, `INSERT INTO t VALUES ('a', 5)`},
		true, false,
	},
	{
		"bit keys",
		[]string{`CREATE TABLE t (id bit(5) PRIMARY KEY, n int)`, `INSERT INTO t VALUES (B'00001', 1)`},
		nil,
		[]string{`UPDATE t SET n = 2`, `DELETE FROM t`, `INSERT INTO t VALUES (B'00001', 3)`, `UPDATE t SET id = B'00010'`, `INSERT INTO t VALUES (B'00001', 5)`},
		true, false,
	},
	{
		"citext keys",
		[]string{`CREATE EXTENSION IF NOT EXISTS citext`, `CREATE TABLE t (id citext PRIMARY KEY, n int)`, `INSERT INTO t VALUES ('a', 1)`},
		nil,
		[]string{`UPDATE t SET n = 2`, `DELETE FROM t`, `INSERT INTO t VALUES ('A', 3)`, `UPDATE t SET id = 'a', n = 4`, `UPDATE t SET n = 5`, `DELETE FROM t`, `INSERT INTO t VALUES ('A', 6)`},
		true, false,
	},
	{
		"citext on the target",
		[]string{`CREATE EXTENSION IF NOT EXISTS citext`, `CREATE TABLE t (id text PRIMARY KEY, n int)`, `INSERT INTO t VALUES ('a', 1)`},
		[]string{`ALTER TABLE t ALTER id TYPE citext`},
		[]string{`UPDATE t SET n = 2`, `DELETE FROM t`, `INSERT INTO t VALUES ('A', 3)`, `UPDATE t SET id = 'a', n = 4`, `UPDATE t SET n = 5`},
		true, true,
	},
	{
		"a key of two",
		[]string{`CREATE TABLE t (a text, b text, PRIMARY KEY (a, b))`, `INSERT INTO t VALUES ('a', 'bc')`},
		nil,
		[]string{`INSERT INTO t VALUES ('ab', 'c')`, `DELETE FROM t WHERE a = 'a'`, `INSERT INTO t VALUES ('a', 'bc')`, `UPDATE t SET b = 'd' WHERE a = 'ab'`},
		true, false,
	},
	{
		"no key",
		[]string{`CREATE TABLE t (n int)`, `ALTER TABLE t REPLICA IDENTITY FULL`, `INSERT INTO t VALUES (1), (1)`},
		nil,
		[]string{`UPDATE t SET n = 2 WHERE ctid = '(0,1)'`, `UPDATE t SET n = 3 WHERE n = 1`, `INSERT INTO t VALUES (1), (2)`, `DELETE FROM t WHERE n = 2`},
		true, false,
	},
	{
		"truncated",
		[]string{`CREATE TABLE t (id int PRIMARY KEY, n int)`, `INSERT INTO t VALUES (1, 1)`},
		nil,
		[]string{`UPDATE t SET n = 2`, `TRUNCATE t`, `INSERT INTO t VALUES (1, 1)`, `UPDATE t SET n = 2`},
		true, false,
	},
	{
		"leaves alone have the key",
		[]string{
			`CREATE TABLE t (id int, n int) PARTITION BY RANGE (id)`, `CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)`,
			`CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)`, `CREATE UNIQUE INDEX ON t1 (id)`, `CREATE UNIQUE INDEX ON t2 (id)`,
			`ALTER TABLE t1 REPLICA IDENTITY FULL`, `ALTER TABLE t2 REPLICA IDENTITY FULL`, `ALTER TABLE t REPLICA IDENTITY FULL`, `INSERT INTO t VALUES (1, 1), (11, 1)`,
		},
		nil,
		[]string{`UPDATE t SET id = 12 WHERE id = 1`, `INSERT INTO t VALUES (1, 2)`, `DELETE FROM t WHERE id = 11`, `INSERT INTO t VALUES (11, 3)`, `UPDATE t SET n = n + 1`, `UPDATE t SET id = 2 WHERE id = 12`},
		false, false,
	},
	{
		"partitions",
		[]string{
			`CREATE TABLE t (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)`, `CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)`,
			`CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)`, `INSERT INTO t VALUES (1, 1), (11, 1)`,
		},
		nil,
		[]string{`UPDATE t SET id = 12 WHERE id = 1`, `INSERT INTO t VALUES (1, 2)`, `DELETE FROM t WHERE id = 11`, `INSERT INTO t VALUES (11, 3)`, `UPDATE t SET n = n + 1`, `UPDATE t SET id = 2 WHERE id = 12`},
		true, false,
	},
	{
		"column of another type",
		[]string{`CREATE TABLE t (id int PRIMARY KEY, n int)`, `INSERT INTO t VALUES (1, 1)`},
		[]string{`ALTER TABLE t ALTER id TYPE bigint`},
		[]string{`UPDATE t SET n = 2`, `ALTER TABLE t ALTER id TYPE bigint`, `UPDATE t SET n = 3`, `DELETE FROM t`, `INSERT INTO t VALUES (1, 1)`, `UPDATE t SET n = 2`},
		true, false,
	},
}

// TestGroupsThatMeet: whatever groups have to do with each other, any number of workers
// gives what the publisher has.
func TestGroupsThatMeet(t *testing.T) {
	for name, mode := range map[string]func(*apply.Options){
		"1 worker": sized(1, 1), "2 workers": sized(1, 2), "8 workers": sized(1, 8),
		"binary": func(o *apply.Options) { sized(1, 8)(o); o.Binary = true },
		"pairs":  sized(2, 3),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, c := range groupCases {
				if c.textOnly && name == "binary" {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					l := newLink(t)
					l.both(c.setup...)
					l.onTarget(c.target...)
					// Rows that nobody else has keep all busy, and show that there is a "beside".
					l.both(`CREATE TABLE other (id int PRIMARY KEY)`)
					l.onSource(`CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)`)
					var workload []string
					for i, sql := range c.workload {
						workload = append(workload, sql, fmt.Sprintf(`INSERT INTO other VALUES (%d)`, i))
					}
					l.backlog(workload...)
					l.start(mode)
					l.catchUp()
					l.sameTables("t", "other")
					status := l.engine.Status()
					require.Zero(t, status.Retries)
					require.Empty(t, status.Conflicts)
					if c.meets {
						require.Zero(t, status.ParallelReplays)
						require.Zero(t, status.Replays)
					}
					if name == "1 worker" {
						require.Zero(t, status.ParallelGroups)
					}
				})
			}
		})
	}
}

// TestGroupsThatMeetWait: a group that meets an earlier one by its keys does not run
// beside it, and one that does not, does.
func TestGroupsThatMeetWait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, first, second string
		beside              bool
	}{
		{"other rows", `UPDATE t SET u = 10 WHERE id = 1`, `UPDATE t SET u = 20 WHERE id = 2`, true},
		{"NULL is no value", `UPDATE t SET u = NULL WHERE id = 1`, `UPDATE t SET u = NULL WHERE id = 2`, true},
		{"a value that was freed is not known", `DELETE FROM t WHERE id = 1`, `UPDATE t SET u = 20 WHERE id = 2`, true},
		{"the same row", `UPDATE t SET u = 10 WHERE id = 1`, `UPDATE t SET v = 11 WHERE id = 1`, false},
		{"a row's former key", `UPDATE t SET id = 6 WHERE id = 1`, `INSERT INTO t VALUES (1, 11)`, false},
		{"a row's new key", `UPDATE t SET id = 6 WHERE id = 1`, `UPDATE t SET u = 20 WHERE id = 6`, false},
		{"a deleted row", `DELETE FROM t WHERE id = 1`, `INSERT INTO t VALUES (1, 11)`, false},
		{"a unique value", `BEGIN; UPDATE t SET u = 10 WHERE id = 1; UPDATE t SET u = 11 WHERE id = 1; COMMIT`, `UPDATE t SET u = 10 WHERE id = 2`, false},
		{"TRUNCATE", `UPDATE t SET u = 10 WHERE id = 1`, `TRUNCATE t`, false},
		{"a table that notices", `UPDATE t SET u = 10 WHERE id = 1`, `INSERT INTO noticed VALUES (1)`, false},
		{"a table without a key", `UPDATE t SET u = 10 WHERE id = 1`, `UPDATE bare SET n = 2`, false},
		{"an insert into it", `UPDATE t SET u = 10 WHERE id = 1`, `INSERT INTO bare VALUES (2)`, true},
		{"citext", `UPDATE t SET u = 10 WHERE id = 1`, `INSERT INTO insensitive VALUES ('a')`, false},
		{"a collation that is not deterministic", `UPDATE t SET u = 10 WHERE id = 1`, `INSERT INTO collated VALUES ('a')`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLink(t)
			l.both(`CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v int)`, `INSERT INTO t SELECT g, g FROM generate_series(1, 5) g`,
				`CREATE TABLE noticed (id int PRIMARY KEY)`, `CREATE TABLE bare (n int)`, `ALTER TABLE bare REPLICA IDENTITY FULL`, `INSERT INTO bare VALUES (1)`,
				`CREATE EXTENSION citext`, `CREATE TABLE insensitive (k citext PRIMARY KEY)`,
				`CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`, `CREATE TABLE collated (k text COLLATE loose PRIMARY KEY)`)
			l.onTarget(`CREATE FUNCTION notice() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$`,
				`CREATE TRIGGER notice BEFORE INSERT ON noticed FOR EACH ROW EXECUTE FUNCTION notice()`, `ALTER TABLE noticed ENABLE ALWAYS TRIGGER notice`)
			letGo := l.lineUp(sized(1, 4), c.first, c.second)
			if c.beside {
				l.inParallel("applying", "waiting (1)", "waiting (1)", "idle")
			} else {
				l.inParallel("applying", "waiting (1)", "idle", "idle")
			}
			letGo()
			l.catchUp()
			l.sameTables("t", "bare")
			parallel, replays := l.counters()
			require.Equal(t, map[bool]int64{true: 2, false: 1}[c.beside], parallel)
			require.Zero(t, replays)
			require.Zero(t, l.engine.Status().Replays)
		})
	}
}
