package txn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"pgapply/decoder"
)

// ErrRolledBack says that a transaction will never be complete: the publisher
// has rolled it back or starts it over, or the stream has ended.
var ErrRolledBack = errors.New("the transaction is rolled back")

// Step is what a Follower comes to next: a change, or the end of a part.
type Step struct {
	Change
	// Position says where on the tape of its transaction the change is. It grows
	// from change to change, and falls with an Undo.
	Position int64
	// Undo: of the changes so far, those at Position and beyond are rolled back.
	// Change is empty. One Undo may stand for several rollbacks.
	Undo bool
}

// Follower reads a streamed transaction while it arrives. It may be used on
// another goroutine than the assembler's, also after the transaction is complete,
// until its Release; it is not safe for concurrent use.
//
//	tape    |~~~~~~~~~~~~~~~~~~~~~~~~~~~~|#############|- - -
//	                    ^ position       ^ end         ^ reach of the limit
//	         handed out | buffer         | to be copied
//
// It copies the tape piece by piece, under the lock of its Open, and works on the
// copy without: the assembler may move the tape to a file, cut it or drop it at
// any time. What it waits for costs no memory: it then has no buffer.
type Follower struct {
	open    *Open
	decoder *decoder.Decoder
	limit   uint64

	position int64  // of the next change
	reach    int64  // as of the last copy
	buffer   *chunk // of which the first read bytes are handed out
	read     int
	// relations are those of the transaction as of the last copy. Nobody changes
	// a table of relations in place.
	relations []*decoder.Relation
}

// pieceSize is what a follower copies under the lock at a time, and what its
// buffer holds unless a single change is larger.
const pieceSize = 64 << 10

// Next returns the next step, or false when no more has arrived that limit
// allows: it allows the blocks that began when at most that many transactions
// were complete, and never falls from call to call. After the last change of a
// complete transaction the error is io.EOF; ErrRolledBack may come at any time,
// and takes back all. Other errors mean that the transaction cannot be read from
// its spool file.
//
// The step is valid until the next call.
func (f *Follower) Next(limit uint64) (Step, bool, error) {
	f.limit = max(f.limit, limit)
	for f.left() < f.wanted() || f.open.cut.Load() < f.end() {
		handedOut := f.position
		f.fit(max(pieceSize, f.wanted()))
		switch err := f.fetch(); {
		case err != nil:
			f.free()
			return Step{}, false, err
		case f.position < handedOut:
			return Step{Position: f.position, Undo: true}, true, nil
		case f.left() == 0:
			f.free()
			return Step{}, false, nil
		case f.position+f.wanted() > f.reach:
			return Step{}, false, f.fault(errBeyondEnd(f.wanted()))
		}
	}
	position, size := f.position, f.wanted()
	change, err := readRecord(f.rest()[:size:size], f.decoder, f.relations)
	if err != nil {
		return Step{}, false, f.fault(err)
	}
	f.position += size
	f.read += int(size)
	return Step{Change: change, Position: position}, true, nil
}

// Held tells, after Next has returned false, whether more has arrived that the limit
// did not allow.
func (f *Follower) Held() bool {
	f.open.mu.Lock()
	defer f.open.mu.Unlock()
	return f.open.transaction.tape.size > f.position
}

// Close ends the use of the follower. The transaction may be released before or
// after. Closing twice does nothing.
func (f *Follower) Close() {
	if f.decoder == nil {
		return
	}
	f.free()
	f.open.transaction.budget.recycler.freeDecoder(f.decoder)
	f.decoder, f.relations = nil, nil
	f.open.mu.Lock()
	defer f.open.mu.Unlock()
	f.open.mu.follower = nil
}

// rest is what the buffer still has to hand out.
func (f *Follower) rest() []byte {
	if f.buffer == nil {
		return nil
	}
	return f.buffer.data[f.read:]
}

func (f *Follower) left() int64 { return int64(len(f.rest())) }

func (f *Follower) end() int64 { return f.position + f.left() }

// wanted is the size of the next record, as far as it is known.
func (f *Follower) wanted() int64 {
	rest := f.rest()
	if len(rest) < recordHeader {
		return recordHeader
	}
	return recordHeader + int64(binary.BigEndian.Uint32(rest))
}

// fit makes a buffer of that size, or of that of the common sizes which is next,
// with what is left in the front.
func (f *Follower) fit(size int64) {
	rest := f.rest()
	if f.buffer != nil && f.buffer.capacity() == int64(chunkCapacity(int(size))) {
		f.buffer.data = f.buffer.data[:copy(f.buffer.data, rest)]
		f.read = 0
		return
	}
	fitting := f.open.transaction.budget.recycler.newChunk(int(size))
	fitting.data = append(fitting.data, rest...)
	f.free()
	f.buffer = fitting
	f.open.charge(fitting.capacity())
}

// free gives the buffer back.
func (f *Follower) free() {
	if f.buffer == nil {
		return
	}
	f.open.charge(-f.buffer.capacity())
	f.open.transaction.budget.recycler.freeChunk(f.buffer)
	f.buffer, f.read = nil, 0
}

// fetch takes over what has become of the transaction: it goes back as far as the
// tape was cut, or else copies the next piece of it, if there is any.
func (f *Follower) fetch() error {
	o, t := f.open, f.open.transaction
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.mu.follower != f:
		return f.fault(errors.New("its follower is closed"))
	case o.mu.state == gone:
		return ErrRolledBack
	case o.mu.state == released:
		return f.fault(errReleased)
	}
	cut := o.cut.Load()
	o.cut.Store(uncut)
	if cut < f.end() {
		f.buffer.data = f.buffer.data[:f.read]
	}
	if cut < f.position {
		f.position = cut
		return nil
	}
	f.relations = t.relations.relations
	f.reach = o.reach(f.limit)
	if f.position == f.reach && f.reach == t.tape.size && o.mu.state == ready {
		return io.EOF
	}
	// No more than fills the smallest buffer for what is wanted.
	room := max(pieceSize, f.wanted()) - f.left()
	filled := len(f.buffer.data)
	piece := f.buffer.data[filled : filled+int(min(room, pieceSize, f.reach-f.end()))]
	n, err := t.tape.readAt(piece, f.end())
	if err != nil {
		return f.fault(err)
	}
	f.buffer.data = f.buffer.data[:filled+n]
	return nil
}

func (f *Follower) fault(err error) error {
	return fmt.Errorf("read transaction %d: %w", f.open.XID(), err)
}
