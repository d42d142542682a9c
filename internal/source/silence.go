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
	// taken is how many bytes were read, and waited how long reads had to wait for them.
	taken, waited atomic.Int64
}

func newSilence() silence { return silence{born: time.Now()} }

func (s *silence) begin() { s.since.Store(int64(time.Since(s.born)) | 1) }

func (s *silence) end() {
	s.waited.Add(int64(s.silent()))
	s.since.Store(0)
}

func (s *silence) took(n int) { s.taken.Add(int64(n)) }

// arrival returns how many bytes were read by now, and for how long reads have waited.
func (s *silence) arrival() (bytes int64, waited time.Duration) {
	return s.taken.Load(), time.Duration(s.waited.Load()) + s.silent()
}

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
	arrival() (bytes int64, waited time.Duration)
}

// watchedConn is a net.Conn that measures silence.
type watchedConn struct {
	net.Conn
	silence
}

func (c *watchedConn) Read(p []byte) (int, error) {
	c.begin()
	defer c.end()
	n, err := c.Conn.Read(p)
	c.took(n)
	return n, err
}

// slowest is the rate, in bytes a second, below which no message arrives: its length is
// wrong, and what seems to be more of it is what comes behind. An idle publisher sends a
// few bytes a minute, so that such a message would never end, nor would there be silence.
const slowest = 1 << 10

// crawl notices a message that does not end. It belongs to the goroutine that asks.
type crawl struct {
	frames int64
	bytes  int64
	waited time.Duration
}

// lasts tells for how long one message has been arriving, if that is too slow: frames is
// how many have ended by now.
func (c *crawl) lasts(frames, bytes int64, waited time.Duration) time.Duration {
	if frames != c.frames {
		*c = crawl{frames, bytes, waited}
		return 0
	}
	arrived, took := bytes-c.bytes, waited-c.waited
	if arrived == 0 || float64(arrived) >= slowest*took.Seconds() {
		return 0
	}
	return took
}
