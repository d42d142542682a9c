package decoder

import (
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
)

// tenColumns is an INSERT of ten text values of 16 bytes each.
func tenColumns() []byte {
	frame := wire('I', uint32(16385), 'N', uint16(10))
	for range 10 {
		frame = append(frame, wire('t', uint32(16), []byte("0123456789abcdef"))...)
	}
	return frame
}

func BenchmarkInsert(b *testing.B) {
	frame := tenColumns()
	b.Run("ours", func(b *testing.B) {
		b.SetBytes(int64(len(frame)))
		b.ReportAllocs()
		var decoder Decoder
		for b.Loop() {
			if _, err := decoder.Decode(frame); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("pglogrepl", func(b *testing.B) {
		b.SetBytes(int64(len(frame)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := pglogrepl.Parse(frame); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Rows, and everything that may come once per row or per transaction, cost no
// allocation. Only messages that describe tables or types or carry a name do.
func TestNoAllocations(t *testing.T) {
	check := func(t *testing.T, inStream bool, frames ...[]byte) {
		decoder := decoderIn(t, inStream)
		decode := func() {
			for _, frame := range frames {
				if _, err := decoder.Decode(frame); err != nil {
					t.Fatal(err)
				}
			}
		}
		decode() // lets the tuples grow
		require.Zero(t, testing.AllocsPerRun(1000, decode))
	}
	for _, sample := range samples() {
		switch sample.want.Type() {
		case TypeOrigin, TypeRelation, TypeType,
			TypeBeginPrepare, TypePrepare, TypeStreamPrepare, TypeCommitPrepared, TypeRollbackPrepared:
			continue // they own a name
		case TypeStreamStart, TypeStreamStop:
			continue // below: one follows the other
		}
		t.Run(sample.name, func(t *testing.T) { check(t, sample.inStream, sample.frame) })
	}
	t.Run("stream blocks", func(t *testing.T) {
		check(t, false, wire('S', uint32(741), uint8(1)), wire('E'))
	})
	t.Run("rows of different widths", func(t *testing.T) {
		wide := wire('U', uint32(1), 'O', uint16(3), []byte("nnn"), 'N', uint16(3), []byte("nnn"))
		check(t, false, wide, tenColumns(), wide, wire('D', uint32(1), 'K', uint16(1), 'n'))
	})
}
