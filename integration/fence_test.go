package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply/state"
	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// Fencing: whatever is left of an earlier runner, or runs beside, each transaction is
// applied once.

// orphaned kills a runner whose sessions on the target live on, since their connections
// are frozen: the one that holds the runner's lock ended, the ones that write did not.
// They have transactions open, and are blocked or not.
func (s *stage) orphaned(p *process, proxy *faultnet.Proxy) {
	s.t.Helper()
	proxy.Stall(faultnet.BothWays)
	p.kill()
	s.onTarget(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgapply:` + s.name + `:control'`)
	require.NotEqual(s.t, "0", pgtest.Query(s.t, s.target, `SELECT count(*) `+workerQuery))
}

// awaitOrphans waits until a new engine waits for the sessions of an earlier runner.
func (l *link) awaitOrphans() {
	l.t.Helper()
	l.launch(l.options())
	require.Eventually(l.t, func() bool {
		status := l.engine.Status()
		return status.Phase == state.Waiting && containsAll(status.WaitingFor, []string{"a session of an earlier runner", l.name + ":w0"})
	}, patience, 10*time.Millisecond)
}

// TestOrphansAreWaitedFor: as long as a session of an earlier runner lives, a later one
// writes nothing, and reads no position either: the COMMIT that the old one was at when
// its client died counts.
func TestOrphansAreWaitedFor(t *testing.T) {
	t.Parallel()
	s := ledger(newLink(t))
	// The trigger is queued again by each of its own, so that some of it is left for COMMIT.
	s.onTarget(`CREATE TABLE queue (n int)`,
		`CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			SET CONSTRAINTS ALL DEFERRED;
			IF TG_TABLE_NAME = 'counter' THEN INSERT INTO public.queue VALUES (1); ELSE PERFORM pg_advisory_xact_lock_shared(4711); END IF; RETURN NULL; END $$`,
		`CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON counter DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
			ALTER TABLE counter ENABLE ALWAYS TRIGGER late`,
		`CREATE CONSTRAINT TRIGGER late AFTER INSERT ON queue DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
			ALTER TABLE queue ENABLE ALWAYS TRIGGER late`)
	proxy, through := s.proxied()
	via := *s.link
	via.target = s.options(through).Target
	for _, last := range []struct{ commit, session string }{
		{`b: COMMIT`, "w2"},
		{`-: UPDATE counter SET n = n + 1 WHERE id = 4`, "w0"},
	} {
		p := via.spawn()
		s.streams(p)
		s.begins()
		s.catchUp() // what has committed must not wait for the lock
		hold := pgtest.Open(t, s.target)
		hold.Exec(`SELECT pg_advisory_lock(4711)`)
		s.script(last.commit)
		pgtest.WaitFor(t, s.target, `SELECT count(*) FROM pg_stat_activity WHERE application_name ~ $1 AND wait_event = 'advisory' AND query = 'COMMIT'`, "1", "^"+s.name+":"+last.session)
		s.orphaned(p, proxy)
		s.awaitOrphans()
		counters := pgtest.Query(t, s.target, `SELECT sum(n) FROM counter`)
		hold.Exec(`SELECT pg_advisory_unlock(4711)`)
		pgtest.WaitFor(t, s.target, `SELECT sum(n) - 1 FROM counter`, counters)
		proxy.Resume(faultnet.BothWays)
		s.script(`
			a: push
			b: ROLLBACK
			a: COMMIT
			`)
		s.catchUp()
		s.sameLoad()
		require.Zero(t, s.engine.Status().Misses)
		s.stop()
	}
}

// TestOrphansAreEnded: a session of an earlier runner that does not end by itself is
// terminated, and what it had open is rolled back.
func TestOrphansAreEnded(t *testing.T) {
	t.Parallel()
	s := ledger(newLink(t))
	proxy, through := s.proxied()
	via := *s.link
	via.target = s.options(through).Target
	p := via.spawn()
	s.streams(p)
	s.begins()
	s.orphaned(p, proxy)
	s.awaitOrphans()
	s.ends()
	require.Zero(t, s.engine.Status().Misses)
	s.stop()
}

// TestTwoRunners: the second of two runners waits, and takes over when the first is
// gone, in the middle of its work.
func TestTwoRunners(t *testing.T) {
	t.Parallel()
	s := ledger(newLink(t))
	first := s.spawn()
	s.streams(first)
	for range crashes(t, 3) {
		second := s.spawn()
		second.says("waiting: ")
		s.begins()
		require.NotContains(t, second.stderr.String(), "streaming")
		first.kill()
		second.says("streaming")
		s.ends()
		second.untroubled()
		first = second
	}
	first.stop()
}

// TestControlLostMidStream: with the control session goes the right to write: all
// workers roll back, and begin anew.
func TestControlLostMidStream(t *testing.T) {
	t.Parallel()
	s := ledger(newLink(t))
	s.start()
	for i := range 3 {
		s.begins()
		writers := pgtest.Query(t, s.target, `SELECT string_agg(pid::text, ',') FROM pg_stat_activity WHERE application_name ~ '^`+s.name+`:w'`)
		s.onTarget(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgapply:` + s.name + `:control'`)
		pgtest.WaitFor(t, s.target, `SELECT count(*) FROM pg_stat_activity WHERE pid IN (`+writers+`)`, "0")
		s.awaitRetries(i + 1)
		s.ends()
	}
	require.Zero(t, s.engine.Status().Misses)
	s.stop()
}
