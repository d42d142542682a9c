package source

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	distant  = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
	loopback = &net.TCPAddr{IP: net.IPv6loopback}
	remotes  = []net.Addr{distant, loopback, &net.UnixAddr{Net: "unix"}}
)

func TestPacerLeavesSingleTransactionsAlone(t *testing.T) {
	for _, remote := range remotes {
		p := newPacer(remote)
		now := time.Now()
		for range 100 {
			for range burst {
				require.LessOrEqual(t, p.pause(now), time.Duration(0))
				p.read(now, 100)
			}
			now = now.Add((burst + 1) * p.interval) // quiet
		}
	}
}

func TestPacerFetchesWhatWaitsBehindAFullBuffer(t *testing.T) {
	p := newPacer(loopback)
	now := time.Now()
	for i := range 100 {
		pause := p.pause(now)
		if i > 3*burst {
			require.Equal(t, fullInterval, pause+time.Millisecond)
		}
		now = now.Add(max(0, pause))
		for range 3 {
			p.read(now, loopbackBuffer)
			require.LessOrEqual(t, p.pause(now), time.Duration(0))
		}
		p.read(now, 100)
		now = now.Add(time.Millisecond) // with the caller
	}
}

func TestPacerPausesLongOnlyWhereALotComes(t *testing.T) {
	p := newPacer(loopback)
	now := time.Now()
	for range 3 * burst {
		now = now.Add(max(10*time.Microsecond, p.pause(now)))
		p.read(now, 100)
	}
	require.Equal(t, interval, p.pause(now))
}

func TestPacerSpacesASteadyFlow(t *testing.T) {
	p := newPacer(distant)
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
	require.InDelta(t, 1000*interval, now.Sub(start), float64(2*interval))
}

func TestPacerKeepsUpWithALargeFlow(t *testing.T) {
	const rate = 500 << 20 // bytes a second
	p := newPacer(distant)
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
		p := newPacer(rapid.SampledFrom(remotes).Draw(t, "remote"))
		now := time.Now()
		for range 100 {
			if pause := p.pause(now); pause > fullInterval {
				t.Fatalf("pause of %v", pause)
			}
			p.read(now, rapid.IntRange(0, receiveBuffer).Draw(t, "read"))
			now = now.Add(time.Duration(rapid.IntRange(0, 5_000_000).Draw(t, "elapsed")))
		}
	})
}
