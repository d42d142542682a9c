//go:build !linux

package source

import "net"

func newSocket(conn net.Conn) (socket, error) { return newPacedConn(conn), nil }
