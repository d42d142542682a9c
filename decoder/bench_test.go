package decoder

import (
	"encoding/binary"
	"testing"

	"github.com/jackc/pglogrepl"
)

func BenchmarkInsert(b *testing.B) {
	frame := []byte{'I', 0, 0, 0x40, 1, 'N', 0, 10}
	for range 10 {
		frame = append(frame, 't')
		frame = binary.BigEndian.AppendUint32(frame, 16)
		frame = append(frame, "0123456789abcdef"...)
	}
	b.Run("ours", func(b *testing.B) {
		b.SetBytes(int64(len(frame)))
		b.ReportAllocs()
		var d Decoder
		for b.Loop() {
			if _, err := d.Decode(frame); err != nil {
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
