package verify

import (
	"context"
	"sync"
	"time"
)

// limiter keeps what is read of one end below a number of rows in a second. What was
// read is paid for afterwards, since nobody knows before how many rows a slice has.
type limiter struct {
	rowsPerSecond int64
	mu            sync.Mutex
	// free is when all that was read is paid for.
	free time.Time
}

// wait returns when rows may be read again.
func (l *limiter) wait(ctx context.Context) error {
	if l.rowsPerSecond <= 0 {
		return nil
	}
	l.mu.Lock()
	left := time.Until(l.free)
	l.mu.Unlock()
	if left <= 0 {
		return nil
	}
	return Pause(ctx, left)
}

// read says that so many rows were read.
func (l *limiter) read(rows int64) {
	if l.rowsPerSecond <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(rows) / float64(l.rowsPerSecond) * float64(time.Second)))
}

// Pause waits for a time, or until ctx ends, whose error it returns then.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
