package integration

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

func impatient(o *apply.Options) { o.TargetTimeout = 450 * time.Millisecond }

// TestSilentTarget: a target that keeps its connections and answers nothing is given up, and
// asked over new ones; nothing is lost, whatever had got through before.
func TestSilentTarget(t *testing.T) {
	t.Parallel()
	for name, silence := range map[string]struct {
		// begins returns what ends it.
		begins func(*link, *faultnet.Proxy) (ends func())
		says   []string
	}{
		// Something on the way has forgotten the connections, and takes new ones.
		"forgotten connections": {func(_ *link, through *faultnet.Proxy) func() {
			through.Do(faultnet.Action{Verb: faultnet.Mute, All: true})
			return func() {}
		}, []string{"its session waits for us"}},
		// New connections are not answered either.
		"nothing passes": {func(_ *link, through *faultnet.Proxy) func() {
			through.Stall(faultnet.BothWays)
			return func() { through.Resume(faultnet.BothWays) }
		}, []string{"look what the target does"}},
		"frozen sessions": {func(l *link, _ *faultnet.Proxy) func() {
			frozen := l.freezeSessions()
			return func() { thaw(l.t, frozen) }
		}, []string{"its session waits for us"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			publisher, _ := pgtest.Shared(t)
			l := linkOf(t, publisher, pgtest.Start(t)) // others would wait for frozen sessions
			l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
			proxy, through := l.proxied()
			l.start(through, impatient)
			l.onSource(`INSERT INTO t VALUES (1)`)
			l.catchUp()
			ends := silence.begins(l, proxy)
			l.onSource(`INSERT INTO t SELECT generate_series(2, 1000)`)
			l.failure(append(silence.says, "the target has not answered for", "keeps the connection", "firewall")...)
			ends()
			l.onSource(`INSERT INTO t VALUES (1001)`)
			l.catchUp()
			l.same(`SELECT count(*), sum(id) FROM t`)
			require.Nil(t, l.engine.Status().TargetSilentSince)
			l.stop()
		})
	}
}

// TestSilentTargetWhileCopying: the same while tables are copied, whose sessions wait for the
// target meanwhile.
func TestSilentTargetWhileCopying(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`, `INSERT INTO t SELECT generate_series(1, 1000)`)
	l.onTarget(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$`,
		`CREATE TRIGGER wait BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION wait()`, `ALTER TABLE t ENABLE ALWAYS TRIGGER wait`)
	lock := session(t, l.target)
	lock(`BEGIN; SELECT pg_advisory_xact_lock(1)`)
	proxy, through := l.proxied()
	l.launch(l.options(through, impatient, func(o *apply.Options) { o.CopyData = true }))
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND objid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, "1")
	proxy.Do(faultnet.Action{Verb: faultnet.Mute, All: true})
	l.failure("the target has not answered for", "its session waits for us")
	lock(`ROLLBACK`)
	pgtest.WaitFor(t, l.target, `SELECT string_agg(state::text, '') FROM pgapply.subscription_table`, "r")
	l.onSource(`INSERT INTO t VALUES (1001)`)
	l.catchUp()
	l.same(`SELECT count(*), sum(id) FROM t`)
	l.stop()
}

// freezeSessions stops the processes that serve the link on the target.
func (l *link) freezeSessions() (pids []int) {
	l.t.Helper()
	for _, row := range strings.Fields(pgtest.Query(l.t, l.target, `SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%' || $1 || ':%'`, l.name)) {
		pid, err := strconv.Atoi(row)
		require.NoError(l.t, err)
		require.NoError(l.t, syscall.Kill(pid, syscall.SIGSTOP))
		pids = append(pids, pid)
	}
	require.NotEmpty(l.t, pids)
	l.t.Cleanup(func() { thaw(l.t, pids) })
	return pids
}

// thaw lets processes go on, as far as they are there still.
func thaw(t *testing.T, pids []int) {
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			require.ErrorIs(t, err, syscall.ESRCH)
		}
	}
}

// TestLongStatementIsNotSilence: a target that works on what it was asked, for however long,
// is waited for.
func TestLongStatementIsNotSilence(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	entries, said := observer.New(zap.DebugLevel)
	l.start(impatient, func(o *apply.Options) { o.Log = zap.New(entries) })
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE pgapply.runner`) // where the control session writes its heartbeat
	lock(`LOCK TABLE t IN SHARE MODE`)
	l.onSource(`INSERT INTO t VALUES (1)`)
	var silent *time.Time
	require.Eventually(t, func() bool {
		looks := said.FilterMessage("the target has not answered, and is at work").All()
		if since := l.engine.Status().TargetSilentSince; since != nil {
			silent = since
		}
		return len(looks) > 0 && looks[len(looks)-1].ContextMap()["for"].(time.Duration) > 3*450*time.Millisecond
	}, patience, 10*time.Millisecond)
	require.NotNil(t, silent, "the status shows it all the same")
	lock(`ROLLBACK`)
	l.catchUp()
	l.same(`SELECT * FROM t`)
	status := l.engine.Status()
	require.Zero(t, status.Retries)
	require.Equal(t, state.Streaming, status.Phase)
	require.Eventually(t, func() bool { return l.engine.Status().TargetSilentSince == nil }, patience, 10*time.Millisecond)
	l.stop()
}
