//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package spool

import (
	"io/fs"
	"os"
)

// unlinkOpen: here a file keeps its name until it is closed.
const unlinkOpen = false

// takeLock only opens the file: without flock nobody can tell a dead process
// from a living one, so that ours never says yes.
func takeLock(name string, flags int) (*os.File, error) {
	return os.OpenFile(name, os.O_RDWR|flags, 0o600)
}

func ours(fs.FileInfo) bool { return false }

// isFull: the system's own text has to do.
func isFull(error) bool { return false }
