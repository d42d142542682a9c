package source

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPacerLeavesSingleTransactionsAlone(t *testing.T) {
	p := newPacer("tcp")
	now := time.Now()
	for range 100 {
		for range burst {
			require.LessOrEqual(t, p.pause(now), time.Duration(0))
			p.read(now, 100)
		}
		now = now.Add((burst + 1) * remoteInterval) // quiet
	}
}

func TestPacerSpacesASteadyFlow(t *testing.T) {
	p := newPacer("tcp")
	now := time.Now()
	start := now
	for i := range 1000 + 3*burst {
		if i == 3*burst {
			start = now
		}
		if pause := p.pause(now); pause > 0 {
			now = now.Add(pause)
		}
		p.read(now, 1000)
		now = now.Add(10 * time.Microsecond)
	}
	require.InDelta(t, 1000*remoteInterval, now.Sub(start), float64(2*remoteInterval))
}

func TestPacerKeepsUpWithALargeFlow(t *testing.T) {
	const rate = 500 << 20 // bytes a second
	p := newPacer("tcp")
	now, read := time.Now(), time.Now()
	for i := range 1000 {
		if pause := p.pause(now); pause > 0 {
			now = now.Add(pause)
		}
		waiting := int(now.Sub(read).Seconds() * rate)
		if i > 3*burst {
			require.Less(t, waiting, 2*gathered, "the buffer of the kernel would be full")
		}
		read = now
		p.read(now, max(1, waiting))
		now = now.Add(5 * time.Microsecond)
	}
}

func TestPacerNeverPausesLonger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPacer(rapid.SampledFrom([]string{"tcp", "unix"}).Draw(t, "network"))
		now := time.Now()
		for range 100 {
			if pause := p.pause(now); pause > p.interval {
				t.Fatalf("pause of %v", pause)
			}
			p.read(now, rapid.IntRange(0, receiveBuffer).Draw(t, "read"))
			now = now.Add(time.Duration(rapid.IntRange(0, 5_000_000).Draw(t, "elapsed")))
		}
	})
}
