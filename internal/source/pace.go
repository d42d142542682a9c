package source

import (
	"bufio"
	"net"
	"time"
)

// The walsender hands every message to the kernel by itself. A reader that
// wakes for each of them costs the publisher more than the decoding does, so
// while data flows a socket is read at intervals only, and what has gathered
// in between is taken at once.
const (
	// receiveBuffer is the most that one read takes.
	receiveBuffer = 512 << 10
	// gathered is what one read should find: enough that reads are few, little
	// enough that the kernel's buffer is never full. A publisher must not have
	// to wait for a reader that pauses.
	gathered = 64 << 10
	// remoteInterval is the longest pause, and so the most that pauses add to
	// the delay of a change while data flows.
	remoteInterval = 1500 * time.Microsecond
	// localInterval is that of a Unix socket, which counts each message with its
	// overhead and is full after a few hundred small ones.
	localInterval = 200 * time.Microsecond
	// burst is how many reads may follow each other at once after a quiet time,
	// so that single transactions meet no delay.
	burst = 16
)

// pacer says how long to wait before a read. Every read uses up some of a
// credit that time refills, up to burst intervals.
type pacer struct {
	interval time.Duration
	// spent is the moment at which the credit used so far is refilled.
	spent time.Time
	last  time.Time // of the last read
}

func newPacer(network string) pacer {
	if network == "unix" {
		return pacer{interval: localInterval}
	}
	return pacer{interval: remoteInterval}
}

// pause returns how long to wait before the next read, not positive for not at all.
func (p *pacer) pause(now time.Time) time.Duration {
	return p.spent.Add(-burst * p.interval).Sub(now)
}

// read notes that a read has just taken n bytes. It costs the time in which, at
// the rate of this one, the next read will find what one should find.
func (p *pacer) read(now time.Time, n int) {
	cost := p.interval
	if elapsed := now.Sub(p.last); n > 0 && elapsed < time.Second {
		cost = min(cost, time.Duration(int64(elapsed)*gathered/int64(n)))
	}
	p.last = now
	if p.spent.Before(now) {
		p.spent = now
	}
	// Reads that were due without a pause leave no debt behind.
	p.spent = p.spent.Add(cost)
	if limit := now.Add(burst*p.interval + cost); p.spent.After(limit) {
		p.spent = limit
	}
}

// pacedConn is the portable socket: reads of the runtime's poller at intervals.
// The poller is still woken for each packet, so on a busy machine it gains less
// than the socket of Linux.
type pacedConn struct {
	watchedConn
	buffered *bufio.Reader
	pace     pacer
}

func newPacedConn(conn net.Conn) *pacedConn {
	c := &pacedConn{watchedConn: watchedConn{Conn: conn, silence: newSilence()}, pace: newPacer(conn.RemoteAddr().Network())}
	c.buffered = bufio.NewReaderSize(fillFunc(c.fill), receiveBuffer)
	return c
}

// Read takes what the buffer has, and fills it when it is empty.
func (c *pacedConn) Read(p []byte) (int, error) {
	return c.buffered.Read(p[:min(len(p), receiveBuffer-1)]) // a larger one would pass the buffer by
}

func (c *pacedConn) fill(p []byte) (int, error) {
	time.Sleep(c.pace.pause(time.Now()))
	n, err := c.watchedConn.Read(p)
	c.pace.read(time.Now(), n)
	return n, err
}

type fillFunc func([]byte) (int, error)

func (f fillFunc) Read(p []byte) (int, error) { return f(p) }
