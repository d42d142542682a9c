package faultnet

import (
	"io"
	"time"
)

// A line holds up to lineChunks reads of lineChunk bytes. Beyond that it stops
// reading, and TCP pushes back on the sender.
const (
	lineChunk  = 32 << 10
	lineChunks = 64
)

// line is one direction of a link with latency: what fill reads from a connection
// comes out of Read no sooner than the delay later, in order.
type line struct {
	delay  func() time.Duration
	done   <-chan struct{} // the session has ended
	chunks chan chunk
	rest   []byte // of the chunk being read
}

type chunk struct {
	due  time.Time
	data []byte
}

func newLine(delay func() time.Duration, done <-chan struct{}) *line {
	return &line{delay: delay, done: done, chunks: make(chan chunk, lineChunks)}
}

// fill reads until the connection or the session ends.
func (l *line) fill(from io.Reader) {
	defer close(l.chunks)
	for {
		data := make([]byte, lineChunk)
		n, err := from.Read(data)
		if n > 0 {
			select {
			case l.chunks <- chunk{time.Now().Add(l.delay()), data[:n]}:
			case <-l.done:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader for the pump at the other end.
func (l *line) Read(p []byte) (int, error) {
	if len(l.rest) == 0 {
		next, err := l.next()
		if err != nil {
			return 0, err
		}
		l.rest = next
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

func (l *line) next() ([]byte, error) {
	select {
	case c, ok := <-l.chunks:
		if !ok {
			return nil, io.EOF
		}
		wait := time.Until(c.due)
		if wait <= 0 {
			return c.data, nil
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
			return c.data, nil
		case <-l.done:
			return nil, io.EOF
		}
	case <-l.done:
		return nil, io.EOF
	}
}
