package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// TestPublisherStops: a publisher that shuts down does not wait for us for long, and
// the engine goes on with it when it is back.
func TestPublisherStops(t *testing.T) {
	t.Parallel()
	_, target := pgtest.Shared(t)
	publisher := pgtest.Start(t)
	l := linkOf(t, publisher, target)
	l.loadTables()
	l.start()
	w := l.startLoad(2)
	// While nothing happens, then twice under load.
	for _, units := range []int{0, 200, 200} {
		w.issue(units)
		l.awaitSome(w)
		w.publisherDown()
		began := time.Now()
		stopFast(t, publisher, 5*time.Second)
		took := time.Since(began)
		require.NoError(t, publisher.Restart(t.Context()))
		w.publisherUp()
		pgtest.WaitFor(t, l.source, `SELECT state FROM pg_stat_replication WHERE application_name = $1`, "streaming", l.name)
		t.Logf("the publisher stopped within %s", took.Round(time.Millisecond))
	}
	w.finish()
	l.catchUp()
	l.sameLoad()
	require.Zero(t, l.engine.Status().Misses)
	l.stop()
}

// stopFast stops a server in mode fast and fails if that takes longer than limit.
func stopFast(t *testing.T, server *cluster.Cluster, limit time.Duration) {
	t.Helper()
	stopped := make(chan error, 1)
	go func() { stopped <- server.Stop(cluster.Fast) }()
	select {
	case err := <-stopped:
		require.NoError(t, err)
	case <-time.After(limit):
		t.Errorf("the server did not stop within %s", limit)
		require.NoError(t, <-stopped)
	}
}

// TestTargetRestarts: a target that is restarted in the middle of a transaction has
// it in the end, once.
func TestTargetRestarts(t *testing.T) {
	t.Parallel()
	publisher, _ := pgtest.Shared(t)
	target := pgtest.Start(t)
	l := linkOf(t, publisher, target)
	l.loadTables()
	l.start()
	w := l.startLoad(2)
	for range 2 {
		lock := session(t, l.target)
		lock(`BEGIN; LOCK TABLE counter IN EXCLUSIVE MODE`)
		w.issue(40)
		l.awaitBlocked()
		require.NoError(t, target.Restart(t.Context()))
		awaitDone(t, l.target, w.issued)
	}
	w.finish()
	l.catchUp()
	l.sameLoad()
	require.Zero(t, l.engine.Status().Misses)
	l.stop()
}

// TestTakeOver: a second runner of a subscription waits, says for whom, and takes
// over when the first is gone, whichever way it goes.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	w := l.startLoad(2)
	first := l.spawn()
	l.streams(first)
	second := l.spawn()
	second.says("waiting: ", "is run by another process")
	w.issue(30)
	l.awaitSome(w)
	first.kill()
	second.says("streaming")
	third := l.spawn()
	third.says("waiting: ", "is run by another process")
	w.issue(30)
	l.awaitSome(w)
	second.stop()
	third.says("streaming")
	w.finish()
	l.catchUp()
	l.sameLoad()
	third.stop()
}

// TestTakeOverFromTheDead: the backend of a killed runner that waits for a lock
// notices that its client is gone, and gives the origin to the next one.
func TestTakeOverFromTheDead(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	first := l.spawn()
	l.streams(first)
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE counter IN EXCLUSIVE MODE`)
	l.onSource(`UPDATE counter SET n = n + 1`)
	l.awaitBlocked()
	backend := l.applyBackend()
	first.kill()
	second := l.spawn()
	pgtest.WaitFor(t, l.target, `SELECT pid <> $2 AND wait_event_type = 'Lock' FROM pg_stat_activity WHERE application_name = $1`, "t", l.name+":w0", backend)
	lock(`ROLLBACK`)
	l.catchUp()
	l.same(`SELECT * FROM counter ORDER BY id`)
	second.stop()
}

// applyBackend is the pid of the apply session's backend on the target.
func (l *link) applyBackend() string {
	l.t.Helper()
	return pgtest.Query(l.t, l.target, `SELECT pid FROM pg_stat_activity WHERE application_name = $1`, l.name+":w0")
}

// TestStopWhileBlocked: SIGTERM is obeyed also while a transaction waits for a lock
// on the target. It is rolled back, and its backend does not wait on.
func TestStopWhileBlocked(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	p := l.spawn()
	l.streams(p)
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE counter IN EXCLUSIVE MODE`)
	l.onSource(`INSERT INTO entry VALUES (1, 1, 'x'); UPDATE counter SET n = n + 1`)
	l.awaitBlocked()
	began := time.Now()
	p.terminate()
	require.Zero(t, p.exitCode(15*time.Second))
	t.Logf("stopped within %s", time.Since(began).Round(time.Millisecond))
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`, "0", l.name+":w0")
	lock(`ROLLBACK`)
	require.Equal(t, "0|0", pgtest.Query(t, l.target, `SELECT (SELECT count(*) FROM entry), (SELECT sum(n) FROM counter)`))

	p = l.spawn()
	l.streams(p)
	l.catchUp()
	l.sameLoad()
	p.stop()
}

// TestRestartBesideALock: a table that a transaction on the publisher has locked
// exclusively keeps no engine from going on.
func TestRestartBesideALock(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE t (a int PRIMARY KEY)`, `CREATE TABLE locked (a int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t, locked`)
	l.start()
	l.stop()
	holder, err := pgconn.Connect(t.Context(), l.source)
	require.NoError(t, err)
	defer holder.Close(context.Background())
	_, err = holder.Exec(t.Context(), `BEGIN; LOCK TABLE locked`).ReadAll()
	require.NoError(t, err)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	l.same(`SELECT * FROM t`)
	// One that is new waits, since nobody says whether it is published.
	l.stop()
	l.both(`CREATE TABLE added (a int PRIMARY KEY)`)
	l.onSource(`ALTER PUBLICATION p ADD TABLE added`)
	l.start(func(o *apply.Options) { o.OnError = "stop" })
	l.onSource(`INSERT INTO added VALUES (3)`)
	l.failure("locked on the publisher")
	_, err = holder.Exec(t.Context(), `INSERT INTO locked VALUES (2); COMMIT`).ReadAll()
	require.NoError(t, err)
	l.catchUp()
	l.same(`SELECT * FROM locked, added`)
	l.stop()
}

// TestDecodedAsItWas: changes that wait in the slot while the publisher's table gets
// another definition are those of the old one.
func TestDecodedAsItWas(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE t (a int PRIMARY KEY, b text, c int)`)
	l.onTarget(`ALTER TABLE t ALTER c TYPE text`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.stop()
	l.onSource(`INSERT INTO t VALUES (1, 'dropped since', 25)`,
		`ALTER TABLE t DROP COLUMN b`, `INSERT INTO t VALUES (2, 26)`,
		`ALTER TABLE t ALTER c TYPE text`, `INSERT INTO t VALUES (3, 'word')`)
	l.start()
	l.catchUp()
	require.Equal(t, "1|dropped since|25\n2||26\n3||word", pgtest.Query(t, l.target, `SELECT * FROM t ORDER BY a`))
	l.stop()
}

// TestPublicationDropped: what was changed while the publication did not exist cannot
// be sent. From 18 on the publisher leaves it out with a warning; here that stops.
func TestPublicationDropped(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`, `CREATE PUBLICATION q FOR TABLE t`)
	l.start(func(o *apply.Options) { o.Publications = []string{"p", "q"} })
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	l.stop()
	l.onSource(`DROP PUBLICATION p`, `INSERT INTO t VALUES (2)`, `CREATE PUBLICATION p FOR TABLE t`, `INSERT INTO t VALUES (3)`)
	l.launch(l.options(func(o *apply.Options) { o.Publications = []string{"p", "q"} }))
	l.failure("publication", "start without it in --publication")
	require.Equal(t, "1", pgtest.Query(t, l.target, `SELECT * FROM t`))
	l.stop()
	l.start(func(o *apply.Options) { o.Publications = []string{"q"} })
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
}
