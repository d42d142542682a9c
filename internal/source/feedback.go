package source

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"pgapply/internal/invariant"
	"pgapply/internal/lsn"
)

// Position is what the publisher may know about our progress. Both are ends of
// what they cover, and neither ever goes back.
type Position struct {
	// Flushed: every transaction that was received and ends at or before it is
	// durable on the target. The publisher forgets what lies below.
	Flushed lsn.LSN
	// Applied: the same, but visible on the target is enough.
	Applied lsn.LSN
}

// feedback is the one writer of a stream: it tells the publisher our newest
// position at least once per interval, at once when that is asked for, and
// watches how long the reader has been waiting.
type feedback struct {
	conn     net.Conn
	interval time.Duration
	// timeout is the longest silence, and the longest time that one write may take.
	timeout time.Duration
	// silent returns how long the reader has been waiting for bytes, and arrival how many
	// it got, and how long it had to wait for all of them.
	silent  func() time.Duration
	arrival func() (bytes int64, waited time.Duration)
	// fail ends the stream for a reason.
	fail func(error)
	// written is the newest position received, and frames how many were.
	written atomic.Uint64
	frames  atomic.Int64

	mu       sync.Mutex
	position Position

	// question is set when the next status is to ask for an answer.
	question atomic.Bool

	wake chan struct{} // holds one: a status is due now
	quit chan struct{}
	done chan struct{}
	once sync.Once

	// buffer is the status message; it belongs to the goroutine, after that has
	// ended to whoever ended it.
	buffer []byte
}

// report takes the newest position over. It never blocks.
func (f *feedback) report(position Position, urgent bool) {
	f.mu.Lock()
	invariant.Check(position.Flushed >= f.position.Flushed, "flushed position went back from %s to %s", f.position.Flushed, position.Flushed)
	f.position.Flushed = max(f.position.Flushed, position.Flushed)
	f.position.Applied = max(f.position.Applied, position.Applied, f.position.Flushed)
	f.mu.Unlock()
	if urgent {
		f.due()
	}
}

// received notes how far the publisher's frames have come.
func (f *feedback) received(frame Frame) {
	f.frames.Add(1)
	position := uint64(frame.names())
	if position > f.written.Load() { // the reader alone stores it
		f.written.Store(position)
	}
	if frame.ReplyRequested {
		f.due()
	}
}

// due has a status sent at once.
func (f *feedback) due() {
	select {
	case f.wake <- struct{}{}:
	default: // one is due already, and will carry the newest position
	}
}

// run is the goroutine. It ends by halt, or after it has failed the stream.
func (f *feedback) run() {
	defer close(f.done)
	sent := time.Now()
	var asked time.Time // when we last asked whether the publisher is there
	var message crawl   // of the stream, not of what came before it
	message.bytes, message.waited = f.arrival()
	timer := time.NewTimer(f.untilNext(sent, asked))
	defer timer.Stop()
	for {
		due := false
		select {
		case <-f.quit:
			return
		case <-f.wake:
			due = true
		case <-timer.C:
		}
		silent := f.silent()
		if silent >= f.timeout {
			f.fail(&ReceiveTimeoutError{Silence: silent})
			return
		}
		bytes, waited := f.arrival()
		if took := message.lasts(f.frames.Load(), bytes, waited); took >= f.timeout {
			f.fail(&FrameError{Reason: fmt.Sprintf("a message has been arriving for %s without an end: its length cannot be right", took.Round(time.Millisecond))})
			return
		}
		ask := f.question.Swap(false) || silent >= f.timeout/2 && time.Since(asked) > silent
		if ask {
			asked = time.Now()
		}
		if due || ask || time.Since(sent) >= f.interval {
			if err := f.send(ask); errors.Is(err, os.ErrDeadlineExceeded) {
				f.fail(err)
				return
			}
			// Any other error of a write is for the reader to see: what the
			// publisher sent before it went away says more.
			sent = time.Now()
		}
		timer.Reset(f.untilNext(sent, asked))
	}
}

// untilNext is the time until a status is due, or until the silence that lasts
// now, or one that begins now, has to be acted upon.
func (f *feedback) untilNext(sent, asked time.Time) time.Duration {
	silent := f.silent()
	patience := f.timeout / 2
	if silent > 0 && time.Since(asked) <= silent { // asked in this silence
		patience = f.timeout
	}
	return max(0, min(f.interval-time.Since(sent), patience-silent))
}

// send writes one status. It is called by the goroutine, or after that has ended.
func (f *feedback) send(replyRequested bool) error {
	f.mu.Lock()
	position := f.position
	f.mu.Unlock()
	written := max(lsn.LSN(f.written.Load()), position.Flushed, position.Applied)
	f.buffer = appendStatus(f.buffer[:0], written, position, time.Now(), replyRequested)
	return f.write(f.buffer)
}

func (f *feedback) write(message []byte) error {
	if err := f.conn.SetWriteDeadline(time.Now().Add(f.timeout)); err != nil {
		return fmt.Errorf("write to the publisher: %w", err)
	}
	if _, err := f.conn.Write(message); err != nil {
		return fmt.Errorf("write to the publisher: %w", err)
	}
	return nil
}

// halt ends the goroutine and waits for it. A write that blocks ends when its
// time is up or the socket is closed.
func (f *feedback) halt() {
	f.once.Do(func() { close(f.quit) })
	<-f.done
}
