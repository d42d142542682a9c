//go:build darwin || dragonfly || freebsd || linux

package spool

import "syscall"

// Free is how many bytes an ordinary user can still write in a directory; known is
// false where the system does not tell.
func Free(directory string) (free int64, known bool) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(directory, &stat); err != nil || stat.Bsize <= 0 {
		return 0, false
	}
	return int64(stat.Bavail) * int64(stat.Bsize), true //nolint:unconvert // the types differ between systems
}
