package parallel

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestKeys compares with maps: whatever was taken and has left meanwhile, a key's holder
// is the group that is in line and has it, or none that is in line.
func TestKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k keys
		first, next := uint64(1), uint64(1)
		held := map[uint64]uint64{}
		// Keys that meet in their low bits fill the table in runs.
		key := func(i int) uint64 { return uint64(i%3) | uint64(i/3)<<[]int{2, 9, 40}[i%3] }
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				var taken []uint64
				from := rapid.IntRange(0, 3000).Draw(t, "from")
				for i := range rapid.IntRange(0, 600).Draw(t, "keys") {
					if key := key(from + i); held[key] < first {
						taken = append(taken, key)
					}
				}
				k.take(taken, next, first)
				for _, key := range taken {
					held[key] = next
				}
				next++
			},
			"leave": func(t *rapid.T) {
				if first < next {
					first++
				}
			},
			"": func(t *rapid.T) {
				for key, group := range held {
					got := k.holder(key)
					require.True(t, got == group || group < first && got < first, "%x is held by %d, not %d; %d is the first", key, group, got, first)
				}
				for i := range 50 {
					if key := key(71 * i); held[key] == 0 {
						require.Zero(t, k.holder(key))
					}
				}
				require.LessOrEqual(t, 2*k.used, len(k.slots))
			},
		})
	})
}

// TestKeysKeepTheirSize: keys come and go, and after a while that costs no memory.
func TestKeysKeepTheirSize(t *testing.T) {
	var k keys
	taken := make([]uint64, 5000)
	group, key := uint64(0), uint64(0)
	round := func() {
		for i := range taken {
			key += 0x9e3779b97f4a7c15
			taken[i] = key
		}
		group++
		k.take(taken, group, max(group, 4)-3) // with three more in line
	}
	for range 20 {
		round()
	}
	size := len(k.slots)
	require.Zero(t, testing.AllocsPerRun(200, round))
	require.Len(t, k.slots, size)
	require.LessOrEqual(t, size, 8*4*len(taken))
}
