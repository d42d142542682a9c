package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"pgapply/apply"
	"pgapply/conflict"
	"pgapply/internal/lsn"
)

// size is a flag for a number of bytes.
type size struct{ bytes *int64 }

type unit struct {
	name  string
	bytes int64
}

// units, largest first; the second spelling of each is that of postgresql.conf,
// where they count in 1024 as well.
func units() []unit {
	return []unit{
		{"TiB", 1 << 40},
		{"GiB", 1 << 30},
		{"MiB", 1 << 20},
		{"KiB", 1 << 10},
		{"TB", 1 << 40},
		{"GB", 1 << 30},
		{"MB", 1 << 20},
		{"kB", 1 << 10},
		{"B", 1},
	}
}

func (s size) Type() string { return "size" }

// String writes the largest unit that leaves a whole number.
func (s size) String() string {
	if s.bytes == nil || *s.bytes == 0 {
		return "0"
	}
	for _, u := range units() {
		if *s.bytes%u.bytes == 0 {
			return strconv.FormatInt(*s.bytes/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(*s.bytes, 10)
}

// Set reads a whole number with an optional unit.
func (s size) Set(text string) error {
	number, factor := text, int64(1)
	for _, u := range units() {
		if digits, ok := strings.CutSuffix(text, u.name); ok {
			number, factor = strings.TrimSpace(digits), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return fmt.Errorf("%q is not a size such as 512kB, 128MiB or 2GiB", text)
	}
	*s.bytes = n * factor
	return nil
}

// endpos is the flag for where to end.
type endpos struct{ options *apply.Options }

func (e endpos) Type() string { return "LSN|current" }

func (e endpos) String() string {
	switch {
	case e.options == nil:
		return ""
	case e.options.EndAtCurrent:
		return "current"
	case e.options.EndLSN != 0:
		return e.options.EndLSN.String()
	}
	return ""
}

// Set reads a position, or "current".
func (e endpos) Set(text string) error {
	if text == "current" {
		e.options.EndLSN, e.options.EndAtCurrent = 0, true
		return nil
	}
	position, err := lsn.Parse(text)
	if err != nil {
		return fmt.Errorf("%q is neither a position such as 16/B374D848 nor the word current", text)
	}
	e.options.EndLSN, e.options.EndAtCurrent = position, false
	return nil
}

// policies is the repeatable flag for conflict policies.
type policies struct{ chosen *conflict.Policies }

// Type is that of a list, so that a variable may hold several.
func (p policies) Type() string { return listType }

func (p policies) String() string {
	if p.chosen == nil {
		return ""
	}
	return strings.Join(p.chosen.Strings(), ",")
}

// GetSlice lists what String joins.
func (p policies) GetSlice() []string { return p.chosen.Strings() }

// Set adds one policy.
func (p policies) Set(text string) error { return p.chosen.Set(text) }

// conflictType is the flag for the type of recorded conflicts.
type conflictType struct{ name *string }

func (c conflictType) Type() string { return "type" }

func (c conflictType) String() string {
	if c.name == nil {
		return ""
	}
	return *c.name
}

// Set takes a type that can be recorded: one of a conflict, or that of the rows of
// skipped transactions.
func (c conflictType) Set(text string) error {
	var names []string
	for _, known := range conflict.Types() {
		names = append(names, string(known))
	}
	names = append(names, "skipped")
	if !slices.Contains(names, text) {
		return fmt.Errorf("%q is not one of the types %s", text, strings.Join(names, ", "))
	}
	*c.name = text
	return nil
}
