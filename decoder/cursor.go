package decoder

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"pgapply/internal/lsn"
)

// cursor reads the fields of one frame from left to right. Its error is sticky:
// after the first one every read yields zero values and changes nothing, so
// that callers read a whole message and ask once, with finish. No read goes
// beyond the frame, and byte slices alias it.
//
// Go evaluates the calls in a struct literal in the order in which they are
// written: a literal lists its fields in the order of the wire.
type cursor struct {
	frame  []byte // empty after an error, which makes every further read fail
	offset int    // of the next byte to read
	err    *FormatError
}

// fail records the first error; the field that it is about starts at offset.
func (c *cursor) fail(offset int, format string, arguments ...any) {
	if c.err != nil {
		return
	}
	c.err = &FormatError{Offset: offset, Reason: fmt.Sprintf(format, arguments...)}
	if len(c.frame) > 0 {
		c.err.Type = Type(c.frame[0])
	}
	c.frame, c.offset = nil, 0
}

// finish returns the error of the frame. Bytes that nobody read are one.
func (c *cursor) finish() *FormatError {
	if left := c.remaining(); left > 0 {
		c.fail(c.offset, "%d bytes follow the end of the message", left)
	}
	return c.err
}

func (c *cursor) remaining() int { return len(c.frame) - c.offset }

// bytes reads length bytes. The result is nil only after an error, and its
// capacity ends with it, so that nobody appends over the rest of the frame.
func (c *cursor) bytes(length uint32, field string) []byte {
	if uint64(length) > uint64(c.remaining()) {
		c.tooShort(length, field)
		return nil
	}
	start, end := c.offset, c.offset+int(length)
	c.offset = end
	return c.frame[start:end:end]
}

func (c *cursor) tooShort(length uint32, field string) {
	c.fail(c.offset, "%s needs %d bytes and %d are left", field, length, c.remaining())
}

func (c *cursor) uint8(field string) uint8 {
	if c.remaining() < 1 {
		c.tooShort(1, field)
		return 0
	}
	value := c.frame[c.offset]
	c.offset++
	return value
}

func (c *cursor) uint16(field string) uint16 {
	if c.remaining() < 2 {
		c.tooShort(2, field)
		return 0
	}
	value := binary.BigEndian.Uint16(c.frame[c.offset:])
	c.offset += 2
	return value
}

func (c *cursor) uint32(field string) uint32 {
	if c.remaining() < 4 {
		c.tooShort(4, field)
		return 0
	}
	value := binary.BigEndian.Uint32(c.frame[c.offset:])
	c.offset += 4
	return value
}

func (c *cursor) uint64(field string) uint64 {
	if c.remaining() < 8 {
		c.tooShort(8, field)
		return 0
	}
	value := binary.BigEndian.Uint64(c.frame[c.offset:])
	c.offset += 8
	return value
}

func (c *cursor) lsn(field string) lsn.LSN { return lsn.LSN(c.uint64(field)) }

// setLSN reads a position that is never zero, as the server's own reader
// demands of the same fields.
func (c *cursor) setLSN(field string) lsn.LSN {
	start := c.offset
	position := c.lsn(field)
	if position == 0 {
		c.fail(start, "%s is not set", field)
	}
	return position
}

func (c *cursor) timestamp(field string) Timestamp { return Timestamp(c.uint64(field)) }

// text reads the bytes before the next NUL, and the NUL.
func (c *cursor) text(field string) []byte {
	rest := c.frame[c.offset:]
	length := bytes.IndexByte(rest, 0)
	if length < 0 {
		c.fail(c.offset, "%s has no terminating zero byte", field)
		return nil
	}
	c.offset += length + 1
	return rest[:length:length]
}

// string is text in memory of its own.
func (c *cursor) string(field string) string { return string(c.text(field)) }

// flags reads a byte of flags of which only those in known may be set.
func (c *cursor) flags(known uint8) uint8 {
	start := c.offset
	flags := c.uint8("flags")
	if flags&^known != 0 {
		c.fail(start, "flags 0x%02x contain unknown bits", flags)
		return 0
	}
	return flags
}

// fits checks a count, whose field starts at start, before memory is allocated
// for that many items: each takes at least size bytes of what is left.
func (c *cursor) fits(count uint32, size int, start int, items string) int {
	if uint64(count)*uint64(size) > uint64(c.remaining()) {
		c.fail(start, "%d %s cannot be in the %d bytes that are left", count, items, c.remaining())
		return 0
	}
	return int(count)
}

// columns reads a number of columns, each of at least size bytes.
func (c *cursor) columns(size int) int {
	start := c.offset
	count := c.uint16("number of columns")
	if count > maxColumns {
		c.fail(start, "%d columns exceed the server's limit of %d", count, maxColumns)
		return 0
	}
	return c.fits(uint32(count), size, start, "columns")
}

// maxColumns is MaxTupleAttributeNumber in the server's htup_details.h.
const maxColumns = 1664
