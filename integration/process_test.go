package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// patience bounds what a test waits for when nothing else says how long it may take.
const patience = 2 * time.Minute

// build makes the program once for all tests of this process. The file is removed
// at once and lives on as an open descriptor: whatever way the tests end, nothing
// of it is left.
var build = sync.OnceValues(func() (*os.File, error) {
	directory, err := os.MkdirTemp("", "pgapply-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	path := filepath.Join(directory, "pgapply")
	command := exec.Command("go", "build", "-tags", "invariants", "-o", path, "pgapply/cmd/pgapply")
	if said, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", command, err, said)
	}
	return os.Open(path)
})

// process is a running `pgapply run`.
type process struct {
	t       *testing.T
	command *exec.Cmd
	stderr  *output
	exited  chan struct{} // closed when the process is gone and reaped
}

// spawn runs the program with the link's subscription, and returns at once. It dies
// with the test, and with the process of the tests.
func (l *link) spawn(flags ...string) *process {
	l.t.Helper()
	return spawnWith(l.t, nil, append([]string{
		"run", "--copy-data=false", "--publication", "p", "--log-level", "debug",
		"--name", l.name, "--source", l.source, "--target", l.target, "--spool-dir", l.t.TempDir(),
	}, append(flags, l.flags...)...)...)
}

// spawnWith runs the program with these arguments, and more variables in its environment.
func spawnWith(t *testing.T, more []string, arguments ...string) *process {
	t.Helper()
	program, err := build()
	require.NoError(t, err)
	p := &process{t: t, stderr: newOutput(), exited: make(chan struct{})}
	p.command = &exec.Cmd{
		Path:   fmt.Sprintf("/proc/self/fd/%d", program.Fd()),
		Args:   append([]string{"pgapply"}, arguments...),
		Env:    append(environment(), more...),
		Stderr: p.stderr,
	}
	dieWithParent(p.command)
	started := make(chan error)
	go func() {
		// The death of the thread that started it would count as the parent's.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.command.Start()
		started <- err
		if err == nil {
			_ = p.command.Wait() // the exit code says it
			close(p.exited)
		}
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("pgapply with pid %d wrote (at most 60 last lines):\n%s", p.command.Process.Pid, p.stderr.tail(60))
		}
	})
	return p
}

// environment is that of the tests without what would change the program's
// settings or its memory.
func environment() []string {
	var kept []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "PG") || name == "GOMEMLIMIT" || name == "GOGC" || name == "GODEBUG" {
			continue
		}
		kept = append(kept, variable)
	}
	return kept
}

// kill ends the process with SIGKILL, and returns when it is gone.
func (p *process) kill() {
	_ = p.command.Process.Signal(syscall.SIGKILL) // unless it is gone already
	<-p.exited
}

// terminate asks the process to stop.
func (p *process) terminate() {
	p.t.Helper()
	require.NoError(p.t, p.command.Process.Signal(syscall.SIGTERM))
}

// exitCode waits for the end of the process, no longer than limit.
func (p *process) exitCode(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(limit):
		require.Fail(p.t, "pgapply does not end", "within %s", limit)
	}
	return p.command.ProcessState.ExitCode()
}

// stop ends the process in order.
func (p *process) stop() {
	p.t.Helper()
	p.terminate()
	require.Zero(p.t, p.exitCode(15*time.Second))
}

// alive fails the test if the process has ended by itself.
func (p *process) alive() {
	p.t.Helper()
	select {
	case <-p.exited:
		require.Fail(p.t, "pgapply ended by itself", p.command.ProcessState.String())
	default:
	}
}

// untroubled fails the test if the process has warned of anything.
func (p *process) untroubled() {
	p.t.Helper()
	for line := range strings.Lines(p.stderr.String()) {
		require.NotContains(p.t, line, "WARN")
		require.NotContains(p.t, line, "ERROR")
	}
}

// says waits until the process has written all of the texts to its log.
func (p *process) says(texts ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), patience)
	defer cancel()
	for _, text := range texts {
		if err := p.stderr.await(ctx, p.exited, text); err != nil {
			require.Fail(p.t, "pgapply does not say so", "want %q: %v", text, err)
		}
	}
}

var peak = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakMemory is the largest resident memory that the process has had, in bytes.
func (p *process) peakMemory() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	require.NoError(p.t, err)
	match := peak.FindSubmatch(status)
	require.NotNil(p.t, match, "no VmHWM in %s", status)
	kilobytes, err := strconv.ParseInt(string(match[1]), 10, 64)
	require.NoError(p.t, err)
	return kilobytes << 10
}

// streams waits until the process receives changes.
func (l *link) streams(p *process) {
	l.t.Helper()
	p.says("streaming")
	pgtest.WaitFor(l.t, l.source, `SELECT state FROM pg_stat_replication WHERE application_name = $1`, "streaming", l.name)
}

// output keeps what a process writes, and tells those who wait for a text.
type output struct {
	mu struct {
		sync.Mutex
		text bytes.Buffer
		more chan struct{} // closed when text grows
	}
}

func newOutput() *output {
	o := &output{}
	o.mu.more = make(chan struct{})
	return o
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.mu.more)
	o.mu.more = make(chan struct{})
	return o.mu.text.Write(p)
}

func (o *output) contains(text string) (bool, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.mu.text.Bytes(), []byte(text)), o.mu.more
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.text.String()
}

func (o *output) tail(lines int) string {
	all := strings.Split(strings.TrimSpace(o.String()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// await waits until the text was written, which cannot happen after the end.
func (o *output) await(ctx context.Context, ended <-chan struct{}, text string) error {
	for {
		found, more := o.contains(text)
		if found {
			return nil
		}
		select {
		case <-more:
		case <-ended:
			if found, _ := o.contains(text); found {
				return nil
			}
			return errors.New("the process has ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
