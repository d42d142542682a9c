package decoder

import (
	"bytes"
	"math"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
)

func TestDecode(t *testing.T) {
	for _, sample := range samples() {
		t.Run(sample.name, func(t *testing.T) {
			decoder := decoderIn(t, sample.inStream)
			input := bytes.Clone(sample.frame)
			message, err := decoder.Decode(input)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(sample.want, message))
			require.Equal(t, Type(sample.frame[0]), message.Type())
			require.Equal(t, sample.frame, input, "the frame was written to")
			require.Equal(t, sample.frame, encode(message, sample.inStream))
		})
	}
}

// One decoder sees all messages one after the other, twice, so that nothing of
// an earlier message shows in a later one of its kind.
func TestDecodeReusesMessages(t *testing.T) {
	var decoder Decoder
	for range 2 {
		for _, sample := range samples() {
			switch {
			case sample.inStream && !decoder.InStream():
				_, err := decoder.Decode(wire('S', uint32(741), uint8(1)))
				require.NoError(t, err)
			case !sample.inStream && decoder.InStream():
				_, err := decoder.Decode(wire('E'))
				require.NoError(t, err)
			}
			message, err := decoder.Decode(sample.frame)
			require.NoError(t, err, sample.name)
			require.Empty(t, cmp.Diff(sample.want, message), sample.name)
		}
	}
}

func TestStreamBlocks(t *testing.T) {
	start, stop := wire('S', uint32(741), uint8(1)), wire('E')
	insert := wire('I', uint32(1), 'N', uint16(0))
	streamedInsert := wire('I', uint32(742), uint32(1), 'N', uint16(0))

	var decoder Decoder
	require.False(t, decoder.InStream())
	_, err := decoder.Decode(start)
	require.NoError(t, err)
	require.True(t, decoder.InStream())

	_, err = decoder.Decode(start)
	require.EqualError(t, err, "malformed pgoutput STREAM START message, byte 0: the previous stream block is still open")
	_, err = decoder.Decode(append(stop, 0))
	require.EqualError(t, err, "malformed pgoutput STREAM STOP message, byte 1: 1 bytes follow the end of the message")
	require.True(t, decoder.InStream(), "a malformed frame changed the state")

	message, err := decoder.Decode(streamedInsert)
	require.NoError(t, err)
	require.Equal(t, uint32(742), message.(*Insert).XID)

	_, err = decoder.Decode(stop)
	require.NoError(t, err)
	require.False(t, decoder.InStream())

	_, err = decoder.Decode(stop)
	require.EqualError(t, err, "malformed pgoutput STREAM STOP message, byte 0: no stream block is open")
	_, err = decoder.Decode(start[:5])
	require.EqualError(t, err, "malformed pgoutput STREAM START message, byte 5: first segment needs 1 bytes and 0 are left")
	require.False(t, decoder.InStream(), "a malformed frame changed the state")

	message, err = decoder.Decode(insert)
	require.NoError(t, err)
	require.Zero(t, message.(*Insert).XID)
}

func TestReset(t *testing.T) {
	decoder := decoderIn(t, true)
	decoder.Reset()
	require.False(t, decoder.InStream())
	message, err := decoder.Decode(wire('I', uint32(1), 'N', uint16(0)))
	require.NoError(t, err)
	require.Equal(t, uint32(1), message.(*Insert).RelationID)
}

// What a caller may keep does not change with the frame or the next Decode.
func TestOwnedMessagesOutliveTheFrame(t *testing.T) {
	for _, sample := range samples() {
		switch sample.want.(type) {
		case *Relation, *TypeMessage:
			decoder := decoderIn(t, sample.inStream)
			frame := bytes.Clone(sample.frame)
			message, err := decoder.Decode(frame)
			require.NoError(t, err)

			clear(frame)
			_, err = decoder.Decode(wire('R', encodeXID(1, sample.inStream), uint32(1), "x", "y", 'd', uint16(0)))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(sample.want, message), sample.name)
		}
	}
}

// Appending to a value copies it instead of writing over the next field.
func TestValuesEndWithTheirCapacity(t *testing.T) {
	var decoder Decoder
	message, err := decoder.Decode(wire('I', uint32(1), 'N', uint16(2),
		't', uint32(1), []byte("a"), 't', uint32(1), []byte("b")))
	require.NoError(t, err)
	tuple := message.(*Insert).New
	_ = append(tuple[0].Data, "overwritten"...)
	require.Equal(t, "b", string(tuple[1].Data))
}

// A frame can be collected as soon as the next one is decoded, however wide its
// row was and whatever came after it.
func TestDecoderForgetsFrames(t *testing.T) {
	value := wire('t', uint32(4096), make([]byte, 4096))
	frames := map[string][]byte{
		"insert":          wire('I', uint32(1), 'N', uint16(3), value, 'n', value),
		"update":          wire('U', uint32(1), 'O', uint16(2), value, value, 'N', uint16(2), value, value),
		"delete":          wire('D', uint32(1), 'O', uint16(2), value, value),
		"logical message": wire('M', uint8(1), lsn.LSN(1), "prefix", uint32(4096), make([]byte, 4096)),
		"malformed row":   append(wire('I', uint32(1), 'N', uint16(1), value), 0),
	}
	for name := range frames {
		t.Run(name, func(t *testing.T) {
			var decoder Decoder
			// A wider row before it, so that the tuples have room to spare.
			_, err := decoder.Decode(wire('I', uint32(1), 'N', uint16(8), []byte("nnnnnnnn")))
			require.NoError(t, err)

			frame := bytes.Clone(frames[name])
			collected := weak.Make(&frame[0])
			_, _ = decoder.Decode(frame)
			_, err = decoder.Decode(wire('B', lsn.LSN(1), Timestamp(0), uint32(1)))
			require.NoError(t, err)

			runtime.GC()
			require.Nil(t, collected.Value(), "the decoder still refers to the frame")
			runtime.KeepAlive(&decoder)
		})
	}
}

func TestTimestamp(t *testing.T) {
	for _, test := range []struct {
		timestamp Timestamp
		want      string
	}{
		{0, "2000-01-01T00:00:00Z"},
		{1, "2000-01-01T00:00:00.000001Z"},
		{-1, "1999-12-31T23:59:59.999999Z"},
		{700_000_000_123_456, "2022-03-07T20:26:40.123456Z"},
		{math.MaxInt64, "294277-01-09T04:00:54.775807Z"},
		{math.MinInt64, "-290278-12-22T19:59:05.224192Z"},
	} {
		require.Equal(t, test.want, test.timestamp.Time().Format(time.RFC3339Nano))
	}
}

func TestTypeNames(t *testing.T) {
	seen := map[string]bool{}
	for _, sample := range samples() {
		seen[sample.want.Type().String()] = true
	}
	for _, name := range []string{
		"BEGIN", "COMMIT", "ORIGIN", "RELATION", "TYPE", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "MESSAGE",
		"STREAM START", "STREAM STOP", "STREAM COMMIT", "STREAM ABORT", "STREAM PREPARE",
		"BEGIN PREPARE", "PREPARE", "COMMIT PREPARED", "ROLLBACK PREPARED",
	} {
		require.True(t, seen[name], name)
		delete(seen, name)
	}
	require.Empty(t, seen)
	require.Equal(t, "'x'", Type('x').String())
	require.Equal(t, `'\u00ff'`, Type(0xFF).String())
}
