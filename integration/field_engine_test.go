package integration

import (
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
)

// fieldEngine is the program under test, through all its starts in a case.
type fieldEngine struct {
	c *fieldCase
	// log is what all processes have written.
	log *output
	// step is how much of it there was when the last step ended.
	step int

	flags, environment []string
	// processes in the order of their starts; the last one is the present one.
	processes []*process
	// wanted says that the last process is not meant to have ended.
	wanted bool
	frozen bool
	// peak is the largest resident memory of those that were stopped, in bytes.
	peak int64
}

func newFieldEngine(c *fieldCase) *fieldEngine {
	e := &fieldEngine{c: c, log: newOutput()}
	c.t.Cleanup(func() {
		for _, p := range e.processes {
			p.kill()
		}
		if c.t.Failed() {
			c.t.Logf("pgapply wrote (at most 60 last lines):\n%s", e.log.tail(60))
		}
	})
	return e
}

// start begins with the options that a script gives behind START: memory= is
// GOMEMLIMIT, all others are flags of `run`.
func (e *fieldEngine) start(options string) {
	e.flags = append(e.connection(), "--publication", "p", "--spool-dir", e.c.t.TempDir())
	for _, option := range fieldList(options, ",") {
		name, value, valued := strings.Cut(option, "=")
		name = strings.ReplaceAll(name, "_", "-")
		switch {
		case name == "memory":
			e.environment = append(e.environment, "GOMEMLIMIT="+value)
		case valued:
			e.flags = append(e.flags, "--"+name+"="+value)
		default:
			e.flags = append(e.flags, "--"+name)
		}
	}
	e.launch()
}

// connection are the flags that every verb takes.
func (e *fieldEngine) connection() []string {
	return []string{"--name", e.c.name, "--source", e.c.pub.uri, "--target", e.c.tgt.uri}
}

// launch runs the program with the flags of start. It differs from spawn in that
// the program's defaults hold, log level included, and in the environment.
func (e *fieldEngine) launch() {
	if e.flags == nil {
		e.c.fail("START comes first")
	}
	program, err := build()
	require.NoError(e.c.t, err)
	p := &process{t: e.c.t, stderr: e.log, exited: make(chan struct{})}
	p.command = &exec.Cmd{
		Path:   fmt.Sprintf("/proc/self/fd/%d", program.Fd()),
		Args:   append([]string{"pgapply", "run"}, e.flags...),
		Env:    append(environment(), e.environment...),
		Stdout: e.log, Stderr: e.log,
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
	require.NoError(e.c.t, <-started)
	e.processes = append(e.processes, p)
	e.wanted, e.frozen = true, false
}

// present returns the process that runs or ran last.
func (e *fieldEngine) present() *process {
	if len(e.processes) == 0 {
		e.c.fail("START comes first")
	}
	return e.processes[len(e.processes)-1]
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// mustRun ends the case when the engine has ended.
func (e *fieldEngine) mustRun() {
	if p := e.present(); !p.running() {
		e.c.fail("the engine does not run: %s", p.command.ProcessState)
	}
}

// signal sends a signal to the running engine.
func (e *fieldEngine) signal(signal syscall.Signal) {
	e.mustRun()
	require.NoError(e.c.t, e.present().command.Process.Signal(signal))
}

// stop asks the engine to end, and holds it to exit code 0 within 15 s.
func (e *fieldEngine) stop() {
	e.mustRun()
	e.remember()
	if e.frozen {
		e.signal(syscall.SIGCONT)
	}
	e.signal(syscall.SIGTERM)
	p := e.present()
	select {
	case <-p.exited:
	case <-time.After(15 * time.Second):
		e.c.fail("the engine does not stop within 15 s")
	}
	e.wanted = false
	if code := p.command.ProcessState.ExitCode(); code != 0 {
		e.c.fail("the engine was asked to stop and ended with %s", p.command.ProcessState)
	}
}

func (e *fieldEngine) kill() {
	e.mustRun()
	e.remember()
	e.present().kill()
	e.wanted = false
}

// remember takes the peak of a process that is about to end.
func (e *fieldEngine) remember() { e.peak = max(e.peak, e.present().peakMemory()) }

// peakMemory is that of all processes so far, in bytes.
func (e *fieldEngine) peakMemory() int64 {
	if e.wanted {
		e.mustRun()
		e.remember()
	}
	return e.peak
}

// markStep remembers how much was written up to here.
func (e *fieldEngine) markStep() { e.step = len(e.log.String()) }

// said is what was written since the last step.
func (e *fieldEngine) said() string { return e.log.String()[e.step:] }

// panicked finds what the runtime writes when a Go program dies.
var panicked = regexp.MustCompile(`(?m)^(panic: |fatal error: |goroutine \d+ .*\[)`)

// finish ends the engine at the end of the case.
func (e *fieldEngine) finish() {
	if e.wanted {
		e.stop()
	}
	if place := panicked.FindStringIndex(e.log.String()); place != nil {
		e.c.fail("the engine panicked:\n%.2000s", e.log.String()[place[0]:])
	}
}

// verb runs the program with another verb than run.
func (e *fieldEngine) verb(verb string, flags ...string) (output string, code int) {
	stdout, stderr, code := shell(e.c.t, slices.Concat([]string{verb}, flags, e.connection())...)
	return stdout + stderr, code
}
