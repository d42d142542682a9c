package merge

import (
	"bytes"
	"encoding/binary"

	"pgapply/decoder"
)

// Result lists rows of a batch by their numbers. It is valid until the batch changes.
type Result struct {
	Deletes, Updates, Absent, Inserts []int32
}

// Result computes what the changes come to.
func (b *Batch) Result() Result {
	for i := range b.lists {
		b.lists[i] = b.lists[i][:0]
	}
	for i := range b.rows {
		r := &b.rows[i]
		n := int32(i)
		if r.deleted {
			b.lists[0] = append(b.lists[0], n)
		}
		switch {
		case r.here && r.was && !r.deleted:
			b.lists[1] = append(b.lists[1], n)
		case r.here:
			b.lists[3] = append(b.lists[3], n)
		case !r.was:
			b.lists[2] = append(b.lists[2], n)
		}
	}
	return Result{Deletes: b.lists[0], Updates: b.lists[1], Absent: b.lists[2], Inserts: b.lists[3]}
}

// Sent tells whether a value of that column is known for the row.
func (b *Batch) Sent(row int32, column int) bool {
	return b.cells[int(row)*b.width+column].kind != decoder.Unchanged
}

// Value returns a value of a row. Its bytes are the batch's, until it changes.
func (b *Batch) Value(row int32, column int) decoder.Value {
	c := b.cells[int(row)*b.width+column]
	value := decoder.Value{Kind: c.kind}
	if c.kind == decoder.Text || c.kind == decoder.Binary {
		end := c.start + c.size
		value.Data = b.data[c.start:end:end]
	}
	return value
}

// Binary tells whether the column's values are in binary form.
func (b *Batch) Binary(column int) bool { return b.formats[column] == decoder.Binary }

// Array appends the array of a column's values in those rows, in the form that Binary
// tells: array_in's with that delimiter, or array_recv's with that type of elements
// (arrayfuncs.c).
func (b *Batch) Array(to []byte, rows []int32, column int, delimiter byte, elementOID uint32) []byte {
	if b.Binary(column) {
		return b.binaryArray(to, rows, column, elementOID)
	}
	return b.textArray(to, rows, column, delimiter)
}

func (b *Batch) textArray(to []byte, rows []int32, column int, delimiter byte) []byte {
	to = append(to, '{')
	for i, row := range rows {
		if i > 0 {
			to = append(to, delimiter)
		}
		c := b.cells[int(row)*b.width+column]
		if c.kind != decoder.Text {
			to = append(to, "NULL"...)
			continue
		}
		to = append(to, '"')
		to = appendEscaped(to, b.data[c.start:c.start+c.size])
		to = append(to, '"')
	}
	return append(to, '}')
}

// appendEscaped appends a value as it stands between quotes.
func appendEscaped(to, value []byte) []byte {
	for {
		i := bytes.IndexAny(value, `"\`)
		if i < 0 {
			return append(to, value...)
		}
		to = append(append(to, value[:i]...), '\\', value[i])
		value = value[i+1:]
	}
}

func (b *Batch) binaryArray(to []byte, rows []int32, column int, elementOID uint32) []byte {
	nulls := uint32(0)
	for _, row := range rows {
		if b.cells[int(row)*b.width+column].kind != decoder.Binary {
			nulls = 1
			break
		}
	}
	for _, word := range [...]uint32{1, nulls, elementOID, uint32(len(rows)), 1} {
		to = binary.BigEndian.AppendUint32(to, word)
	}
	for _, row := range rows {
		c := b.cells[int(row)*b.width+column]
		if c.kind != decoder.Binary {
			to = binary.BigEndian.AppendUint32(to, ^uint32(0))
			continue
		}
		to = binary.BigEndian.AppendUint32(to, uint32(c.size))
		to = append(to, b.data[c.start:c.start+c.size]...)
	}
	return to
}
