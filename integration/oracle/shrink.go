package oracle

import (
	"context"
	"slices"
	"time"
)

// Shrink looks for a smaller script that fails as the play of this one did, for so
// long at most, and returns the smallest with its failure.
func (a *Arena) Shrink(ctx context.Context, script *Script, failure *Failure, limit time.Duration) (*Script, *Failure) {
	last := failure
	deadline := time.Now().Add(limit)
	patience := a.Patience
	a.Patience = min(patience, 10*time.Second)
	defer func() { a.Patience = patience }()
	small := shrink(script, func(s *Script) bool {
		result, err := a.Play(ctx, s)
		if err != nil || result.Failure == nil || result.Failure.Sign != failure.Sign {
			return false
		}
		last = result.Failure
		return true
	}, func() bool { return time.Now().Before(deadline) && ctx.Err() == nil })
	return small, last
}

// shrink takes out of a script what it fails without, as long as it may go on. The
// engines go first, then whole tables, then statements, then their parts.
func shrink(script *Script, fails func(*Script) bool, more func() bool) *Script {
	for i := range script.Modes {
		if !more() {
			return script
		}
		if alone := script.only(i); fails(alone) {
			script = alone
			break
		}
	}
	for before := -1; before != len(script.dropped) && more(); {
		before = len(script.dropped)
		for rank := rankTable; rank <= rankDetail; rank++ {
			script = shrinkRank(script, rank, fails, more)
		}
	}
	return script
}

// shrinkRank takes out units of one rank: first large parts of them at once, then
// smaller ones, then each by itself. It begins at the end, since what comes after the
// cause is of no use.
func shrinkRank(script *Script, rank int, fails func(*Script) bool, more func() bool) *Script {
	units := script.left(rank)
	for size := len(units); size > 0; size /= 2 {
		for end := len(units); end > 0 && more(); end -= size {
			part := units[max(0, end-size):end]
			if !slices.ContainsFunc(part, script.alive) {
				continue // gone with what it needed
			}
			if less := script.without(part); fails(less) {
				script = less
			}
		}
		units = script.left(rank)
		size = min(size, len(units))
	}
	return script
}

// left are the units of a rank that can still be taken out.
func (s *Script) left(rank int) []int {
	var left []int
	for u := range s.units {
		if s.alive(u) && !s.units[u].fixed && s.units[u].rank == rank {
			left = append(left, u)
		}
	}
	return left
}
