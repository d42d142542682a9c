package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// proxied puts a proxy between the engine and the target; the test itself goes
// around it.
func (l *link) proxied() (*faultnet.Proxy, func(*apply.Options)) {
	l.t.Helper()
	proxy, uri, err := faultnet.ListenURI(l.target)
	require.NoError(l.t, err)
	l.t.Cleanup(proxy.Close)
	return proxy, func(o *apply.Options) { o.Target = uri }
}

func smallGroups(o *apply.Options) { o.MaxGroup.Transactions = 5 }

// TestCutAtCommit: a connection that breaks around a COMMIT leaves open whether it
// was done. The origin knows.
func TestCutAtCommit(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	proxy, through := l.proxied()
	w := l.startLoad(2)
	for _, c := range []struct {
		name string
		cut  func(n int) *faultnet.Fault
	}{
		{"before", proxy.CutBeforeCommit},
		{"after", proxy.CutAfterCommit},
		{"reply", proxy.CutCommitReply},
	} {
		for _, n := range []int{1, 4} {
			// A new engine, whose first pause after an error is short.
			l.start(through, smallGroups)
			fault := c.cut(n)
			w.issue(40)
			<-fault.Fired()
			awaitDone(t, l.target, w.issued)
			require.NotZero(t, l.engine.Status().Retries, c.name)
			require.Zero(t, l.engine.Status().Misses, c.name)
			l.catchUp()
			l.sameLoad()
			l.stop()
		}
	}
	t.Logf("6 connections cut around COMMIT, %d rows", w.rows.Load())
}

// TestTerminatedBackends: the engine goes on by itself when an administrator ends
// its session in the middle of a transaction.
func TestTerminatedBackends(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	l.start(smallGroups)
	w := l.startLoad(2)
	lock := session(t, l.target)
	started := time.Now()
	const terminations = 5
	for i := range terminations {
		lock(`BEGIN; LOCK TABLE counter IN EXCLUSIVE MODE`)
		w.issue(30)
		l.awaitBlocked()
		require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(application_name, $1) AND wait_event_type = 'Lock' LIMIT 1`, l.name+":w"))
		l.awaitRetries(i + 1)
		lock(`ROLLBACK`)
		awaitDone(t, l.target, w.issued-10)
	}
	w.finish()
	l.catchUp()
	l.sameLoad()
	require.Zero(t, l.engine.Status().Misses)
	l.stop()
	t.Logf("%d sessions terminated, %d rows, in %s", terminations, w.rows.Load(), time.Since(started).Round(time.Millisecond))
}

// TestTerminatedWalsender: a stream that breaks off, also in the middle of a large
// transaction, begins again where the target stands.
func TestTerminatedWalsender(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	l.start(smallGroups)
	w := l.startLoad(2)
	const terminations = 3
	for i := range terminations {
		w.issue(100)
		l.awaitSome(w)
		pgtest.WaitFor(t, l.source, `SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name = $1`, "t", l.name)
		l.awaitRetries(i + 1)
	}
	w.finish()
	l.catchUp()
	l.sameLoad()
	require.Zero(t, l.engine.Status().Misses)
	l.stop()
}

// awaitRetries waits until the engine has started over n times.
func (l *link) awaitRetries(n int) {
	l.t.Helper()
	require.Eventually(l.t, func() bool { return l.engine.Status().Retries >= int64(n) }, patience, 10*time.Millisecond)
}

// TestSlowTarget: a target that is far away, or silent for a while, delays and
// nothing else; the publisher hears from us all the time.
func TestSlowTarget(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.loadTables()
	// It asks us to reply within four seconds.
	l.onSource(`ALTER DATABASE ` + l.name + ` SET wal_sender_timeout = '4s'`)
	proxy, through := l.proxied()
	l.start(through, smallGroups)
	w := l.startLoad(2)

	proxy.Delay(15 * time.Millisecond)
	w.issue(30)
	awaitDone(t, l.target, w.issued)
	proxy.Delay(0)

	w.issue(30)
	l.awaitSome(w)
	proxy.Stall(faultnet.BothWays)
	w.issue(30)
	awaitDone(t, l.source, w.issued)
	stalled := pgtest.Query(t, l.source, `SELECT clock_timestamp()`)
	pgtest.WaitFor(t, l.source, `SELECT reply_time > $1::timestamptz FROM pg_stat_replication WHERE application_name = $2`, "t", stalled, l.name)
	proxy.Resume(faultnet.BothWays)
	w.finish()
	l.catchUp()
	l.sameLoad()
	require.Zero(t, l.engine.Status().Retries)
	l.stop()
}
