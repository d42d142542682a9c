package source

import (
	"encoding/binary"
	"fmt"
	"io"
)

// copyBuffer is how much of a COPY is taken from the socket at once.
const copyBuffer = 256 << 10

// messages stands between a connection and pgproto3's reader, and never gives that
// more than the message it is reading. So nothing of a COPY is ever in that reader's
// buffer, and its data can be had from here without being looked at row by row.
//
//	socket ──► buffer ──┬─ Read: one message at a time ──► pgproto3
//	                    └─ data: the payload of CopyData messages ──► COPY FROM
type messages struct {
	from   io.Reader
	buffer []byte
	// buffer[start:end] is what was read and not passed on yet.
	start, end int
	// left is what is to come of the message that is passed on.
	left int
}

// messageHeader is a type and a length, which counts itself.
const messageHeader = 5

func newMessages(from io.Reader) *messages {
	return &messages{from: from, buffer: make([]byte, 16<<10)}
}

// Read passes on at most the rest of one message.
func (m *messages) Read(p []byte) (int, error) {
	if m.left == 0 {
		size, err := m.next()
		if err != nil {
			return 0, err
		}
		m.left = messageHeader + size
	} else if m.start == m.end {
		if err := m.fill(1); err != nil {
			return 0, err
		}
	}
	n := copy(p, m.buffer[m.start:min(m.end, m.start+m.left)])
	m.start += n
	m.left -= n
	return n, nil
}

// next returns the size of the body of the message that comes next, once its header is
// in the buffer.
func (m *messages) next() (size int, err error) {
	if err := m.fill(messageHeader); err != nil {
		return 0, err
	}
	length := int32(binary.BigEndian.Uint32(m.buffer[m.start+1:]))
	if length < 4 {
		return 0, fmt.Errorf("a message of the publisher claims to have %d bytes", length)
	}
	return int(length) - 4, nil
}

// fill makes at least n bytes be in the buffer.
func (m *messages) fill(n int) error {
	if m.end-m.start >= n {
		return nil
	}
	m.end = copy(m.buffer, m.buffer[m.start:m.end])
	m.start = 0
	read, err := io.ReadAtLeast(m.from, m.buffer[m.end:], n-m.end)
	m.end += read
	return err
}

// data fills p with what the next CopyData messages carry and counts those that begin in
// it. It returns less than len(p) only when a message of another kind comes next, which
// Read will pass on, or with an error.
func (m *messages) data(p []byte) (n, begun int, err error) {
	for n < len(p) {
		if m.left == 0 {
			size, err := m.next()
			if err != nil {
				return n, begun, err
			}
			if m.buffer[m.start] != 'd' {
				return n, begun, nil
			}
			m.start += messageHeader
			m.left = size
			begun++
		}
		if m.start == m.end && m.left > 0 {
			if err := m.fill(1); err != nil {
				return n, begun, err
			}
		}
		moved := copy(p[n:], m.buffer[m.start:min(m.end, m.start+m.left)])
		m.start += moved
		m.left -= moved
		n += moved
	}
	return n, begun, nil
}

// grow makes the buffer one for bulk data.
func (m *messages) grow() {
	if len(m.buffer) < copyBuffer {
		larger := make([]byte, copyBuffer)
		m.end = copy(larger, m.buffer[m.start:m.end])
		m.start = 0
		m.buffer = larger
	}
}
