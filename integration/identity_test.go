package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/cluster"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
	"pgapply/internal/source"
	"pgapply/operate"
)

// The tests in this file take one end away and put another in its place, which looks the
// same and is not. That is noticed before the first row, also by an engine that runs, and
// nothing is passed over.

// hosts is a connection string for whichever of the servers accepts writes.
func hosts(database string, servers ...*cluster.Cluster) string {
	addresses := make([]string, len(servers))
	for i, server := range servers {
		addresses[i] = fmt.Sprintf("%s:%d", cluster.Host, server.Port())
	}
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&target_session_attrs=read-write", strings.Join(addresses, ","), database)
}

// backUp copies the files of a server that is stopped for that, and returns what puts them
// back in the same way.
func backUp(t *testing.T, server *cluster.Cluster) (restore func()) {
	t.Helper()
	data := pgtest.Query(t, server.URI("postgres"), `SHOW data_directory`)
	saved := filepath.Join(t.TempDir(), "saved")
	swap := func(from, to string) {
		t.Helper()
		require.NoError(t, server.Stop(cluster.Fast))
		require.NoError(t, os.RemoveAll(to))
		said, err := exec.Command("cp", "-a", from, to).CombinedOutput()
		require.NoError(t, err, "%s", said)
		require.NoError(t, os.RemoveAll(filepath.Join(to, "postmaster.pid")))
		require.NoError(t, server.Restart(t.Context()))
	}
	swap(data, saved)
	return func() { t.Helper(); swap(saved, data) }
}

// keyed makes a table with a row on both ends, and publishes it.
func (l *link) keyed() {
	l.t.Helper()
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE TABLE other (v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
}

// onlyRows proves what the target has.
func (l *link) onlyRows(want string) {
	l.t.Helper()
	require.Equal(l.t, want, pgtest.Query(l.t, l.target, `SELECT string_agg(id::text, ' ' ORDER BY id) FROM t`))
}

const much = `INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 2000)`

// TestPublisherSetBack: its files are those of a while ago, and it writes other things
// where it had written what is applied.
func TestPublisherSetBack(t *testing.T) {
	t.Parallel()
	_, target := pgtest.Shared(t)
	publisher := pgtest.Start(t)
	l := linkOf(t, publisher, target)
	l.keyed()
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	restore := backUp(t, publisher)
	l.onSource(`INSERT INTO t VALUES (2)`, much)
	l.catchUp()
	restore()
	requireClass(t, apply.SlotLost, l.wait(), "the publisher's log ends at", "was set back", "pgapply verify")
	l.onSource(`INSERT INTO t VALUES (3)`)
	requireClass(t, apply.SlotLost, l.run(), "was set back")
	l.onlyRows("1 2")
}

// TestTargetSetBack: its files are those of a while ago, and the publisher has forgotten
// what it had since.
func TestTargetSetBack(t *testing.T) {
	t.Parallel()
	publisher, _ := pgtest.Shared(t)
	target := pgtest.Start(t)
	l := linkOf(t, publisher, target)
	l.keyed()
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	restore := backUp(t, target)
	l.onSource(`INSERT INTO t VALUES (2)`)
	l.catchUp()
	restore()
	requireClass(t, apply.SlotLost, l.wait(), "is confirmed up to", "the target was set back")
	l.onSource(`INSERT INTO t VALUES (3)`)
	requireClass(t, apply.SlotLost, l.run(), "is confirmed up to")
	l.onlyRows("1")
}

// TestPublisherReplaced: behind the same name is another system, also for an engine that
// runs.
func TestPublisherReplaced(t *testing.T) {
	t.Parallel()
	first, second := pgtest.Pair(t)
	_, target := pgtest.Shared(t)
	l := &link{t: t, source: first.URI("postgres"), target: pgtest.Database(t, target)}
	l.name = pgtest.Query(t, l.target, `SELECT current_database()`)
	l.keyed()
	pgtest.Exec(t, second.URI("postgres"), `CREATE TABLE t (id int PRIMARY KEY)`,
		`SELECT pg_create_logical_replication_slot('`+l.name+`', 'pgoutput')`, `INSERT INTO t VALUES (9)`)
	l.start(func(o *apply.Options) { o.Source = hosts("postgres", first, second) })
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	require.NoError(t, first.Stop(cluster.Immediate))
	requireClass(t, apply.Refused, l.wait(), "follows database", "and --source is database")
	pgtest.Exec(t, second.URI("postgres"), `CREATE PUBLICATION p FOR TABLE t`)
	requireClass(t, apply.Refused, l.run(func(o *apply.Options) { o.Source = second.URI("postgres") }), "follows database")
	l.onlyRows("1")
}

// TestTargetReplaced: behind the same name is a database without the subscription. An
// engine that has streamed does not begin anew there.
func TestTargetReplaced(t *testing.T) {
	t.Parallel()
	first, second := pgtest.Pair(t)
	publisher, _ := pgtest.Shared(t)
	l := &link{t: t, source: pgtest.Database(t, publisher), target: first.URI("postgres")}
	l.name = pgtest.Query(t, l.source, `SELECT current_database()`)
	l.keyed()
	pgtest.Exec(t, second.URI("postgres"), `CREATE TABLE t (id int PRIMARY KEY)`)
	l.start(func(o *apply.Options) { o.Target, o.CopyData = hosts("postgres", first, second), true })
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	require.NoError(t, first.Stop(cluster.Immediate))
	requireClass(t, apply.Refused, l.wait(), "is gone from the target, or --target leads to another database")
	require.Equal(t, "0", pgtest.Query(t, second.URI("postgres"), `SELECT count(*) FROM t`))
}

// TestClonedTarget: a copy of the database beside the original has its state, and must not
// go on as if it were that.
func TestClonedTarget(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.keyed()
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	l.stop()
	clone := "clone_" + l.name
	_, server := pgtest.Shared(t)
	administrator := server.URI("postgres")
	original := pgtest.Query(t, l.target, `SELECT current_database()`)
	pgtest.WaitFor(t, administrator, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1`, "0", original)
	pgtest.Exec(t, administrator, `CREATE DATABASE `+clone+` TEMPLATE `+original)
	t.Cleanup(func() { pgtest.Exec(t, administrator, `DROP DATABASE `+clone+` WITH (FORCE)`) })
	requireClass(t, apply.Refused, l.run(func(o *apply.Options) { o.Target = server.URI(clone) }), "a copy", "--keep-slot")
	l.start()
	l.onSource(`INSERT INTO t VALUES (2)`)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
}

// twins are a target and its standby, which both have row 1. The engine goes on with
// whichever accepts writes.
type twins struct {
	*link
	original, twin *cluster.Cluster
	database       string
}

func newTwins(t *testing.T) *twins {
	t.Helper()
	publisher, _ := pgtest.Shared(t)
	s := &twins{original: pgtest.Start(t)}
	s.link = linkOf(t, publisher, s.original)
	s.database = pgtest.Query(t, s.target, `SELECT current_database()`)
	s.keyed()
	s.twin = pgtest.Standby(t, s.original)
	s.start(func(o *apply.Options) { o.Target = hosts(s.database, s.original, s.twin) })
	s.onSource(`INSERT INTO t VALUES (1)`)
	s.catchUp()
	return s
}

// cut keeps the standby from what comes later.
func (s *twins) cut() {
	s.t.Helper()
	there := s.twin.URI("postgres")
	pgtest.WaitFor(s.t, there, `SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, "t", pgtest.Query(s.t, s.target, `SELECT pg_current_wal_flush_lsn()`))
	pgtest.Exec(s.t, there, `ALTER SYSTEM SET primary_conninfo = ''`, `SELECT pg_reload_conf()`)
	pgtest.WaitFor(s.t, s.target, `SELECT count(*) FROM pg_stat_replication`, "0")
}

// failOver puts the standby in the place of the target.
func (s *twins) failOver() {
	s.t.Helper()
	require.NoError(s.t, s.original.Stop(cluster.Immediate))
	require.Equal(s.t, "t", pgtest.Query(s.t, s.twin.URI("postgres"), `SELECT pg_promote()`))
	s.target = s.twin.URI(s.database)
}

// TestTargetFailsOver: what the promoted standby of the target lacks was acknowledged, and
// the publisher does not have it any more.
func TestTargetFailsOver(t *testing.T) {
	t.Parallel()
	s := newTwins(t)
	s.cut()
	s.onSource(`INSERT INTO t VALUES (2)`)
	s.catchUp()
	s.failOver()
	requireClass(t, apply.SlotLost, s.wait(), "is confirmed up to", "a failover to a standby that did not have everything")
	s.onlyRows("1")
}

// TestSynchronousTargetFailsOver: what its synchronous standbys do not have is not
// acknowledged, though apply does not wait for them; so it comes again.
func TestSynchronousTargetFailsOver(t *testing.T) {
	t.Parallel()
	s := newTwins(t)
	s.onTarget(`ALTER SYSTEM SET synchronous_standby_names = '*'`, `SELECT pg_reload_conf()`)
	pgtest.WaitFor(t, s.target, `SELECT sync_state FROM pg_stat_replication`, "sync")
	s.onSource(`INSERT INTO t VALUES (2)`)
	s.catchUp()
	s.cut()
	for row := 3; row < 5; row++ {
		s.onSource(fmt.Sprintf(`INSERT INTO t VALUES (%d)`, row))
		pgtest.WaitFor(t, s.target, `SELECT max(id) FROM t`, fmt.Sprint(row))
	}
	// The rows are there, and that they are is waited for.
	pgtest.WaitFor(t, s.target, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = $1`, "1", "pgapply:"+s.name+":control")
	s.failOver()
	s.catchUp()
	s.onlyRows("1 2 3 4")
	s.stop()
}

// TestTwinOfTheTarget: a copy of the whole server of the target cannot be told from the
// original. Whichever goes on first, the other has a gap from then on, and says so.
func TestTwinOfTheTarget(t *testing.T) {
	t.Parallel()
	s := newTwins(t)
	s.cut()
	require.Equal(t, "t", pgtest.Query(t, s.twin.URI("postgres"), `SELECT pg_promote()`))
	other := &link{t: t, source: s.source, target: s.twin.URI(s.database), name: s.name}
	s.onSource(`INSERT INTO t VALUES (2)`)
	s.catchUp()
	for range 2 { // while the other one runs, and when it does not
		requireClass(t, apply.SlotLost, other.run(), "somebody else used it, such as another copy of the target")
		other.onlyRows("1")
		s.stop() // the second time it has stopped already
	}
	s.start()
	s.onSource(`INSERT INTO t VALUES (3)`)
	s.catchUp()
	s.onlyRows("1 2 3")
}

// TestSlotMovedWhileItWasWaitedFor: somebody reads from the slot when a start has looked at
// it, and moves it before the stream begins.
func TestSlotMovedWhileItWasWaitedFor(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.keyed()
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	l.stop()
	thief, err := source.Connect(t.Context(), source.Options{URI: l.source, ApplicationName: "thief"})
	require.NoError(t, err)
	stolen, err := thief.StartStream(t.Context(), source.StreamOptions{Slot: l.name, Publications: []string{"p"}})
	require.NoError(t, err)
	defer stolen.Close()
	p := l.spawn()
	p.says("waiting: ", "thief")
	l.onSource(`INSERT INTO t VALUES (2)`)
	var end lsn.LSN
	require.NoError(t, end.Scan(pgtest.Query(t, l.source, `SELECT pg_current_wal_flush_lsn()`)))
	stolen.Report(source.Position{Flushed: end, Applied: end}, true)
	pgtest.WaitFor(t, l.source, `SELECT confirmed_flush_lsn >= $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, "t", l.name, end.String())
	require.NoError(t, stolen.Close())
	require.Equal(t, 7, p.exitCode(patience))
	p.says("is confirmed up to")
	l.onlyRows("1")
}

// TestOneWalsender: a publisher with room for one is enough.
func TestOneWalsender(t *testing.T) {
	t.Parallel()
	_, target := pgtest.Shared(t)
	l := linkOf(t, pgtest.Start(t, pgtest.With("max_wal_senders", "1")), target)
	l.keyed()
	for i := range 2 {
		l.start()
		l.onSource(fmt.Sprintf(`INSERT INTO t VALUES (%d)`, i))
		l.catchUp()
		l.same(`SELECT * FROM t ORDER BY id`)
		l.stop()
	}
}

// TestSlotMadeAnewWhilePaused: the process lives, and knows the slot by more than its name.
func TestSlotMadeAnewWhilePaused(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.keyed()
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	ends := operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}
	_, err := operate.Pause(t.Context(), ends, "")
	require.NoError(t, err)
	pgtest.WaitFor(t, l.source, `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, "f", l.name)
	l.onSource(`INSERT INTO t VALUES (2)`, `SELECT pg_drop_replication_slot('`+l.name+`')`, `SELECT pg_create_logical_replication_slot('`+l.name+`', 'pgoutput')`)
	l.onTarget(`UPDATE pgapply.subscription SET enabled = true`)
	requireClass(t, apply.SlotLost, l.wait(), "is confirmed up to", "made anew")
	l.onlyRows("1")

	l.onSource(`SELECT pg_drop_replication_slot('`+l.name+`')`, `SELECT pg_create_logical_replication_slot('`+l.name+`', 'test_decoding')`)
	requireClass(t, apply.SlotLost, l.run(), "another one has its name")
}

// TestSlotBehind: a slot that begins before what is applied sends it again, whatever it is,
// and none of it is applied twice.
func TestSlotBehind(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Pair(t, smallMemory)
	l := linkOf(t, publisher, target)
	l.loadTables()
	two := func(o *apply.Options) { o.TwoPhase = true }
	l.start(two)
	l.stop()
	l.onSource(`SELECT pg_copy_logical_replication_slot('` + l.name + `', 'kept')`)
	l.start(two)
	l.onSource(`INSERT INTO entry SELECT 1, g, repeat('streamed', 20) FROM generate_series(1, 5000) g`, `UPDATE counter SET n = n + 1`,
		`BEGIN; INSERT INTO entry VALUES (2, 1, 'prepared'); PREPARE TRANSACTION 'of `+l.name+`'`, `COMMIT PREPARED 'of `+l.name+`'`,
		`BEGIN; INSERT INTO entry VALUES (2, 2, 'never'); PREPARE TRANSACTION 'of `+l.name+`'`, `ROLLBACK PREPARED 'of `+l.name+`'`)
	l.catchUp()
	l.sameLoad()
	back := func() {
		l.stop()
		l.onSource(`SELECT pg_drop_replication_slot('`+l.name+`')`, `SELECT pg_copy_logical_replication_slot('kept', '`+l.name+`')`)
	}
	back()
	l.start(two)
	l.onSource(`INSERT INTO entry VALUES (3, 1, 'after')`)
	l.catchUp()
	l.sameLoad()
	require.Zero(t, l.engine.Status().Misses)
	require.EqualValues(t, 1, l.engine.Status().Rows.Inserted)

	// While something is prepared, the copy would send it as a whole in the end.
	l.onSource(`BEGIN; INSERT INTO entry VALUES (2, 3, 'prepared'); PREPARE TRANSACTION 'of ` + l.name + `'`)
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_prepared_xacts`, "1")
	back()
	requireClass(t, apply.SlotLost, l.run(two), "is no two-phase one", "cleanup")
	l.onSource(`ROLLBACK PREPARED 'of ` + l.name + `'`)
	l.onTarget(`ROLLBACK PREPARED '` + pgtest.Query(t, l.target, `SELECT gid FROM pg_prepared_xacts`) + `'`)
}

// failing is a standby link whose standby keeps the slot, and is cut off from the primary
// when both have row 1.
func failing(t *testing.T) (s *standbyLink, either func(*apply.Options)) {
	t.Helper()
	s = newStandbyLink(t)
	s.keyed()
	either = func(o *apply.Options) { o.Failover, o.Source = true, hosts(s.name, s.primary, s.standby) }
	s.start(either)
	s.onSource(`INSERT INTO t VALUES (1)`)
	s.caughtUpFrom(s.source, s.source)
	for range 2 { // see TestFailover
		s.onSource(`SELECT pg_log_standby_snapshot()`)
		s.caughtUpFrom(s.source, s.source)
	}
	pgtest.WaitFor(t, s.replica, `SELECT pg_sync_replication_slots(); SELECT failover, synced, temporary FROM pg_replication_slots WHERE slot_name = '`+s.name+`'`, "\nt|t|f")
	pgtest.Exec(t, s.replica, `ALTER SYSTEM SET primary_conninfo = ''`, `SELECT pg_reload_conf()`)
	pgtest.WaitFor(t, s.source, `SELECT count(*) FROM pg_stat_replication WHERE application_name <> $1`, "0", s.name)
	return s, either
}

func (s *standbyLink) promote() {
	s.t.Helper()
	require.NoError(s.t, s.primary.Stop(cluster.Immediate))
	require.Equal(s.t, "t", pgtest.Query(s.t, s.replica, `SELECT pg_promote()`))
	s.source = s.replica
}

// TestFailoverWithoutTheLastRows: the standby that is promoted lacks rows that are applied.
func TestFailoverWithoutTheLastRows(t *testing.T) {
	t.Parallel()
	s, either := failing(t)
	s.onSource(`INSERT INTO t VALUES (2)`)
	s.caughtUpFrom(s.source, s.source)
	s.promote()
	s.onSource(`INSERT INTO t VALUES (3)`, much)
	requireClass(t, apply.SlotLost, s.wait(), "has left timeline 1", "was never on this publisher", "pgapply verify")
	requireClass(t, apply.SlotLost, s.run(either), "has left timeline 1")
	s.onlyRows("1 2")
	checkup, err := operate.Check(t.Context(), s.options(either))
	require.NoError(t, err)
	require.Contains(t, checkup.Text(), "has left timeline 1")
}

// TestFailoverWithoutTheLastAcknowledgement: the standby lacks what had nothing for us, and
// was acknowledged. Where that was, it writes what has.
func TestFailoverWithoutTheLastAcknowledgement(t *testing.T) {
	t.Parallel()
	s, either := failing(t)
	s.onSource(much)
	s.caughtUpFrom(s.source, s.source)
	acknowledged := pgtest.Query(t, s.target, `SELECT ack_lsn FROM pgapply.subscription`)
	s.promote()
	s.onSource(`INSERT INTO t VALUES (2)`)
	require.Equal(t, "t", pgtest.Query(t, s.source, `SELECT pg_current_wal_flush_lsn() < $1::pg_lsn`, acknowledged), "or this test shows nothing")
	pgtest.WaitFor(t, s.target, `SELECT count(*) FROM t`, "2")
	s.caughtUpFrom(s.source, s.source)
	s.stop()
	s.start(either)
	s.onSource(`INSERT INTO t VALUES (3)`)
	s.caughtUpFrom(s.source, s.source)
	s.onlyRows("1 2 3")
	s.stop()

	// The old primary knows nothing of that.
	require.NoError(t, s.primary.Restart(t.Context()))
	requireClass(t, apply.Refused, s.run(func(o *apply.Options) { o.Source = s.primary.URI(s.name) }), "the old primary is back", "timeline 2")
	s.onlyRows("1 2 3")
}
