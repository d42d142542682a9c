package merge

import (
	"bytes"
	"cmp"
	"slices"
)

// sortable is a row with the beginning of its key.
type sortable struct {
	prefix uint64
	row    int32
}

// InKeyOrder sorts rows by their keys, shorter values first: whole numbers in text form
// come in their own order. Rows that lie together are then touched together, and whoever
// locks several locks them in one order. It returns the same slice.
func (b *Batch) InKeyOrder(rows []int32) []int32 {
	b.order = b.order[:0]
	for _, row := range rows {
		b.order = append(b.order, sortable{b.prefix(row), row})
	}
	slices.SortFunc(b.order, func(x, y sortable) int {
		if x.prefix != y.prefix {
			return cmp.Compare(x.prefix, y.prefix)
		}
		return b.compareKeys(x.row, y.row)
	})
	for i := range b.order {
		rows[i] = b.order[i].row
	}
	return rows
}

// prefix is the length of the key's first value, as far as a byte can tell, and the first
// seven bytes of it.
func (b *Batch) prefix(row int32) uint64 {
	value := b.keyValue(row, b.key[0])
	prefix := uint64(min(len(value), 0xff))
	for i := range 7 {
		prefix <<= 8
		if i < len(value) {
			prefix |= uint64(value[i])
		}
	}
	return prefix
}

func (b *Batch) compareKeys(x, y int32) int {
	for _, column := range b.key {
		p, q := b.keyValue(x, column), b.keyValue(y, column)
		if order := cmp.Or(cmp.Compare(len(p), len(q)), bytes.Compare(p, q)); order != 0 {
			return order
		}
	}
	return 0
}

func (b *Batch) keyValue(row int32, column int) []byte {
	c := &b.cells[int(row)*b.width+column]
	return b.data[c.start : c.start+c.size]
}
