package cluster

import (
	"fmt"
	"io"
	"os/exec"
)

// guardScript waits for one line on its standard input. Without it, at the end of
// file that the kernel makes of its owner's death, it ends every process of the
// cluster and removes the directory. A process belongs to the cluster when it
// executes our server's program in our data directory, so that neither a reused
// process id nor somebody's shell in there is mistaken for one. SIGQUIT lets the
// postmaster give its shared memory back; what it does not end is killed.
const guardScript = `
directory=$1 program=$2
trap '' HUP INT QUIT TERM
read -r word && [ "$word" = done ] && exit 0
signal() {
	found=1
	for process in /proc/[0-9]*; do
		if [ "$process/cwd" -ef "$directory/data" ] && [ "$process/exe" -ef "$program" ]; then
			kill "-$1" "${process#/proc/}" && found=0
		fi
	done 2>/dev/null
	return $found
}
tries=0
while signal QUIT; do
	tries=$((tries + 1))
	[ $tries -gt 60 ] && signal KILL
	sleep 0.1
done
rm -rf -- "$directory"
`

// guard is the shell that outlives this process to clean up after it. It runs as
// the servers' account, which may look at and signal its own processes where even
// root may not (a container without CAP_SYS_PTRACE).
type guard struct {
	command *exec.Cmd
	line    io.WriteCloser // the guard acts when this is closed without a word
}

func startGuard(a account, directory, program string) (*guard, error) {
	command := a.command("/", "/bin/sh", "-c", guardScript, "pgapply-guard", directory, program)
	line, err := command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe to the guard: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the guard of %s: %w", directory, err)
	}
	return &guard{command: command, line: line}, nil
}

// act lets the guard do its work now and waits until it is done.
func (g *guard) act() {
	_ = g.line.Close()
	_ = g.command.Wait()
}

// dismiss ends the guard without any action of its. A guard that somebody killed
// is gone as well, hence no error.
func (g *guard) dismiss() {
	_, _ = io.WriteString(g.line, "done\n")
	_ = g.line.Close()
	_ = g.command.Wait()
}
