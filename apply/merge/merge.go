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
//	Absent    rows that came and went: their keys must not be there
//	Inserts   rows that must not be there, once the deletes are done
//
// In that order: keys are told apart by their bytes, and where the target thinks two of
// them equal that differ in bytes (1.0 and 1.00, a and A), what was deleted under the one
// may have been inserted under the other, and an absent one under the other since.
//
// The package is pure: it holds bytes and knows no connection.
package merge

import (
	"bytes"
	"hash/maphash"

	"pgapply/decoder"
)

// Batch holds the changes of one table. Its memory is used again after Begin. It is not
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
	// form is that of all columns, where they must have one; 0 while all are NULL.
	oneForm bool
	form    decoder.ValueKind
	changes int

	// slots find a row by the hash of its key: its number plus one, 0 for none. Their
	// number is a power of two.
	slots []int32
	seed  maphash.Seed
	lists [4][]int32
	order []sortable
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

// cell is a value; its bytes are the first size of data[start : start+room].
type cell struct {
	start, size, room int32
	kind              decoder.ValueKind
}

// firstSlots is how many slots an empty batch has.
const firstSlots = 64

// New returns a batch without memory; Begin makes it one for a table.
func New() *Batch { return &Batch{seed: maphash.MakeSeed()} }

// Begin empties the batch for a table of width columns, of which key are those that rows
// are known by. Without any it takes inserts only, and each is a row of its own. With
// oneForm all values must be in text form or all in binary form.
func (b *Batch) Begin(width int, key []int, oneForm bool) {
	b.width, b.key, b.changes = width, key, 0
	b.oneForm, b.form = oneForm, 0
	b.rows, b.cells = b.rows[:0], b.cells[:0]
	if b.data == nil {
		b.data = []byte{} // no part of it may be nil, which a value is that is NULL
	}
	b.data = b.data[:0]
	b.formats = b.formats[:0]
	for range width {
		b.formats = append(b.formats, 0)
	}
	b.resize(firstSlots)
}

// Changes is how many changes were merged.
func (b *Batch) Changes() int { return b.changes }

// Rows is to how many rows they were: the number of different keys.
func (b *Batch) Rows() int { return len(b.rows) }

// Bytes is what the values take, also most of those that were replaced since.
func (b *Batch) Bytes() int { return len(b.data) }

// Cells is the number of values.
func (b *Batch) Cells() int { return len(b.cells) }

// Insert, Update and Delete add a change and return the number of its row, or -1. They
// refuse a change that does not follow from what came before, such as an update of a row
// that was deleted, and one whose values are in another form than those of their columns
// so far: that is for a batch of its own. The tuples are copied. An update must not
// change the key; the columns of old beyond the key are not looked at. Values of the key
// must not be NULL or unchanged.
func (b *Batch) Insert(newer decoder.Tuple) int {
	hash := b.hash(newer)
	i := b.find(hash, newer)
	if i >= 0 && b.rows[i].here || !b.fits(newer) {
		return -1
	}
	if i < 0 {
		i = b.add(hash, false)
	}
	b.rows[i].here = true
	b.set(i, newer, false)
	return i
}

// Update adds an UPDATE: see Insert.
func (b *Batch) Update(newer decoder.Tuple) int {
	hash := b.hash(newer)
	i := b.find(hash, newer)
	if i >= 0 && !b.rows[i].here || !b.fits(newer) {
		return -1
	}
	if i < 0 {
		i = b.add(hash, true)
		b.rows[i].here = true
		b.set(i, newer, false)
		return i
	}
	b.set(i, newer, true)
	return i
}

// Delete adds a DELETE: see Insert.
func (b *Batch) Delete(old decoder.Tuple) int {
	hash := b.hash(old)
	i := b.find(hash, old)
	if i >= 0 && !b.rows[i].here || !b.keyFits(old) {
		return -1
	}
	if i < 0 {
		i = b.add(hash, true)
		b.setKey(i, old)
	}
	r := &b.rows[i]
	r.here = false
	r.deleted = r.was
	b.changes++
	return i
}

// add begins a row, whose cells are to be set.
func (b *Batch) add(hash uint64, was bool) int {
	i := len(b.rows)
	b.rows = append(b.rows, row{hash: hash, was: was})
	for range b.width {
		b.cells = append(b.cells, cell{kind: decoder.Unchanged})
	}
	switch {
	case len(b.key) == 0:
	case 2*len(b.rows) > len(b.slots):
		b.resize(2 * len(b.slots))
	default:
		b.place(i)
	}
	return i
}

// resize makes that many slots, and finds a place for every row anew.
func (b *Batch) resize(slots int) {
	if cap(b.slots) < slots {
		b.slots = make([]int32, slots)
	}
	b.slots = b.slots[:slots]
	clear(b.slots)
	for i := range b.rows {
		b.place(i)
	}
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
	for c := range tuple {
		if tuple[c].Kind != decoder.Unchanged || !keep {
			b.copy(c, &cells[c], &tuple[c])
		}
	}
}

func (b *Batch) setKey(i int, tuple decoder.Tuple) {
	for _, c := range b.key {
		b.copy(c, &b.cells[i*b.width+c], &tuple[c])
	}
}

// copy sets a cell, in the place of its former bytes if there is room: a row that is
// updated over and over takes no more than once.
func (b *Batch) copy(column int, to *cell, value *decoder.Value) {
	to.kind = value.Kind
	size := int32(len(value.Data))
	switch {
	case value.Kind != decoder.Text && value.Kind != decoder.Binary:
		to.size = 0
		return
	case size > to.room:
		to.start, to.room = int32(len(b.data)), size
		b.data = append(b.data, value.Data...)
	default:
		copy(b.data[to.start:], value.Data)
	}
	to.size = size
	b.formats[column] = value.Kind
	b.form = value.Kind
}

// fits tells whether the values are in the forms of their columns.
func (b *Batch) fits(tuple decoder.Tuple) bool {
	form := b.form
	for c := range tuple {
		kind := tuple[c].Kind
		if !b.suits(c, kind) {
			return false
		}
		if b.oneForm && (kind == decoder.Text || kind == decoder.Binary) {
			if form != 0 && form != kind {
				return false
			}
			form = kind
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
		if own.kind != tuple[c].Kind || !bytes.Equal(b.data[own.start:own.start+own.size], tuple[c].Data) {
			return false
		}
	}
	return true
}
