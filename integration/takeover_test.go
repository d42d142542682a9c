package integration

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// runs waits until a process on this machine is the subscription's runner, and streams.
func (l *link) runs(p *process) {
	l.t.Helper()
	pgtest.WaitFor(l.t, l.target, `SELECT pid = $1::int, status ->> 'state' FROM pgapply.runner`, "t|streaming", p.command.Process.Pid)
}

// TestTakeOverFromTheSilent: a runner that is frozen, or cut off without a word, keeps its
// sessions with both servers, and the lock with them. The one that waits ends them. What
// the first one still does when it is back reaches nothing, and it waits in its turn.
func TestTakeOverFromTheSilent(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"frozen", "cut off"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			l := newLink(t)
			l.loadTables()
			w := l.startLoad(2)
			var flags []string
			var links []*faultnet.Proxy
			for flag, uri := range map[string]string{"--source": l.source, "--target": l.target} {
				proxy, through, err := faultnet.ListenURI(uri)
				require.NoError(t, err)
				t.Cleanup(proxy.Close)
				flags, links = append(flags, flag, through), append(links, proxy)
			}
			freeze := func(p *process) {
				if way == "frozen" {
					require.NoError(t, p.command.Process.Signal(syscall.SIGSTOP))
					return
				}
				for _, proxy := range links {
					proxy.Stall(faultnet.BothWays)
				}
			}
			thaw := func(p *process) {
				if way == "frozen" {
					require.NoError(t, p.command.Process.Signal(syscall.SIGCONT))
					return
				}
				for _, proxy := range links {
					proxy.Resume(faultnet.BothWays)
				}
			}
			first := l.spawn(flags...)
			l.streams(first)
			l.runs(first)
			second := l.spawn()
			second.says("waiting: ", "is run by another process")
			w.issue(20)
			l.awaitSome(w)
			freeze(first)
			began := time.Now()
			w.issue(20)
			second.says("the runner gives no sign of life", "streaming")
			l.runs(second)
			t.Logf("%s: taken over after %s", way, time.Since(began).Round(100*time.Millisecond))
			l.catchUp()
			thaw(first)
			w.issue(20)
			first.says("waiting: ", "is run by another process")
			w.finish()
			l.catchUp()
			l.sameLoad()

			third := l.spawn("--wait=false")
			require.Equal(t, 3, third.exitCode(patience))
			third.says("is run by another process")

			began = time.Now()
			second.kill()
			l.runs(first)
			t.Logf("killed: taken over after %s", time.Since(began).Round(10*time.Millisecond))
			l.onSource(`UPDATE counter SET n = n + 1`)
			l.catchUp()
			l.same(`SELECT * FROM counter ORDER BY id`)
			first.stop()
		})
	}
}
