// Package merge computes what a number of changes of one table come to in the end.
//
//	INSERT k, UPDATE k, UPDATE m, DELETE n ──► Batch ──► insert k, update m, delete n
//
// Each row, known by its key, appears in the result once. Merging hides nothing: what a
// row must show on the target follows from its first change (an insert: that it is not
// there; an update or delete: that it is), and what happens to it from the last. So the
// result names four lists, each of which is one statement over arrays that must touch as
// many rows as it has elements:
//
//	Deletes   rows that must be there and go, also where the key is inserted again
//	Updates   rows that must be there and change
//	Inserts   rows that must not be there, once the deletes are done
//	Absent    rows that came and went: their keys must not be there
//
// The package is pure: it holds bytes and knows no connection.
package merge

import (
	"bytes"
	"hash/maphash"

	"pgapply/decoder"
)

// Batch holds the changes of one table. Its memory is used again after Reset. It is not
// safe for concurrent use.
type Batch struct {
	key   []int // columns of the key
	width int

	// rows in the order of their first changes; the cells of row i are
	// cells[i*width : (i+1)*width].
	rows  []row
	cells []cell
	data  []byte
	// formats tells for each column in which form its values are; 0 while all are NULL.
	formats []decoder.ValueKind
	changes int

	// slots find a row by the hash of its key: its number plus one, 0 for none. Their
	// number is a power of two.
	slots []int32
	seed  maphash.Seed
	lists [4][]int32
}

// row is what is known of one key.
type row struct {
	hash uint64
	// was says what the first change expects: that the row is there.
	was bool
	// deleted: a row that was there goes. here: a row is there at the end, and changed
	// that it is not as it was.
	deleted, here bool
}

// cell is a value; its bytes are data[start:end].
type cell struct {
	kind       decoder.ValueKind
	start, end int32
}

// New returns an empty batch for a table of width columns, of which key are those that
// rows are known by. Without any it takes inserts only, and each is a row of its own.
func New(width int, key []int) *Batch {
	return &Batch{
		key: key, width: width, seed: maphash.MakeSeed(),
		formats: make([]decoder.ValueKind, width), slots: make([]int32, 64),
	}
}

// Changes is how many changes were merged, Rows to how many rows, and Bytes how much
// their values take.
func (b *Batch) Changes() int { return b.changes }

// Rows is the number of different keys.
func (b *Batch) Rows() int { return len(b.rows) }

// Bytes is what the values take, also those that were replaced since.
func (b *Batch) Bytes() int { return len(b.data) }

// Reset empties the batch.
func (b *Batch) Reset() {
	b.rows, b.cells, b.data, b.changes = b.rows[:0], b.cells[:0], b.data[:0], 0
	clear(b.formats)
	clear(b.slots)
	for i := range b.lists {
		b.lists[i] = b.lists[i][:0]
	}
}

// Insert, Update and Delete add a change and report whether they did. They refuse one
// that does not follow from what came before, such as an update of a row that was
// deleted, and one whose values are in another form than those of their columns so far:
// that is for a batch of its own. The tuples are copied. An update must not change the
// key; the columns of old beyond the key are not looked at. Values of the key must not
// be NULL or unchanged.
func (b *Batch) Insert(newer decoder.Tuple) bool {
	hash := b.hash(newer)
	i := b.find(hash, newer)
	if i >= 0 && b.rows[i].here || !b.fits(newer) {
		return false
	}
	if i < 0 {
		i = b.add(hash, false)
	}
	b.rows[i].here = true
	b.set(i, newer, false)
	return true
}

// Update adds an UPDATE: see Insert.
func (b *Batch) Update(newer decoder.Tuple) bool {
	hash := b.hash(newer)
	i := b.find(hash, newer)
	if i >= 0 && !b.rows[i].here || !b.fits(newer) {
		return false
	}
	if i < 0 {
		i = b.add(hash, true)
		b.rows[i].here = true
		b.set(i, newer, false)
		return true
	}
	b.set(i, newer, true)
	return true
}

// Delete adds a DELETE: see Insert.
func (b *Batch) Delete(old decoder.Tuple) bool {
	hash := b.hash(old)
	i := b.find(hash, old)
	if i >= 0 && !b.rows[i].here || !b.keyFits(old) {
		return false
	}
	if i < 0 {
		i = b.add(hash, true)
		b.setKey(i, old)
	}
	r := &b.rows[i]
	r.here = false
	r.deleted = r.was
	b.changes++
	return true
}

// add begins a row, whose cells are to be set.
func (b *Batch) add(hash uint64, was bool) int {
	i := len(b.rows)
	b.rows = append(b.rows, row{hash: hash, was: was})
	for range b.width {
		b.cells = append(b.cells, cell{kind: decoder.Unchanged})
	}
	if len(b.key) == 0 {
		return i
	}
	if 2*len(b.rows) > len(b.slots) {
		b.slots = make([]int32, 2*len(b.slots))
		for n := range b.rows {
			b.place(n)
		}
	} else {
		b.place(i)
	}
	return i
}

func (b *Batch) place(i int) {
	mask := uint64(len(b.slots) - 1)
	at := b.rows[i].hash & mask
	for b.slots[at] != 0 {
		at = (at + 1) & mask
	}
	b.slots[at] = int32(i + 1)
}

// set takes the values over; with keep those that were not sent stay as they are.
func (b *Batch) set(i int, tuple decoder.Tuple, keep bool) {
	b.changes++
	cells := b.cells[i*b.width : (i+1)*b.width]
	for c, value := range tuple {
		if value.Kind == decoder.Unchanged && keep {
			continue
		}
		cells[c] = b.copy(c, value)
	}
}

func (b *Batch) setKey(i int, tuple decoder.Tuple) {
	for _, c := range b.key {
		b.cells[i*b.width+c] = b.copy(c, tuple[c])
	}
}

func (b *Batch) copy(column int, value decoder.Value) cell {
	start := int32(len(b.data))
	if value.Kind == decoder.Text || value.Kind == decoder.Binary {
		b.data = append(b.data, value.Data...)
		b.formats[column] = value.Kind
	}
	return cell{kind: value.Kind, start: start, end: int32(len(b.data))}
}

// fits tells whether the values are in the forms of their columns.
func (b *Batch) fits(tuple decoder.Tuple) bool {
	for c := range tuple {
		if !b.suits(c, tuple[c].Kind) {
			return false
		}
	}
	return true
}

func (b *Batch) keyFits(tuple decoder.Tuple) bool {
	for _, c := range b.key {
		if !b.suits(c, tuple[c].Kind) {
			return false
		}
	}
	return true
}

func (b *Batch) suits(column int, kind decoder.ValueKind) bool {
	return kind != decoder.Text && kind != decoder.Binary || b.formats[column] == 0 || b.formats[column] == kind
}

func (b *Batch) hash(tuple decoder.Tuple) uint64 {
	hash := uint64(0)
	for _, c := range b.key {
		hash = hash*0x9E3779B97F4A7C15 + maphash.Bytes(b.seed, tuple[c].Data)
	}
	return hash
}

// find returns the number of the row with that key, or -1.
func (b *Batch) find(hash uint64, tuple decoder.Tuple) int {
	mask := uint64(len(b.slots) - 1)
	for at := hash & mask; b.slots[at] != 0; at = (at + 1) & mask {
		i := int(b.slots[at] - 1)
		if b.rows[i].hash == hash && b.sameKey(i, tuple) {
			return i
		}
	}
	return -1
}

func (b *Batch) sameKey(i int, tuple decoder.Tuple) bool {
	for _, c := range b.key {
		own := b.cells[i*b.width+c]
		if own.kind != tuple[c].Kind || !bytes.Equal(b.data[own.start:own.end], tuple[c].Data) {
			return false
		}
	}
	return true
}
