package stream

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
)

// FuzzDamagedStream damages streams that real servers have sent, frame by frame, in ways
// that break their structure or order. What then comes out, up to the first error, is what
// would have come out of the stream as it was: the same transactions with the same changes
// in the same order, none twice, and none acknowledged before it came.
//
// The fuzzer chooses a stream, and what is done to it: four bytes for each damage.
func FuzzDamagedStream(f *testing.F) {
	streams := capturedStreams(f)
	whole := make([][]applied, len(streams))
	for i, stream := range streams {
		var err error
		whole[i], err = play(stream)
		require.NoError(f, err)
		var boundaries []int
		for at := range stream {
			if is(&stream[at], "BCScEbPpKr") {
				boundaries = append(boundaries, at)
			}
		}
		for way := range len(ways) {
			for nth := range 6 {
				at := boundaries[nth*len(boundaries)/6]
				f.Add(uint8(i), []byte{byte(way), byte(at), byte(at >> 8), 0x5A})
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, script []byte) {
		i := int(which) % len(streams)
		damaged := slices.Clone(streams[i])
		for len(script) >= 4 && len(script) <= 4*8 && len(damaged) > 0 {
			ways[int(script[0])%len(ways)](&damaged, int(script[1])|int(script[2])<<8, script[3])
			script = script[4:]
		}
		outcome, err := play(damaged)
		if err != nil {
			requireTyped(t, err)
		}
		requirePart(t, whole[i], outcome)
	})
}

func requireTyped(t *testing.T, err error) {
	_, format := errors.AsType[*decoder.FormatError](err)
	_, protocol := errors.AsType[*txn.ProtocolError](err)
	_, position := errors.AsType[*PositionError](err)
	require.True(t, format || protocol || position, "%v", err)
}

// applied is what a stream leads to: transactions, and positions to acknowledge.
type applied struct {
	transaction string // what it is; empty for a keepalive
	end         lsn.LSN
}

// play takes the frames as a stream does, up to the first error.
func play(frames []source.Frame) (events []applied, err error) {
	budget := txn.NewBudget(1 << 30)
	s := New(Options{Budget: budget})
	defer func() { err = errors.Join(err, s.assembler.Close()) }()
	for _, frame := range frames {
		e, some, err := s.take(frame)
		if err != nil {
			return events, err
		}
		switch {
		case !some:
		case e.transaction == nil:
			events = append(events, applied{end: e.position})
		default:
			text, err := describe(e.transaction)
			e.transaction.Release()
			if err != nil {
				return events, err
			}
			events = append(events, applied{text, e.position})
		}
	}
	return events, nil
}

// describe tells a transaction from every other one.
func describe(t *txn.Transaction) (string, error) {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %d %t %s %s %d %q %s %d %q", t.Kind, t.XID, t.Streamed, t.FinalLSN, t.EndLSN, t.Time, t.GID, t.PrepareEndLSN, t.PrepareTime, t.Origin)
	for changes := t.Changes(); ; {
		change, err := changes.Next()
		if errors.Is(err, io.EOF) {
			return text.String(), nil
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "\n%d %s", change.SubXID, change.Message.Type())
		for _, relation := range append(change.Relations, change.Relation) {
			if relation != nil {
				fmt.Fprintf(&text, " %+v", *relation)
			}
		}
		switch m := change.Message.(type) {
		case *decoder.Insert:
			fmt.Fprintf(&text, " %q", m.New)
		case *decoder.Update:
			fmt.Fprintf(&text, " %d %q %q", m.OldKind, m.Old, m.New)
		case *decoder.Delete:
			fmt.Fprintf(&text, " %d %q", m.OldKind, m.Old)
		case *decoder.Truncate:
			fmt.Fprintf(&text, " %t %t", m.Cascade, m.RestartIdentity)
		case *decoder.LogicalMessage:
			fmt.Fprintf(&text, " %q %q", m.Prefix, m.Content)
		}
	}
}

// requirePart checks that what came of a damaged stream is a part of what comes of it whole:
// the first transactions, and no position that says more of the later ones than that they end
// behind it.
func requirePart(t *testing.T, whole, part []applied) {
	next := 0
	for _, e := range part {
		for next < len(whole) && whole[next].transaction == "" {
			next++
		}
		switch {
		case e.transaction != "":
			require.Less(t, next, len(whole), "one more than there were: %s", e.transaction)
			require.Equal(t, whole[next].transaction, e.transaction)
			next++
		case next < len(whole):
			require.LessOrEqual(t, e.end, whole[next].end, "acknowledged before it came: %s", whole[next].transaction)
		}
	}
}

// ways to damage a stream at a frame: they change the slice of frames, and never a frame.
var ways = []func(frames *[]source.Frame, at int, how byte){
	func(frames *[]source.Frame, at int, how byte) { // cut short
		edit(frames, at, func(f *source.Frame) {
			if !is(f, "A") { // has two lengths
				f.Payload = f.Payload[:int(how)*len(f.Payload)/256]
			}
		})
	},
	func(frames *[]source.Frame, at int, how byte) { // too long
		edit(frames, at, func(f *source.Frame) {
			if !is(f, "A") {
				f.Payload = append(bytes.Clone(f.Payload), make([]byte, 1+int(how)%20)...)
			}
		})
	},
	func(frames *[]source.Frame, at int, _ byte) { // an unknown kind of message
		edit(frames, at, func(f *source.Frame) { f.Payload = append([]byte{'z'}, f.Payload[1:]...) })
	},
	func(frames *[]source.Frame, at int, _ byte) { // dropped
		i := at % len(*frames)
		if is(&(*frames)[i], "BCSEb") && !lastOfAll(*frames, i) {
			*frames = slices.Delete(*frames, i, i+1)
		}
	},
	func(frames *[]source.Frame, at int, _ byte) { // twice
		i := at % len(*frames)
		if is(&(*frames)[i], "BCSEcbPpKr") {
			*frames = slices.Insert(*frames, i, (*frames)[i])
		}
	},
	func(frames *[]source.Frame, at int, how byte) { // the beginning or end of a part somewhere else
		i := at % len(*frames)
		if is(&(*frames)[i], "BSE") {
			*frames = slices.Insert(*frames, (at+int(how))%len(*frames), (*frames)[i])
		}
	},
	func(frames *[]source.Frame, at int, how byte) { // the end of a transaction again, later
		i := at % len(*frames)
		if is(&(*frames)[i], "CcpKr") {
			*frames = slices.Insert(*frames, min(len(*frames), i+1+int(how)), (*frames)[i])
		}
	},
	func(frames *[]source.Frame, at int, how byte) { // the end of a transaction
		edit(frames, at, func(f *source.Frame) {
			if offset := map[byte]int{'C': 10, 'c': 14, 'P': 10, 'p': 10, 'K': 10, 'r': 10}[f.Payload[0]]; offset != 0 && len(f.Payload) >= offset+8 {
				f.Payload = bytes.Clone(f.Payload)
				f.Payload[offset+int(how)%8] ^= how | 1
			}
		})
	},
	func(frames *[]source.Frame, at int, how byte) { // the position of a frame that ends one
		i := at % len(*frames)
		if f := &(*frames)[i]; is(f, "CcPpKr") {
			f.WALStart ^= lsn.LSN(how|1) << (how % 56)
		}
	},
	func(frames *[]source.Frame, at int, how byte) { // a keepalive in an ordinary transaction
		for i := at % len(*frames); i > 0; i-- {
			if f := &(*frames)[i]; is(f, "BSbCcPpKrE") {
				if is(f, "B") && len(f.Payload) > 9 {
					final := lsn.LSN(binary.BigEndian.Uint64(f.Payload[1:]))
					*frames = slices.Insert(*frames, i+1, source.Frame{Kind: source.Keepalive, WALEnd: final + lsn.LSN(how) + 1})
				}
				return
			}
		}
	},
	func(frames *[]source.Frame, at int, how byte) { // frames of a transaction again, up to its end
		i := at % len(*frames)
		if !is(&(*frames)[i], "BS") {
			return
		}
		for j := i; j < len(*frames); j++ {
			if is(&(*frames)[j], "Cc") {
				again := slices.Clone((*frames)[i : j+1])
				*frames = slices.Insert(*frames, min(len(*frames), j+1+int(how)%8), again...)
				return
			}
		}
	},
	func(frames *[]source.Frame, at int, _ byte) { // a table that is not there
		edit(frames, at, func(f *source.Frame) {
			if is(f, "IUD") && len(f.Payload) > 9 {
				f.Payload = bytes.Clone(f.Payload)
				relation := 1
				if !strings.ContainsRune("KON", rune(f.Payload[5])) {
					relation = 5 // behind the transaction id, in a stream block
				}
				f.Payload[relation] ^= 0x40
			}
		})
	},
}

// lastOfAll tells that no other boundary follows, by which one would see that one is missing.
func lastOfAll(frames []source.Frame, i int) bool {
	return !slices.ContainsFunc(frames[i+1:], func(f source.Frame) bool { return is(&f, "BCSEcbPpKr") })
}

func is(f *source.Frame, kinds string) bool {
	return f.Kind == source.Data && len(f.Payload) > 0 && bytes.IndexByte([]byte(kinds), f.Payload[0]) >= 0
}

// edit changes a data frame in place; its payload is shared with the original stream.
func edit(frames *[]source.Frame, at int, change func(*source.Frame)) {
	if f := &(*frames)[at%len(*frames)]; f.Kind == source.Data && len(f.Payload) > 0 {
		change(f)
	}
}

// capturedStreams are those of the decoder's golden files, in the frames of a stream: what
// ends a transaction says where that ends, and a keepalive follows it.
func capturedStreams(f *testing.F) (streams [][]source.Frame) {
	files, err := filepath.Glob("../../decoder/testdata/1[4-9]/*.golden")
	require.NoError(f, err)
	require.NotEmpty(f, files)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(f, err)
		var frames []source.Frame
		var d decoder.Decoder
		for _, block := range strings.Split(string(content), "\ndecode\n")[1:] {
			input, _, _ := strings.Cut(block, "\n----\n")
			for line := range strings.FieldsSeq(input) {
				payload, err := hex.DecodeString(line)
				require.NoError(f, err)
				message, err := d.Decode(payload)
				require.NoError(f, err)
				frame := source.Frame{Kind: source.Data, Payload: payload, WALStart: endOf(message)}
				frames = append(frames, frame)
				if frame.WALStart != 0 {
					frames = append(frames, source.Frame{Kind: source.Keepalive, WALEnd: frame.WALStart})
				}
			}
		}
		if _, err := play(frames); err == nil { // as far as one connection goes
			streams = append(streams, frames)
		}
	}
	require.GreaterOrEqual(f, len(streams), 8)
	return streams
}

func endOf(message decoder.Message) lsn.LSN {
	switch m := message.(type) {
	case *decoder.Commit:
		return m.EndLSN
	case *decoder.StreamCommit:
		return m.EndLSN
	case *decoder.Prepare:
		return m.EndLSN
	case *decoder.StreamPrepare:
		return m.EndLSN
	case *decoder.CommitPrepared:
		return m.EndLSN
	case *decoder.RollbackPrepared:
		return m.RollbackEndLSN
	}
	return 0
}
