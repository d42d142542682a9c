package faultnet

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// errCut ends a pump whose session was cut.
var errCut = errors.New("cut")

// wire is one direction of a session as its pump sees it: frames in, frames out.
type wire struct {
	gate *gate
	done <-chan struct{} // the session has ended
	in   *bufio.Reader
	out  *bufio.Writer
}

// frame is the head of a message; its body is still to be read from the wire.
type frame struct {
	head [5]byte
	kind byte
	size int // of the body
}

// next waits for a frame, and for the gate. Nothing forwarded earlier stays in the
// buffer while it waits.
func (w *wire) next() (frame, error) {
	var f frame
	if w.in.Buffered() < len(f.head) {
		if err := w.out.Flush(); err != nil {
			return f, err
		}
	}
	if _, err := io.ReadFull(w.in, f.head[:]); err != nil {
		_ = w.pass() // a stalled connection stays open, also when one side is gone
		return f, err
	}
	size, err := bodySize(f.head[1:])
	f.kind, f.size = f.head[0], size
	if err != nil {
		return f, fmt.Errorf("frame %q: %w", f.kind, err)
	}
	return f, w.pass()
}

// pass waits for the gate, or for the end of the session.
func (w *wire) pass() error {
	open := w.gate.open()
	if !isClosed(open) {
		if err := w.out.Flush(); err != nil {
			return err
		}
		select {
		case <-open:
		case <-w.done:
		}
	}
	if isClosed(w.done) {
		return errCut
	}
	return nil
}

// bodySize is the length that follows a length word.
func bodySize(word []byte) (int, error) {
	size := int(int32(binary.BigEndian.Uint32(word))) - 4
	if size < 0 {
		return 0, fmt.Errorf("length word %d", size+4)
	}
	return size, nil
}

// body reads the body of a frame.
func (w *wire) body(f frame) ([]byte, error) {
	body := make([]byte, f.size)
	_, err := io.ReadFull(w.in, body)
	return body, err
}

// write forwards a frame whose body was read.
func (w *wire) write(f frame, body []byte) error {
	if _, err := w.out.Write(f.head[:]); err != nil {
		return err
	}
	_, err := w.out.Write(body)
	return err
}

// copy forwards a frame whose body was not read.
func (w *wire) copy(f frame) error {
	if _, err := w.out.Write(f.head[:]); err != nil {
		return err
	}
	_, err := io.CopyN(w.out, w.in, int64(f.size))
	return err
}

// drop reads the body of a frame and forwards nothing of it.
func (w *wire) drop(f frame) error {
	_, err := io.CopyN(io.Discard, w.in, int64(f.size))
	return err
}
