package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// age is a flag for a time span that may be long: what time.ParseDuration reads,
// after a number of days.
type age struct{ span *time.Duration }

func (a age) Type() string { return "time span" }

// String writes whole days as days.
func (a age) String() string {
	switch {
	case a.span == nil || *a.span == 0:
		return "0"
	case *a.span%day == 0:
		return strconv.FormatInt(int64(*a.span/day), 10) + "d"
	}
	return a.span.String()
}

// Set reads a span such as 30d, 36h or 1d12h.
func (a age) Set(text string) error {
	span, err := parseAge(text)
	if err != nil {
		return err
	}
	*a.span = span
	return nil
}

func parseAge(text string) (time.Duration, error) {
	malformed := fmt.Errorf("%q is not a time span such as 30d, 36h or 90m", text)
	var total time.Duration
	rest := text
	if days, after, found := strings.Cut(text, "d"); found {
		n, err := strconv.ParseInt(days, 10, 64)
		if err != nil || n < 0 || n > int64(math.MaxInt64/day) {
			return 0, malformed
		}
		total, rest = time.Duration(n)*day, after
		if rest == "" {
			return total, nil
		}
	}
	span, err := time.ParseDuration(rest)
	if err != nil || span < 0 || span > math.MaxInt64-total {
		return 0, malformed
	}
	return total + span, nil
}

// moment is a flag for a time: an age, or a date or time of its own.
type moment struct {
	age  time.Duration
	at   time.Time
	text string
}

func (m *moment) Type() string { return "time" }

func (m *moment) String() string { return m.text }

// Set reads an age, a date (its begin in local time), or an RFC 3339 time.
func (m *moment) Set(text string) error {
	parsed := moment{text: text}
	var err error
	if parsed.at, err = time.ParseInLocation(time.DateOnly, text, time.Local); err != nil {
		if parsed.at, err = time.Parse(time.RFC3339, text); err != nil {
			if parsed.age, err = parseAge(text); err != nil {
				return fmt.Errorf("%q is neither a time span such as 7d or 90m nor a time such as 2026-01-31 or 2026-01-31T12:00:00Z", text)
			}
		}
	}
	*m = parsed
	return nil
}

// before is the time that is meant, or the zero time when none was given.
func (m *moment) before(now time.Time) time.Time {
	if m.age > 0 {
		return now.Add(-m.age)
	}
	return m.at
}
