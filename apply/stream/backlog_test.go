package stream

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"pgapply/decoder"
	"pgapply/internal/lsn"
)

func TestBacklog(t *testing.T) {
	var b backlog
	require.Zero(t, b.oldest(0))
	b.received(10, 1_000_000)
	b.received(20, 1_000_001) // shares the mark
	b.received(30, 2_000_000)
	require.Equal(t, decoder.Timestamp(1_000_000), b.oldest(10), "20 is not applied")
	require.Equal(t, decoder.Timestamp(2_000_000), b.oldest(20))
	require.Zero(t, b.oldest(30))
	b.received(40, 0) // of which the time is not known
	require.Zero(t, b.oldest(30))
}

// However many there are, the oldest is never said to be younger than it is, nor older by
// more than twice what marks are apart, and memory is bounded.
func TestBacklogIsCloseAndSmall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b backlog
		count := rapid.IntRange(1, 20_000).Draw(t, "transactions")
		step := rapid.Int64Range(0, 100_000).Draw(t, "microseconds between commits")
		pause := rapid.Int64Range(0, 100_000_000).Draw(t, "pause after each thousand")
		times := make([]decoder.Timestamp, count)
		for i := range times {
			times[i] = decoder.Timestamp(1 + int64(i)*step + int64(i/1000)*pause)
			b.received(lsn.LSN(i+1), times[i])
		}
		require.LessOrEqual(t, len(b.marks), mostMarks)
		for applied := 0; applied < count; applied += 1 + count/50 {
			oldest := b.oldest(lsn.LSN(applied))
			require.LessOrEqual(t, oldest, times[applied])
			require.Less(t, times[applied]-oldest, 2*b.apart)
		}
		require.Zero(t, b.oldest(lsn.LSN(count)))
	})
}
