package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// postmaster is one running server process, our child.
type postmaster struct {
	command *exec.Cmd
	data    string
	exited  chan struct{} // closed when the process is gone and result is set
	result  error
}

// startPostmaster executes a server whose output goes to the end of logPath. The
// caller owns the process and must call wait.
func startPostmaster(a account, program, data, logPath string, arguments ...string) (*postmaster, error) {
	logFile, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open a server log: %w", err)
	}
	defer logFile.Close()
	// The working directory is the one that the server itself changes to: the
	// guard knows it by that from its first moment on.
	command := a.command(data, program, append([]string{"-D", data}, arguments...)...)
	command.Stdout, command.Stderr = logFile, logFile
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return &postmaster{command: command, data: data, exited: make(chan struct{})}, nil
}

// wait returns when the process is gone.
func (p *postmaster) wait() {
	p.result = p.command.Wait()
	close(p.exited)
}

func (p *postmaster) pid() int { return p.command.Process.Pid }

// running reports whether the process lives.
func (p *postmaster) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// stopped reports whether the process stands still after SIGSTOP, or is gone.
func (p *postmaster) stopped() bool {
	s, err := readStat(p.pid())
	return err != nil || s.state == 'T' || !p.running()
}

// errExited says that the server ended where it should have come up; its log
// knows more.
var errExited = errors.New("server exited")

// await waits until the status that the server keeps in the eighth line of
// postmaster.pid (src/include/utils/pidfile.h) satisfies the condition.
func (p *postmaster) await(ctx context.Context, condition func(status string) bool) error {
	path := filepath.Join(p.data, "postmaster.pid")
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		content, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read the server's status: %w", err)
		}
		lines := strings.Split(string(content), "\n")
		// A file of an earlier, killed server still holds that one's status.
		if len(lines) >= 8 && lines[0] == strconv.Itoa(p.pid()) && condition(strings.TrimSpace(lines[7])) {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%w: %w", errExited, p.result)
		case <-ctx.Done():
			return fmt.Errorf("wait for the server to accept connections: %w", context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// acceptsConnections is the status of a server that is up, as primary or as
// standby.
func acceptsConnections(status string) bool { return status == "ready" || status == "standby" }

// process identifies a process for good: an id may be reused, but not with the
// same start time.
type process struct {
	pid     int
	started string // in clock ticks since boot
}

func (p process) alive() bool {
	s, err := readStat(p.pid)
	// A zombie holds nothing, and its new parent may take its time to reap it.
	return err == nil && s.started == p.started && s.state != 'Z' && s.state != 'X'
}

// stat holds what we use of /proc/<pid>/stat, see proc_pid_stat(5).
type stat struct {
	state   byte
	parent  int
	started string
}

func readStat(pid int) (stat, error) {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, err
	}
	// The name in parentheses may hold anything; fields are counted behind it.
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("stat of process %d is cut off", pid)
	}
	parent, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return stat{}, fmt.Errorf("stat of process %d: %w", pid, err)
	}
	return stat{state: fields[0][0], parent: parent, started: string(fields[19])}, nil
}

// children lists the processes that the postmaster forked. Backends start
// sessions of their own, so their parent is the only thing that they share and
// that everybody may read.
func children(parent int) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil && s.parent == parent {
			found = append(found, process{pid: pid, started: s.started})
		}
	}
	return found, nil
}
