//go:build !(darwin || dragonfly || freebsd || linux)

package spool

// Free: here the system does not tell.
func Free(string) (free int64, known bool) { return 0, false }
