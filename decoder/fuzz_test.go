package decoder

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzDecode feeds a decoder a sequence of frames. Whatever they hold it must
// not panic; what it accepts must be all that the frame says, so that it can be
// encoded to the same bytes again; and what callers may keep must not change
// when the frame does.
func FuzzDecode(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		var decoder Decoder
		var kept []keptMessage
		for _, original := range splitFrames(input) {
			frame := bytes.Clone(original)
			inStream := decoder.InStream()
			message, err := decoder.Decode(frame)
			require.Equal(t, original, frame, "the frame was written to")
			if err != nil {
				require.Nil(t, message)
				requireFormatError(t, frame, err)
				require.Equal(t, inStream, decoder.InStream())
				continue
			}
			if again := encode(message, inStream); !bytes.Equal(original, again) {
				require.True(t, spellsOutCatalog(message, original), "%s: %x became %x", render(message), original, again)
			}
			requireValuesInside(t, message)

			switch message.(type) {
			case *Relation, *TypeMessage:
				kept = append(kept, keptMessage{message, render(message)})
			}
			for i := range frame {
				frame[i] ^= 0xFF
			}
		}
		for _, message := range kept {
			require.Equal(t, message.rendered, render(message.message))
		}
	})
}

// FuzzAgainstPglogrepl feeds the same frames to pglogrepl. Where ours accepts a
// message of protocol 1 or 2, both must read the same. The reverse does not
// hold: the library accepts trailing bytes, unknown flags and more.
func FuzzAgainstPglogrepl(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		var decoder Decoder
		for _, frame := range splitFrames(input) {
			inStream := decoder.InStream()
			message, err := decoder.Decode(frame)
			if err == nil && pglogreplKnows(message) {
				requireAgreement(t, frame, inStream, message)
			}
		}
	})
}

type keptMessage struct {
	message  Message
	rendered string
}

// spellsOutCatalog: the server never spells pg_catalog out, but if it did, the
// name would be read as what it is.
func spellsOutCatalog(message Message, frame []byte) bool {
	var namespace string
	switch m := message.(type) {
	case *Relation:
		namespace = m.Namespace
	case *TypeMessage:
		namespace = m.Namespace
	}
	return namespace == "pg_catalog" && bytes.Contains(frame, []byte("pg_catalog\x00"))
}

// requireValuesInside checks that no value reaches beyond its own bytes, and
// that NULL can be told from an empty value by its data too.
func requireValuesInside(t *testing.T, message Message) {
	var tuples [2]Tuple
	switch m := message.(type) {
	case *Insert:
		tuples[0] = m.New
	case *Update:
		tuples = [2]Tuple{m.Old, m.New}
	case *Delete:
		tuples[0] = m.Old
	}
	for _, tuple := range tuples {
		for _, value := range tuple {
			require.Equal(t, len(value.Data), cap(value.Data))
			require.Equal(t, value.Kind == Text || value.Kind == Binary, value.Data != nil)
		}
	}
}

// A fuzz input is a sequence of frames, each behind its length in two bytes. A
// length beyond the input means what is left of it.

func splitFrames(input []byte) [][]byte {
	var frames [][]byte
	for len(input) >= 2 {
		length := int(binary.BigEndian.Uint16(input))
		input = input[2:]
		length = min(length, len(input))
		frames = append(frames, input[:length:length])
		input = input[length:]
	}
	return frames
}

func joinFrames(frames ...[]byte) []byte {
	var input []byte
	for _, frame := range frames {
		input = binary.BigEndian.AppendUint16(input, uint16(len(frame)))
		input = append(input, frame...)
	}
	return input
}

// addSeeds adds every sample, all that stand between stream blocks as one
// sequence, and the transactions and blocks captured from the newest server.
func addSeeds(f *testing.F) {
	start := wire('S', uint32(741), uint8(1))
	var all [][]byte
	for _, sample := range samples() {
		if sample.inStream {
			f.Add(joinFrames(start, sample.frame))
			continue
		}
		f.Add(joinFrames(sample.frame))
		if sample.want.Type() != TypeStreamStart {
			all = append(all, sample.frame)
		}
	}
	f.Add(joinFrames(all...))

	majors := goldenMajors()
	for _, file := range goldenFiles(f, majors[len(majors)-1]) {
		content, err := os.ReadFile(file)
		require.NoError(f, err)
		for _, block := range goldenBlocks(f, string(content)) {
			// A long value only slows the fuzzer down.
			if seed := joinFrames(block...); len(seed) < 1000 {
				f.Add(seed)
			}
		}
	}
}
