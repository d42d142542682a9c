package apply

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstPause   = 500 * time.Millisecond
	longestPause = 10 * time.Second
	// healthyAfter is how long a stream must have run for its end to count as new
	// trouble instead of more of the same.
	healthyAfter = 10 * time.Second
)

// backoff spreads retries: each pause is about twice the last, half of it at
// random, so that many clients of one server do not come back in step.
type backoff struct{ first, longest, pause time.Duration }

func (b *backoff) next() time.Duration {
	b.pause = min(max(2*b.pause, b.first), b.longest)
	return b.pause/2 + rand.N(b.pause/2) //nolint:gosec // no secret
}

func (b *backoff) reset() { b.pause = 0 }

// sleep waits, and reports false when ctx ended first.
func sleep(ctx context.Context, pause time.Duration) bool {
	_, slept := doze(ctx, pause, nil)
	return slept
}

// doze waits until the time is up or there is news, and tells whether there is. It
// reports false when ctx ended first.
func doze(ctx context.Context, pause time.Duration, news <-chan struct{}) (woken, slept bool) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, true
	case <-news:
		return true, true
	case <-ctx.Done():
		return false, false
	}
}
