package source

import "net"

func newSocket(conn net.Conn) (socket, error) {
	return &watchedConn{Conn: conn, silence: newSilence()}, nil
}
