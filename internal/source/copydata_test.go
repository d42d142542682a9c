package source

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestCopyDataPassesBy reads streams of messages, in which runs of CopyData lie between
// others, and finds every byte in the right place however the socket delivers them.
func TestCopyDataPassesBy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream, payload []byte
		var err error
		add := func(message pgproto3.BackendMessage) {
			stream, err = message.Encode(stream)
			require.NoError(t, err)
		}
		rounds := rapid.IntRange(1, 4).Draw(t, "rounds")
		want := make([][]byte, rounds)
		count := make([]int, rounds)
		for i := range rounds {
			add(&pgproto3.CopyOutResponse{})
			count[i] = rapid.IntRange(0, 20).Draw(t, "messages")
			payload = nil
			for range count[i] {
				row := bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(t, "value"))}, rapid.IntRange(0, 100).Draw(t, "size"))
				if rapid.IntRange(0, 99).Draw(t, "large") == 0 {
					row = bytes.Repeat([]byte("0123456789"), 30_000)
				}
				add(&pgproto3.CopyData{Data: row})
				payload = append(payload, row...)
			}
			want[i] = payload
			add(&pgproto3.CopyDone{})
		}

		var from io.Reader = bytes.NewReader(stream)
		switch rapid.IntRange(0, 2).Draw(t, "socket") {
		case 1:
			from = iotest.HalfReader(from)
		case 2:
			from = iotest.DataErrReader(from)
		}
		m := newMessages(from)
		if rapid.Bool().Draw(t, "grow") {
			m.grow()
		}
		frontend := pgproto3.NewFrontend(m, nil)
		p := make([]byte, rapid.SampledFrom([]int{61, 4096, 128 << 10}).Draw(t, "buffer"))
		for i := range rounds {
			message, err := frontend.Receive()
			require.NoError(t, err)
			require.IsType(t, &pgproto3.CopyOutResponse{}, message)
			var got []byte
			begun := 0
			for {
				n, more, err := m.data(p)
				require.NoError(t, err)
				got, begun = append(got, p[:n]...), begun+more
				if n < len(p) {
					break
				}
			}
			require.True(t, bytes.Equal(want[i], got))
			require.Equal(t, count[i], begun)
			message, err = frontend.Receive()
			require.NoError(t, err)
			require.IsType(t, &pgproto3.CopyDone{}, message)
		}
		_, err = frontend.Receive()
		require.Error(t, err)
	})
}

func TestCopyDataThatIsCutOff(t *testing.T) {
	stream, err := (&pgproto3.CopyData{Data: []byte("0123456789")}).Encode(nil)
	require.NoError(t, err)
	for length := range len(stream) {
		m := newMessages(bytes.NewReader(stream[:length]))
		n, _, err := m.data(make([]byte, 100))
		require.Error(t, err)
		require.Equal(t, max(0, length-messageHeader), n)
	}
	m := newMessages(bytes.NewReader([]byte{'d', 0xff, 0xff, 0xff, 0xff}))
	_, _, err = m.data(make([]byte, 10))
	require.ErrorContains(t, err, "claims to have -1 bytes")
}

func TestCopyDataAllocatesNothing(t *testing.T) {
	row, err := (&pgproto3.CopyData{Data: bytes.Repeat([]byte("x"), 100)}).Encode(nil)
	require.NoError(t, err)
	m := newMessages(&endless{row: row})
	m.grow()
	p := make([]byte, 128<<10)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		n, begun, err := m.data(p)
		if n != len(p) || begun == 0 || err != nil {
			t.Fatal(n, begun, err)
		}
	}))
}

// endless repeats one message.
type endless struct {
	row []byte
	at  int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		moved := copy(p[n:], e.row[e.at:])
		n += moved
		e.at = (e.at + moved) % len(e.row)
	}
	return n, nil
}
