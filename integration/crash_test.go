package integration

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// TestKillPgapply: whenever it is killed, each change reaches the target once.
func TestKillPgapply(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	l.killPgapply(20)
}

func (l *link) killPgapply(few int) {
	t := l.t
	started := time.Now()
	w := l.startLoad(4)
	p := l.spawn()
	l.streams(p)
	lock := session(t, l.target)
	again := func() {
		p.alive()
		p.kill()
		p.untroubled()
		p = l.spawn()
	}
	kills := crashes(t, few)
	for i := range kills {
		w.issue(60)
		switch i % 4 {
		case 0, 1: // after some work
			l.awaitSome(w)
			again()
		case 2: // in a transaction on the target, which its backend may still commit
			lock(`BEGIN; LOCK TABLE counter IN EXCLUSIVE MODE`)
			l.awaitBlocked()
			again()
			lock(`ROLLBACK`)
		case 3: // while it starts
			again()
			pgtest.WaitFor(t, l.target, `SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name LIKE $1`, "t",
				[]string{"pgapply:" + l.name + ":control", l.name + ":w0"}[rand.IntN(2)])
			again()
			kills++
		}
	}
	w.finish()
	l.catchUp()
	l.sameLoad()
	p.stop()
	p.untroubled()
	t.Logf("%d kills, %d rows in %d units, %d of them large, in %s", kills,
		w.rows.Load(), w.issued, w.streamed.Load(), time.Since(started).Round(time.Millisecond))
}

// TestKillTarget: a target that crashes loses commits which it had confirmed, since
// they do not wait for its disk. They are applied again, and nothing is twice.
func TestKillTarget(t *testing.T) {
	t.Parallel()
	l, target := crashing(t)
	l.killTarget(target, 5)
}

// crashing is a link whose target is to be killed.
func crashing(t *testing.T) (*link, *cluster.Cluster) {
	publisher, _ := pgtest.Shared(t)
	// The longer the target takes to write its log, the more it loses.
	target := pgtest.Start(t, pgtest.Durable(), pgtest.With("wal_writer_delay", "2s"), pgtest.With("wal_writer_flush_after", "64MB"))
	l := linkOf(t, publisher, target)
	l.loadTables()
	return l, target
}

func (l *link) killTarget(target *cluster.Cluster, few int) {
	t := l.t
	started := time.Now()
	w := l.startLoad(4)
	p := l.spawn()
	l.streams(p)
	lost := 0
	kills := crashes(t, few)
	for i := range kills {
		w.issue(60)
		l.awaitSome(w)
		// Every other time the program survives the target and has to find out what
		// became of what it sent; with it gone one can see what the target has lost.
		both := i%2 == 1
		if both {
			p.kill()
		}
		before := done(t, l.target)
		if i%3 == 2 { // its backends may go on for a moment, and commit
			require.NoError(t, target.KillPostmaster())
		} else {
			require.NoError(t, target.Kill())
		}
		require.NoError(t, target.Restart(t.Context()))
		if both {
			lost += before - done(t, l.target)
			p = l.spawn()
		}
		p.alive()
	}
	w.finish()
	l.catchUp()
	l.sameLoad()
	p.alive()
	require.NotContains(t, p.stderr.String(), "conflict")
	p.stop()
	t.Logf("%d kills of the target, %d committed units lost by it and applied again, %d rows in %d units, %d of them large, in %s", kills, lost,
		w.rows.Load(), w.issued, w.streamed.Load(), time.Since(started).Round(time.Millisecond))
}

// TestKillPublisher: the program outlives its publisher and goes on with it.
func TestKillPublisher(t *testing.T) {
	t.Parallel()
	_, target := pgtest.Shared(t)
	publisher := pgtest.Start(t, pgtest.Durable())
	l := linkOf(t, publisher, target)
	l.loadTables()
	started := time.Now()
	w := l.startLoad(4)
	p := l.spawn()
	l.streams(p)
	kills := crashes(t, 3)
	for range kills {
		w.issue(60)
		l.awaitSome(w)
		w.publisherDown()
		require.NoError(t, publisher.Kill())
		require.NoError(t, publisher.Restart(t.Context()))
		w.publisherUp()
		p.alive()
	}
	w.finish()
	l.catchUp()
	l.sameLoad()
	p.alive()
	require.NotContains(t, p.stderr.String(), "conflict")
	p.stop()
	t.Logf("%d kills of the publisher, %d rows in %d units, %d of them large, in %s", kills,
		w.rows.Load(), w.issued, w.streamed.Load(), time.Since(started).Round(time.Millisecond))
}

// TestKillTwins: two subscriptions of one name, into two databases of one server,
// have nothing in common: each goes on while the other is killed and comes back.
func TestKillTwins(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Shared(t)
	l := linkOf(t, publisher, target)
	l.loadTables()
	twin := &link{t: t, source: l.source, target: pgtest.Database(t, target), name: l.name}
	twin.onTarget(
		`CREATE TABLE entry (writer int, number int, text text)`,
		`CREATE TABLE counter (id int PRIMARY KEY, n bigint NOT NULL)`,
		`INSERT INTO counter SELECT g, 0 FROM generate_series(0, 7) g`)
	started := time.Now()
	w := l.startLoad(4)
	twins := []*link{l, twin}
	slots := []string{l.name + "_a", l.name + "_b"}
	run := func(i int) *process { return twins[i].spawn("--slot", slots[i]) }
	processes := []*process{run(0), run(1)}
	for _, p := range processes {
		p.says("streaming")
	}
	kills := crashes(t, 10)
	for i := range kills {
		w.issue(30)
		twins[i%2].awaitSome(w)
		processes[i%2].alive()
		processes[i%2].kill()
		processes[i%2].untroubled()
		processes[i%2] = run(i % 2)
	}
	w.finish()
	for i, each := range twins {
		each.caughtUp(slots[i])
		each.sameLoad()
		processes[i].stop()
		processes[i].untroubled()
	}
	t.Logf("%d kills of two subscriptions in turn, %d rows in %d units, %d of them large, in %s", kills,
		w.rows.Load(), w.issued, w.streamed.Load(), time.Since(started).Round(time.Millisecond))
}

// TestKillWhileSlotIsCreated: a slot whose creation was interrupted, before or after
// it came into being, is made anew, and no other is left behind.
func TestKillWhileSlotIsCreated(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	running := session(t, l.source)
	running(`BEGIN; INSERT INTO counter VALUES (100, 0); SELECT pg_current_wal_insert_lsn()`)
	for range 3 {
		p := l.spawn()
		// The slot appears at once, and cannot be used before the transaction ends.
		pgtest.WaitFor(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, "1", l.name)
		p.kill()
	}
	p := l.spawn()
	pgtest.WaitFor(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, "1", l.name)
	pgtest.WaitFor(t, l.target, `SELECT status ->> 'state' FROM pgapply.runner WHERE status ->> 'waiting_for' LIKE '%what writes on the publisher has ended: process %idle in transaction%pg_terminate_backend%'`, "waiting")
	running(`ROLLBACK`)
	l.streams(p)
	l.onSource(`INSERT INTO entry VALUES (1, 1, 'x')`, `UPDATE counter SET n = 1`)
	l.catchUp()
	l.sameLoad()
	p.stop()
	require.Equal(t, "1", pgtest.Query(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`))
}

// linkOf makes two fresh databases on given servers.
func linkOf(t *testing.T, publisher, target *cluster.Cluster) *link {
	l := &link{t: t, source: pgtest.Database(t, publisher), target: pgtest.Database(t, target)}
	l.name = pgtest.Query(t, l.source, `SELECT current_database()`)
	return l
}

// caughtUp is catchUp for a slot with another name than the subscription's.
func (l *link) caughtUp(slot string) {
	l.t.Helper()
	position := pgtest.Query(l.t, l.source, `SELECT pg_current_wal_flush_lsn()`)
	pgtest.WaitFor(l.t, l.source,
		`SELECT confirmed_flush_lsn >= $1::pg_lsn AND active FROM pg_replication_slots WHERE slot_name = $2`, "t", position, slot)
}

// awaitSome waits until the target has done a random part of what was issued.
func (l *link) awaitSome(w *load) {
	l.t.Helper()
	n := done(l.t, l.target)
	awaitDone(l.t, l.target, n+rand.IntN(max(1, w.issued-n)))
}

// awaitBlocked waits until a session that applies waits for a lock.
func (l *link) awaitBlocked() {
	l.t.Helper()
	pgtest.WaitFor(l.t, l.target, `SELECT count(*) > 0 FROM pg_stat_activity WHERE starts_with(application_name, $1) AND wait_event_type = 'Lock'`, "t", l.name+":w")
}
