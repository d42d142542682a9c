package source

import (
	"net"
	"sync/atomic"
	"time"
)

// silence measures how long a read has been waiting for the publisher. Only
// that is silence: bytes that a busy caller does not fetch say nothing about
// the publisher, and a large message that arrives slowly is no silence.
type silence struct {
	born  time.Time
	since atomic.Int64 // nanoseconds after born, 0 when no read waits
}

func newSilence() silence { return silence{born: time.Now()} }

func (s *silence) begin() { s.since.Store(int64(time.Since(s.born)) | 1) }

func (s *silence) end() { s.since.Store(0) }

// silent returns how long a read has been waiting, 0 when none is.
func (s *silence) silent() time.Duration {
	since := s.since.Load()
	if since == 0 {
		return 0
	}
	return time.Since(s.born) - time.Duration(since)
}

// socket is what the stream needs of the connection below TLS.
type socket interface {
	net.Conn
	silent() time.Duration
}

// watchedConn is a net.Conn that measures silence.
type watchedConn struct {
	net.Conn
	silence
}

func (c *watchedConn) Read(p []byte) (int, error) {
	c.begin()
	defer c.end()
	return c.Conn.Read(p)
}
