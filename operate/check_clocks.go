package operate

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"pgapply/conflict"
)

// clock is what a server's clock said, and when it was asked by our own: the answer was
// right at a moment between the two.
type clock struct {
	says          time.Time
	before, after time.Time
}

// askClock reads a clock by a query of one value, in seconds since 1970.
func askClock(ctx context.Context, ask func(ctx context.Context, sql string) (string, error)) (clock, error) {
	c := clock{before: time.Now()}
	text, err := ask(ctx, `SELECT extract(epoch FROM pg_catalog.clock_timestamp())`)
	c.after = time.Now()
	if err != nil {
		return c, fmt.Errorf("ask for the time: %w", err)
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return c, fmt.Errorf("ask for the time: %w", err)
	}
	c.says = time.UnixMicro(int64(seconds * 1e6))
	return c, nil
}

// ahead is how far the clock is ahead of ours, give or take unsure.
func (c clock) ahead() (ahead, unsure time.Duration) {
	unsure = c.after.Sub(c.before) / 2
	return c.says.Sub(c.before.Add(unsure)), unsure
}

// checkClocks compares the clocks of both ends, by which last_update_wins decides, and
// ours, by which a lag is measured.
func checkClocks(f *facts) []Finding {
	const subject = "clocks"
	const remedy = "synchronize the clocks, as with NTP"
	publisher, unsure := f.publisher.clock.ahead()
	target, also := f.target.clock.ahead()
	unsure += also
	apart := (publisher - target).Abs() - unsure
	limit, why := time.Second, "times of commits cannot be compared"
	if f.options.OnConflict.Uses(conflict.LastUpdateWins) {
		limit, why = 100*time.Millisecond, "last_update_wins decides by them, and may let the older row win"
	}
	switch ours := publisher.Abs() - unsure; {
	case apart > limit:
		return warning(subject, remedy, "the clocks of publisher and target are %s apart: %s", duration(apart), why)
	case ours > time.Second:
		return warning(subject, remedy, "the publisher's clock and that of this machine are %s apart: a lag shows as that much more, or less", duration(ours))
	}
	return ok(subject, "those of publisher, target and this machine agree within %s", duration(max(limit, 0)))
}
