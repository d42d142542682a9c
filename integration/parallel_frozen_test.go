package integration

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// freeze stops a backend of the target, until the test ends.
func (l *link) freeze(application string) {
	l.t.Helper()
	var pid int
	for _, digit := range pgtest.Query(l.t, l.target, `SELECT pid FROM pg_stat_activity WHERE application_name = $1`, application) {
		pid = 10*pid + int(digit-'0')
	}
	require.Positive(l.t, pid)
	require.NoError(l.t, syscall.Kill(pid, syscall.SIGSTOP))
	l.t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// TestFrozenWorker: a worker does not answer while its transaction has its turn. A stop
// ends all the same, and a lost publisher leads to a new start.
func TestFrozenWorker(t *testing.T) {
	for _, end := range []string{"stop", "publisher lost"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			s := ledger(newLink(t))
			p := s.spawn()
			s.streams(p)
			s.begins()
			s.freeze(s.name + ":w1")
			s.script(`a: COMMIT`)
			pgtest.WaitFor(t, s.target, `SELECT status -> 'workers' -> 0 ->> 'state' FROM pgapply.runner`, "waiting")
			if end == "stop" {
				p.terminate()
				require.Zero(t, p.exitCode(40*time.Second))
				return
			}
			pgtest.Exec(t, s.source, `SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name = '`+s.name+`'`)
			pgtest.WaitFor(t, s.target, `SELECT status ->> 'waiting_for' LIKE '%session of an earlier runner%' FROM pgapply.runner`, "t")
			p.kill()
		})
	}
}
