package txn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"pgapply/decoder"
)

// Change is one change of a transaction. It is valid until the next call of its
// Reader or the transaction's Release.
type Change struct {
	// SubXID is the subtransaction of a streamed transaction that made the
	// change. It is the transaction's own XID for its top level and in
	// transactions that are not streamed, where the publisher does not tell.
	SubXID uint32
	// Message is an Insert, Update, Delete, Truncate or LogicalMessage. Its XID
	// is always zero.
	Message decoder.Message
	// Relation describes the table of an Insert, Update or Delete as it was
	// when the change arrived; nil for others. The same description is the same
	// pointer, in all transactions of a connection.
	Relation *decoder.Relation
	// Relations are the tables of a Truncate, in its order.
	Relations []*decoder.Relation
}

// Reader replays the changes of one transaction. It costs no allocation per
// change. It is not safe for concurrent use.
type Reader struct {
	transaction *Transaction
	decoder     *decoder.Decoder // nil before the first change and after the last
	left        int              // changes that are still to come
	rest        []byte           // of the chunk or the buffer that is being read
	chunk       int              // next to read
	offset      int64            // of the file, next to read
	buffer      *chunk           // for what comes from the file
}

// Next returns the next change, or io.EOF after the last one. Other errors mean
// that the transaction cannot be read from its spool file.
func (r *Reader) Next() (Change, error) {
	t := r.transaction
	if t.released.Load() {
		return Change{}, fmt.Errorf("read transaction %d: %w", t.XID, errReleased)
	}
	if r.left == 0 {
		r.freeDecoder()
		return Change{}, io.EOF
	}
	stored, err := r.record()
	if err != nil {
		return Change{}, fmt.Errorf("read transaction %d: %w", t.XID, err)
	}
	change, err := readRecord(stored, r.decoder, t.relations.relations)
	if err != nil {
		return Change{}, fmt.Errorf("read transaction %d: %w", t.XID, err)
	}
	r.left--
	return change, nil
}

// readRecord decodes the change that a record holds, which refers to those
// relations. It is valid until the decoder's next Decode.
func readRecord(stored []byte, d *decoder.Decoder, relations []*decoder.Relation) (Change, error) {
	message, err := d.Decode(stored[recordHeader:])
	if err != nil {
		return Change{}, err
	}
	first := binary.BigEndian.Uint32(stored[4:])
	change := Change{SubXID: binary.BigEndian.Uint32(stored[8:]), Message: message}
	switch m := message.(type) {
	case *decoder.LogicalMessage:
	case *decoder.Truncate:
		change.Relations = relations[first : int(first)+len(m.RelationIDs)]
	default:
		change.Relation = relations[first]
	}
	return change, nil
}

var errReleased = errors.New("it is released")

func errBeyondEnd(size int64) error {
	return fmt.Errorf("a record of %d bytes reaches beyond its end", size)
}

// rewind makes the first change the next one.
func (r *Reader) rewind(t *Transaction) {
	r.transaction = t
	if r.decoder == nil {
		r.decoder = t.budget.recycler.newDecoder()
	}
	r.left, r.rest, r.chunk, r.offset = t.tape.count, nil, 0, 0
}

// freeDecoder gives the decoder to the next reader. The end of the changes does so,
// since thousands of transactions that are released together do not need one each.
func (r *Reader) freeDecoder() {
	if r.decoder != nil {
		r.transaction.budget.recycler.freeDecoder(r.decoder)
		r.decoder = nil
	}
}

// close ends the use of the reader and returns the memory that is free now.
func (r *Reader) close() (freed int64) {
	r.freeDecoder()
	if r.buffer != nil {
		freed = r.buffer.capacity()
		r.transaction.budget.recycler.freeChunk(r.buffer)
	}
	r.buffer, r.rest, r.left = nil, nil, 0
	return freed
}

// record returns the next record as it stands on the tape.
func (r *Reader) record() ([]byte, error) {
	if err := r.fill(recordHeader); err != nil {
		return nil, err
	}
	size := recordHeader + int64(binary.BigEndian.Uint32(r.rest))
	if err := r.fill(size); err != nil {
		return nil, err
	}
	record := r.rest[:size:size]
	r.rest = r.rest[size:]
	return record, nil
}

// fill sees to it that rest holds at least size bytes.
func (r *Reader) fill(size int64) error {
	tape := &r.transaction.tape
	if int64(len(r.rest)) < size && r.offset < tape.stored {
		if err := r.readAhead(size); err != nil {
			return err
		}
	}
	for len(r.rest) == 0 && r.chunk < len(tape.chunks) {
		r.rest = tape.chunks[r.chunk].data
		r.chunk++
	}
	if int64(len(r.rest)) < size {
		return errBeyondEnd(size)
	}
	return nil
}

// readAhead reads as much of the file as the buffer holds, which grows for a
// record of more than that.
func (r *Reader) readAhead(size int64) error {
	t := r.transaction
	left := t.tape.stored - r.offset
	if size > int64(len(r.rest))+left {
		return errBeyondEnd(size)
	}
	if r.buffer == nil || r.buffer.capacity() < size {
		r.replaceBuffer(max(size, min(largestChunk, left)))
	}
	kept := copy(r.buffer.data[:cap(r.buffer.data)], r.rest)
	data := r.buffer.data[:min(int64(cap(r.buffer.data)), int64(kept)+left)]
	if err := t.tape.readFile(data[kept:], r.offset); err != nil {
		return err
	}
	r.offset += int64(len(data) - kept)
	r.rest = data
	return nil
}

// replaceBuffer keeps what is left to read.
func (r *Reader) replaceBuffer(size int64) {
	budget := r.transaction.budget
	grown := budget.recycler.newChunk(int(size))
	budget.chargeReady(grown.capacity())
	if r.buffer != nil {
		r.rest = grown.data[:copy(grown.data[:cap(grown.data)], r.rest)]
		budget.release(r.buffer.capacity(), 0)
		budget.recycler.freeChunk(r.buffer)
	}
	r.buffer = grown
}
