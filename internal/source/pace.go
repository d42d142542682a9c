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
//
// Where it gathers decides what that is worth. In our kernel's buffer each
// message is a segment of its own, which the publisher's CPU delivers. While
// that buffer is full, the publisher's kernel joins messages in its own, which
// takes megabytes before the walsender has to wait. So the buffer of a loopback
// connection is small and its pauses are long, and what waits behind a full
// buffer is fetched read by read without a pause between.
const (
	// receiveBuffer is the most that one read takes.
	receiveBuffer = 512 << 10
	// gathered is what the reads between two pauses should find of a connection
	// that is not loopback: enough that reads are few, little enough that the
	// kernel's buffer is never full. A publisher must not have to wait for a
	// reader that pauses, nor for one round trip per pause.
	gathered = 64 << 10
	// interval is the longest pause, and so the most that pauses add to the delay
	// of a change while data flows.
	interval = 1500 * time.Microsecond
	// localInterval is that of a Unix socket, which counts each message with its
	// overhead and is full after a few hundred small ones.
	localInterval = 200 * time.Microsecond
	// loopbackBuffer is the receive buffer of a loopback connection, and so the
	// most that comes as segments of single messages between two pauses. A drain
	// of 100,000 small transactions is 7,000 segments with it, and 60,000 or more
	// with any buffer from 24 KiB on when chance has it.
	loopbackBuffer = 16 << 10
	// loopbackSegment is the largest segment of a loopback connection. It always fits
	// the window of that buffer.
	loopbackSegment = 4 << 10
	// loopbackGathered is well within what the publisher's kernel holds meanwhile.
	loopbackGathered = 512 << 10
	// fullInterval is the longest pause of a loopback connection whose buffer the
	// last one filled: a change that waits longer has a lot before it.
	fullInterval = 4 * time.Millisecond
	// burst is how many reads may follow each other at once after a quiet time,
	// so that single transactions meet no delay.
	burst = 16
)

// pacer says how long to wait before a read. What is read between two pauses
// uses up some of a credit that time refills, up to burst intervals.
type pacer struct {
	interval time.Duration
	gathered int
	// loopback connections have full reads, after which there is more.
	loopback bool
	round    int // bytes of full reads since the last pause

	// spent is the moment at which the credit used so far is refilled.
	spent time.Time
	last  time.Time // of the last read that was not full
}

func newPacer(remote net.Addr) pacer {
	switch {
	case remote.Network() == "unix":
		return pacer{interval: localInterval, gathered: gathered}
	case isLoopback(remote):
		return pacer{interval: interval, gathered: loopbackGathered, loopback: true}
	}
	return pacer{interval: interval, gathered: gathered}
}

// pause returns how long to wait before the next read, not positive for not at all.
func (p *pacer) pause(now time.Time) time.Duration {
	if p.round > 0 {
		return 0
	}
	return p.spent.Add(-burst * p.interval).Sub(now)
}

// read notes that a read has just taken n bytes. Together with the full ones
// before it, it costs the time in which, at this rate, the next ones will find
// what they should find.
func (p *pacer) read(now time.Time, n int) {
	// A buffer that was full has less than all of it in one read, because of
	// the overhead of segments.
	if p.loopback && n >= loopbackBuffer/4 {
		p.round += n
		return
	}
	n += p.round
	cost := p.interval
	if n >= loopbackBuffer && p.loopback {
		cost = fullInterval
	}
	p.round = 0
	if elapsed := now.Sub(p.last); n > 0 && elapsed < time.Second {
		cost = min(cost, time.Duration(int64(elapsed)*int64(p.gathered)/int64(n)))
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
	c := &pacedConn{watchedConn: watchedConn{Conn: conn, silence: newSilence()}, pace: newPacer(conn.RemoteAddr())}
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
