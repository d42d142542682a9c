package txn

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"pgapply/internal/invariant"
)

// SpoolFile is a volatile file for the changes of one transaction, which no
// memory is left for. One goroutine uses it at a time. Its errors name the file
// or its directory.
type SpoolFile interface {
	io.Writer   // appends
	io.ReaderAt // from the start of the file
	// Truncate cuts the file to its first size bytes; the next Write continues
	// there.
	Truncate(size int64) error
	// Close removes the file.
	Close() error
}

// record is one change as it is stored. On the tape it reads, in big endian,
//
//	length of kind and body 4 | relation 4 | subxid 4 | kind 1 | body
//
// where kind and body are the frame of the change as it would be outside a
// stream block, that is without a transaction id.
type record struct {
	relation uint32 // index into the transaction's table; the first of several
	subxid   uint32
	kind     byte
	body     []byte
}

const (
	recordHeader = 12
	// noRelation is the relation of a record that concerns none.
	noRelation = ^uint32(0)
)

func (r *record) size() int { return recordHeader + 1 + len(r.body) }

// head appends everything but the body.
func (r *record) head(to []byte) []byte {
	to = binary.BigEndian.AppendUint32(to, uint32(1+len(r.body)))
	to = binary.BigEndian.AppendUint32(to, r.relation)
	to = binary.BigEndian.AppendUint32(to, r.subxid)
	return append(to, r.kind)
}

// tape holds the records of one transaction in the order of their arrival: the
// first stored bytes in a file, the rest in chunks. No record lies in two
// places, and a position on the tape is the same whether it is in the file or
// in memory, so that moving records to the file changes nothing else.
//
// A tape does not account for its memory: its methods say by how much it
// changes, and the owner tells the budget. After an error, too, what it says it
// holds can be read.
type tape struct {
	size   int64 // bytes of all records
	count  int   // records
	stored int64 // bytes at the start that are in the file
	file   SpoolFile
	chunks []*chunk
	memory int64 // capacity of the chunks
	first  chunk // the one in a page, if there is one
	few    [1]*chunk
}

// last returns the chunk that the next record goes to if it fits.
func (t *tape) last() *chunk {
	if len(t.chunks) == 0 {
		return nil
	}
	return t.chunks[len(t.chunks)-1]
}

func (t *tape) fits(size int) bool {
	last := t.last()
	return last != nil && last.fits(size)
}

// append stores a record, which must fit.
func (t *tape) append(r *record) {
	last := t.last()
	last.data = append(r.head(last.data), r.body...)
	t.size += int64(r.size())
	t.count++
	invariant.Check(int64(cap(last.data)) <= t.memory, "a chunk has grown")
}

// nextChunk is the capacity of the chunk that a record of size bytes needs.
func (t *tape) nextChunk(size int) int64 {
	if last := t.last(); last != nil {
		size = max(size, min(4*cap(last.data), largestChunk))
	}
	return int64(chunkCapacity(size))
}

// grow adds a chunk of that capacity.
func (t *tape) grow(capacity int64, r *recycler) {
	t.add(r.newChunk(int(capacity)))
}

func (t *tape) add(c *chunk) {
	if t.chunks == nil {
		t.chunks = t.few[:0]
	}
	t.chunks = append(t.chunks, c)
	t.memory += c.capacity()
}

// writeThrough appends a record to the file, its head by way of the scratch. No chunk may
// be left.
func (t *tape) writeThrough(r *record, b *Budget, scratch *[recordHeader + 1]byte) error {
	invariant.Check(len(t.chunks) == 0, "a record overtakes %d chunks", len(t.chunks))
	if err := t.write(b, r.head(scratch[:0]), r.body); err != nil {
		return err
	}
	t.size = t.stored
	t.count++
	return nil
}

// flush moves all chunks to the file, which must exist, and returns the memory
// that is free now. What an error stops stays in memory.
func (t *tape) flush(b *Budget) (freed int64, err error) {
	moved := 0
	for _, c := range t.chunks {
		if err = t.write(b, c.data); err != nil {
			break
		}
		freed += c.capacity()
		b.recycler.freeChunk(c)
		moved++
	}
	t.chunks = slices.Delete(t.chunks, 0, moved)
	t.memory -= freed
	return freed, err
}

// write appends records to the file, all of them or, for the reader, none: after
// an error it holds more than what is stored, and must not be written any more.
func (t *tape) write(b *Budget, parts ...[]byte) error {
	size := int64(0)
	for _, part := range parts {
		if _, err := t.file.Write(part); err != nil {
			return err
		}
		size += int64(len(part))
	}
	t.stored += size
	b.spooled.Add(size)
	return nil
}

// readAt copies what stands at a position on the tape, at least one byte unless
// the piece is empty. It may copy less than fills the piece.
func (t *tape) readAt(piece []byte, position int64) (int, error) {
	if len(piece) == 0 {
		return 0, nil
	}
	if position < t.stored {
		piece = piece[:min(int64(len(piece)), t.stored-position)]
		return len(piece), t.readFile(piece, position)
	}
	start := t.stored
	for _, c := range t.chunks {
		if offset := position - start; offset < int64(len(c.data)) {
			return copy(piece, c.data[offset:]), nil
		}
		start += int64(len(c.data))
	}
	return 0, io.ErrUnexpectedEOF
}

// readFile fills the piece from the file.
func (t *tape) readFile(piece []byte, offset int64) error {
	n, err := t.file.ReadAt(piece, offset)
	if n == len(piece) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// cut forgets all records from the position size on, before which there are
// count, and returns the memory that is free now.
func (t *tape) cut(size int64, count int, b *Budget) (freed int64, err error) {
	for len(t.chunks) > 0 && t.size > size {
		last := t.last()
		start := t.size - int64(len(last.data))
		if start < size {
			last.data = last.data[:size-start]
			t.size = size
			break
		}
		t.size = start
		freed += t.pop(&b.recycler)
	}
	if size < t.stored {
		if err := t.file.Truncate(size); err != nil {
			return freed, err
		}
		b.spooled.Add(size - t.stored)
		t.stored, t.size = size, size
	}
	t.count = count
	invariant.Check(t.size == size, "a tape cut at %d ends at %d", size, t.size)
	return freed, nil
}

// pop frees the last chunk.
func (t *tape) pop(r *recycler) (freed int64) {
	last := len(t.chunks) - 1
	freed = t.chunks[last].capacity()
	r.freeChunk(t.chunks[last])
	t.chunks[last] = nil
	t.chunks = t.chunks[:last]
	t.memory -= freed
	return freed
}

// free gives all chunks back.
func (t *tape) free(r *recycler) (freed int64) {
	for len(t.chunks) > 0 {
		freed += t.pop(r)
	}
	return freed
}

// files is the number of spool files.
func (t *tape) files() int {
	if t.file == nil {
		return 0
	}
	return 1
}

// closeFile removes the file, if there is one.
func (t *tape) closeFile(b *Budget) error {
	if t.file == nil {
		return nil
	}
	err := t.file.Close()
	b.spooled.Add(-t.stored)
	t.file = nil
	return err
}
