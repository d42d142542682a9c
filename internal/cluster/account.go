package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
	"time"
)

// account is the operating system's user that runs the servers: ourselves, or
// an unprivileged one when we are root, as whom PostgreSQL refuses to run.
type account struct {
	name     string
	uid, gid int
	dropped  bool // differs from the user that we run as
}

// serverAccount picks the account: "postgres" where a root process finds it,
// else "nobody".
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "uid " + strconv.Itoa(os.Geteuid()), uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(found.Uid)
		gid, gidErr := strconv.Atoi(found.Gid)
		if uidErr != nil || gidErr != nil || uid == 0 {
			continue
		}
		return account{name: name, uid: uid, gid: gid, dropped: true}, nil
	}
	return account{}, fmt.Errorf(
		"PostgreSQL does not run as root and neither user postgres nor nobody exists: add one of them, or run as another user")
}

// command prepares a program that runs as the account, in a session of its own
// so that a terminal's interrupt does not reach it, with an environment in which
// nothing of the caller's changes what a server does.
func (a account) command(directory, program string, arguments ...string) *exec.Cmd {
	command := exec.Command(program, arguments...)
	command.Dir = directory
	command.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a.dropped {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return command
}

// run runs a program as the account and returns what it printed. When ctx ends
// first, the program is killed and the context's cause returned.
func (a account) run(ctx context.Context, program string, arguments ...string) (output string, err error) {
	var buffer bytes.Buffer
	command := a.command("/", program, arguments...)
	command.Stdout, command.Stderr = &buffer, &buffer
	command.WaitDelay = 5 * time.Second // for a killed program's children, which hold the output open
	if err := command.Start(); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	err = command.Wait()
	stop()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return buffer.String(), err
}

// own gives a file that we made to the account.
func (a account) own(path string) error {
	if !a.dropped {
		return nil
	}
	if err := os.Lchown(path, a.uid, a.gid); err != nil {
		return fmt.Errorf("give %s to user %s: %w", path, a.name, err)
	}
	return nil
}
