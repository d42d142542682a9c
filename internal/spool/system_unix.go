//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package spool

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// unlinkOpen: an open file can be removed and used on.
const unlinkOpen = true

// takeLock opens a file with those flags and locks it until it is closed or the
// process ends. errHeld says that somebody else holds the lock.
func takeLock(name string, flags int) (*os.File, error) {
	lock, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errHeld
		}
		return nil, errors.Join(&fs.PathError{Op: "flock", Path: name, Err: err}, lock.Close())
	}
	return lock, nil
}

// ours tells whether a directory belongs to the user that we run as.
func ours(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// isFull tells whether the disk or the user's quota on it is exhausted.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
