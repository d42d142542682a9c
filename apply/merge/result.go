package merge

import (
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
	from := 0
	for i, char := range value {
		if char == '"' || char == '\\' {
			to = append(append(to, value[from:i]...), '\\')
			from = i
		}
	}
	return append(to, value[from:]...)
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

// Uniform tells whether all values of the rows can be in one form, and whether that is
// the binary one.
func (b *Batch) Uniform() (uniform, binary bool) {
	text := false
	for _, format := range b.formats {
		binary = binary || format == decoder.Binary
		text = text || format == decoder.Text
	}
	return !binary || !text, binary
}

// copyHeader begins the data of COPY in binary form: a signature, no flags, no extension
// (copy.sgml, "Binary Format").
const copyHeader = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// Copy appends the rows with all their columns as data for COPY .. FROM STDIN, in the
// form that [Batch.Uniform] tells.
func (b *Batch) Copy(to []byte, rows []int32) []byte {
	if _, binary := b.Uniform(); binary {
		return b.binaryCopy(to, rows)
	}
	for _, row := range rows {
		for i, c := range b.cells[int(row)*b.width : (int(row)+1)*b.width] {
			if i > 0 {
				to = append(to, '\t')
			}
			if c.kind == decoder.Text {
				to = appendCopied(to, b.data[c.start:c.start+c.size])
			} else {
				to = append(to, `\N`...)
			}
		}
		to = append(to, '\n')
	}
	return to
}

// appendCopied appends a value in the text form of COPY.
func appendCopied(to, value []byte) []byte {
	from := 0
	for i, char := range value {
		switch char {
		case '\\', '\t':
		case '\n':
			char = 'n'
		case '\r':
			char = 'r'
		default:
			continue
		}
		to = append(append(to, value[from:i]...), '\\', char)
		from = i + 1
	}
	return append(to, value[from:]...)
}

func (b *Batch) binaryCopy(to []byte, rows []int32) []byte {
	to = append(to, copyHeader...)
	for _, row := range rows {
		to = binary.BigEndian.AppendUint16(to, uint16(b.width))
		for _, c := range b.cells[int(row)*b.width : (int(row)+1)*b.width] {
			if c.kind != decoder.Binary {
				to = binary.BigEndian.AppendUint32(to, ^uint32(0))
				continue
			}
			to = binary.BigEndian.AppendUint32(to, uint32(c.size))
			to = append(to, b.data[c.start:c.start+c.size]...)
		}
	}
	return binary.BigEndian.AppendUint16(to, ^uint16(0))
}
