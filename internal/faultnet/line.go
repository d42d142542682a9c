package faultnet

import (
	"bytes"
	"io"
	"sync/atomic"
	"time"
)

// A line holds up to lineBytes, in up to lineChunks pieces as they were read. Beyond
// that it stops reading, and TCP pushes back on the sender. There is room for many
// small pieces: how a sender divides what it writes is not to cost throughput.
const (
	lineChunk  = 32 << 10
	lineBytes  = 64 * lineChunk
	lineChunks = 1 << 14
)

// line is one direction of a link with latency: what fill reads from a connection
// comes out of Read no sooner than the delay later, in order.
type line struct {
	delay  func() time.Duration
	done   <-chan struct{} // the session has ended
	chunks chan chunk
	held   atomic.Int64  // bytes in chunks
	taken  chan struct{} // holds one: held has become less
	rest   []byte        // of the chunk being read
}

type chunk struct {
	due  time.Time
	data []byte
}

func newLine(delay func() time.Duration, done <-chan struct{}) *line {
	return &line{delay: delay, done: done, chunks: make(chan chunk, lineChunks), taken: make(chan struct{}, 1)}
}

// fill reads until the connection or the session ends.
func (l *line) fill(from io.Reader) {
	defer close(l.chunks)
	buffer := make([]byte, lineChunk)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !l.hold(chunk{time.Now().Add(l.delay()), bytes.Clone(buffer[:n])}) {
			return
		}
		if err != nil {
			return
		}
	}
}

// hold takes a chunk into the line, and returns when there is room for more, or false
// when the session has ended.
func (l *line) hold(c chunk) bool {
	l.held.Add(int64(len(c.data)))
	select {
	case l.chunks <- c:
	case <-l.done:
		return false
	}
	for l.held.Load() >= lineBytes {
		select {
		case <-l.taken:
		case <-l.done:
			return false
		}
	}
	return true
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

// next waits for the next chunk, and until it is due.
func (l *line) next() ([]byte, error) {
	select {
	case c, ok := <-l.chunks:
		if !ok {
			return nil, io.EOF
		}
		if !rests(time.Until(c.due), l.done) {
			return nil, io.EOF
		}
		l.held.Add(-int64(len(c.data)))
		select {
		case l.taken <- struct{}{}:
		default:
		}
		return c.data, nil
	case <-l.done:
		return nil, io.EOF
	}
}
