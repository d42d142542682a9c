package integration

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// The tests in this file say what becomes of groups that were applied ahead of their turn,
// and ought not to have been, or are cut off.

// turnLink has table t with rows 1 to 5, and a table whose only row tests lock.
func turnLink(t *testing.T) *link {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE)`, `INSERT INTO t SELECT g, 10 * g FROM generate_series(1, 5) g`,
		`CREATE TABLE third (id int PRIMARY KEY)`, `INSERT INTO third VALUES (1)`)
	return l
}

// TestConflictWithinAGroupAhead: a group on a worker meets what it ought not to. It is
// applied at its turn, where the conflict is resolved and recorded once, and those behind
// it stay as they are.
func TestConflictWithinAGroupAhead(t *testing.T) {
	t.Parallel()
	l := turnLink(t)
	l.onTarget(`INSERT INTO t VALUES (7, 0)`)
	letGo := l.lineUp(func(o *apply.Options) { sized(3, 4)(o); onConflict("insert_exists=apply_remote")(o) },
		`UPDATE t SET u = 11 WHERE id = 1`, `DELETE FROM t WHERE id = 5`, // with the first one
		`UPDATE t SET u = 21 WHERE id = 2`, `INSERT INTO t VALUES (7, 71)`, `UPDATE t SET u = 22 WHERE id = 2`,
		`UPDATE t SET u = 31 WHERE id = 3`, `INSERT INTO t VALUES (8, 81)`, `UPDATE t SET u = 32 WHERE id = 3`)
	l.inParallel("applying", "idle", "waiting (3)", "idle")
	require.Empty(t, l.recorded(), "nothing is decided out of turn")
	letGo()
	l.catchUp()
	l.sameTables("t")
	require.Contains(t, l.recorded(), "insert_exists|t|apply_remote|")
	require.NotContains(t, l.recorded(), "\n")
	parallel, replays := l.counters()
	require.Equal(t, int64(1), parallel)
	require.Equal(t, int64(1), replays)
	require.Zero(t, l.engine.Status().Retries)
}

// TestErrorOfAGroupAhead: an error stops the stream where it has its turn, after those
// before it and before those behind it, and not earlier.
func TestErrorOfAGroupAhead(t *testing.T) {
	t.Parallel()
	l := turnLink(t)
	l.onTarget(`ALTER TABLE t ADD CONSTRAINT small CHECK (u < 1000)`)
	letGo := l.lineUp(sized(1, 8), `UPDATE t SET u = 11 WHERE id = 1`, `UPDATE t SET u = 1021 WHERE id = 2`, `UPDATE t SET u = 31 WHERE id = 3`)
	l.inParallel("applying", "waiting (1)", "idle", "waiting (1)", "idle", "idle", "idle", "idle")
	require.Empty(t, l.engine.Status().LastError)
	letGo()
	status := l.failure("UPDATE on public.t", "small")
	require.Equal(t, "11|20|30", pgtest.Query(t, l.target, `SELECT string_agg(u::text, '|' ORDER BY id) FROM t WHERE id < 4`))
	l.stop()
	l.onTarget(`UPDATE pgapply.subscription SET skip_lsn = '` + finishedAt(t, status.LastError) + `'`)
	l.start(sized(1, 8))
	l.catchUp()
	require.Equal(t, "11|20|31", pgtest.Query(t, l.target, `SELECT string_agg(u::text, '|' ORDER BY id) FROM t WHERE id < 4`))
}

// TestGroupAheadBalances: a key that must be absent and is present does not make up for
// one that must be present and is absent.
func TestGroupAheadBalances(t *testing.T) {
	t.Parallel()
	l := turnLink(t)
	l.onTarget(`INSERT INTO t VALUES (7, 0)`, `DELETE FROM t WHERE id = 2`)
	letGo := l.lineUp(func(o *apply.Options) { sized(4, 4)(o); onConflict("insert_exists=apply_remote")(o) },
		`UPDATE t SET u = 11 WHERE id = 1`, `UPDATE t SET u = 51 WHERE id = 5`, `UPDATE t SET u = 12 WHERE id = 1`, // with the first one
		`INSERT INTO t VALUES (7, 71)`, `DELETE FROM t WHERE id = 7`, `UPDATE t SET u = 21 WHERE id = 2`, `UPDATE t SET u = 31 WHERE id = 3`)
	l.inParallel("applying", "idle", "idle", "idle")
	letGo()
	l.catchUp()
	require.Equal(t, "1|12\n3|31\n4|40\n5|51", pgtest.Query(t, l.target, `SELECT * FROM t ORDER BY id`))
	recorded := l.recorded()
	require.Contains(t, recorded, "insert_exists|t|apply_remote|")
	require.Contains(t, recorded, "update_missing|t|")
}

// TestFreedAhead: a unique value that an earlier group in line frees, and has not yet, or
// has and is not committed.
func TestFreedAhead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, first, second string
		waiting             []string
		parallel            int64
	}{
		{
			"not yet", `BEGIN; DELETE FROM third; DELETE FROM t WHERE id = 1; COMMIT`, `INSERT INTO t VALUES (7, 10)`,
			[]string{"applying", "applying (1)", "idle", "idle"},
			1,
		},
		{
			"not committed", `DELETE FROM t WHERE id = 1`, `BEGIN; DELETE FROM third; INSERT INTO t VALUES (7, 10); COMMIT`,
			[]string{"applying", "waiting (1)", "applying (1)", "idle"},
			2,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := turnLink(t)
			holder := pgtest.Open(t, l.target)
			holder.Exec(`BEGIN`, `SELECT FROM third FOR UPDATE`)
			letGo := l.lineUp(func(o *apply.Options) { sized(1, 4)(o); o.MaxBatch = 0 }, c.first, c.second)
			l.inParallel(c.waiting...)
			holder.Exec(`ROLLBACK`)
			if c.parallel == 2 { // the second one waits for the first one's commit
				pgtest.WaitFor(t, l.target, `SELECT wait_event_type || (query ~ 'INSERT') FROM pg_stat_activity WHERE application_name = $1`, "Locktrue", l.name+":w2")
			}
			letGo()
			l.catchUp()
			l.sameTables("t", "third")
			parallel, replays := l.counters()
			require.Equal(t, c.parallel, parallel)
			require.Equal(t, 2-c.parallel, replays)
			require.Zero(t, l.engine.Status().Replays)
		})
	}
}

// TestGroupAheadInTheWay: a later group holds what an earlier one comes to need, which no
// key shows. It gives way.
func TestGroupAheadInTheWay(t *testing.T) {
	t.Parallel()
	l := turnLink(t)
	l.onTarget(`CREATE UNIQUE INDEX ON t (abs(u))`)
	var yields atomic.Int64
	holder := pgtest.Open(t, l.target)
	holder.Exec(`BEGIN`, `SELECT FROM third FOR UPDATE`)
	letGo := l.lineUp(func(o *apply.Options) {
		sized(1, 4)(o)
		o.MaxBatch = 0
		o.Log = o.Log.WithOptions(zap.Hooks(func(e zapcore.Entry) error {
			if strings.Contains(e.Message, "stands in the way of an earlier one") {
				yields.Add(1)
			}
			return nil
		}))
	}, `BEGIN; DELETE FROM third; INSERT INTO t VALUES (7, 70); UPDATE t SET u = 71 WHERE id = 7; COMMIT`, `INSERT INTO t VALUES (8, -70)`, `UPDATE t SET u = 41 WHERE id = 4`)
	l.inParallel("applying", "applying (1)", "waiting (1)", "waiting (1)")
	holder.Exec(`ROLLBACK`)
	l.blocked(2) // the head, and the first worker behind the second
	letGo()
	l.catchUp()
	l.sameTables("t", "third")
	require.NotZero(t, yields.Load())
	parallel, replays := l.counters()
	require.Equal(t, int64(2), parallel)
	require.Equal(t, int64(1), replays)
	require.Zero(t, l.engine.Status().Retries)
}

// TestWorkerLostWithAGroup: the backend of a worker ends while its group waits for its
// turn, or while it is applied, or that of the head. Nothing is lost or done twice.
func TestWorkerLostWithAGroup(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{":w1", ":w2", ":w0"} {
		t.Run(lost[1:], func(t *testing.T) {
			t.Parallel()
			l := turnLink(t)
			holder := pgtest.Open(t, l.target)
			holder.Exec(`BEGIN`, `SELECT FROM third FOR UPDATE`)
			letGo := l.lineUp(sized(1, 3), `INSERT INTO t VALUES (6, 60)`, `DELETE FROM third`, `UPDATE t SET u = u + 1 WHERE id = 1`, `UPDATE t SET u = u + 1 WHERE id = 1`)
			l.inParallel("applying", "waiting (1)", "applying (1)")
			pgtest.Exec(t, l.target, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '`+l.name+lost+`'`)
			letGo()
			holder.Exec(`ROLLBACK`)
			l.awaitRetries(1)
			l.catchUp()
			l.sameTables("t", "third")
			require.Empty(t, l.recorded())
		})
	}
}

// TestStopWithGroupsAhead: a stop rolls back what has not had its turn, and the next start
// applies it.
func TestStopWithGroupsAhead(t *testing.T) {
	t.Parallel()
	l := turnLink(t)
	letGo := l.lineUp(sized(1, 4), `UPDATE t SET u = 11 WHERE id = 1`, `UPDATE t SET u = 21 WHERE id = 2`, `UPDATE t SET u = 31 WHERE id = 3`)
	l.inParallel("applying", "waiting (1)", "waiting (1)", "waiting (1)")
	l.cancel()
	letGo()
	require.NoError(t, l.wait())
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) `+workerQuery))
	require.Equal(t, "10|20|30|40|50", pgtest.Query(t, l.target, `SELECT string_agg(u::text, '|' ORDER BY id) FROM t`))
	l.start(sized(1, 4))
	l.catchUp()
	l.sameTables("t", "second")
}

// TestTriggerInMidRun: a trigger that sees replicated changes is enabled while groups run
// beside each other on its table. From there on it sees them in order.
func TestTriggerInMidRun(t *testing.T) {
	t.Parallel()
	l := turnLink(t)
	l.onTarget(`CREATE TABLE seen (id serial, t int, rows int)`,
		`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen (t, rows) VALUES (NEW.id, (SELECT count(*) FROM public.t)); RETURN NULL; END $$`,
		`CREATE TRIGGER see AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION see()`)
	inserts := []string{`INSERT INTO t VALUES (6, 60)`, `INSERT INTO t VALUES (7, 70)`, `INSERT INTO t VALUES (8, 80)`}
	l.lineUp(sized(1, 4), inserts...)()
	l.catchUp()
	before, _ := l.counters()
	require.Equal(t, int64(3), before, "all sessions know the table")
	l.onTarget(`ALTER TABLE t ENABLE ALWAYS TRIGGER see`)
	inserts = []string{`INSERT INTO t VALUES (9, 90)`, `INSERT INTO t VALUES (10, 100)`, `INSERT INTO t VALUES (11, 110)`, `INSERT INTO t VALUES (12, 120)`}
	l.lineUp(sized(1, 4), inserts...)()
	l.catchUp()
	l.sameTables("t")
	require.Equal(t, "9|9\n10|10\n11|11\n12|12", pgtest.Query(t, l.target, `SELECT t, rows FROM seen ORDER BY id`))
	l.lineUp(sized(1, 4), `INSERT INTO t VALUES (13, 130)`, `INSERT INTO t VALUES (14, 140)`)()
	l.catchUp()
	after, replays := l.counters()
	require.Equal(t, before, after)
	inserts = nil
	for i := range 20 {
		inserts = append(inserts, fmt.Sprintf(`INSERT INTO t VALUES (%d, %d)`, 20+i, 200+i))
	}
	l.lineUp(sized(1, 4), inserts...)()
	l.catchUp()
	after, noMore := l.counters()
	require.Equal(t, before, after)
	require.Equal(t, replays, noMore, "it is a barrier now")
}

// TestEndWithGroupsAhead: a run that is to end at a position applies all before it by as
// many workers as there are.
func TestEndWithGroupsAhead(t *testing.T) {
	t.Parallel()
	l := turnLink(t)
	l.onSource(`CREATE PUBLICATION p FOR ALL TABLES`)
	var workload []string
	for range 40 {
		workload = append(workload, `UPDATE t SET u = -u WHERE id = 1`, `UPDATE t SET u = u + 1 WHERE id = 5`, `INSERT INTO third SELECT max(id) + 1 FROM third`)
	}
	l.backlog(workload...)
	require.NoError(t, l.run(sized(2, 8), func(o *apply.Options) { o.EndAtCurrent = true }))
	l.sameTables("t", "third")
	require.Zero(t, l.engine.Status().Replays)
}
