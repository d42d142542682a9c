package integration

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the command when the thread that starts it ends.
func dieWithParent(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
