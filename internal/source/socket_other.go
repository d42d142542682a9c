//go:build !linux

package source

import (
	"net"
	"syscall"
)

func newSocket(conn net.Conn) (socket, error) { return newPacedConn(conn), nil }

func limitLoopback(_, _ string, _ syscall.RawConn) error { return nil }
