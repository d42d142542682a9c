package operate

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"pgapply/internal/source"
)

func TestPlanOfAMove(t *testing.T) {
	const up, down = 1, -5
	for name, test := range map[string]struct {
		increment     int64
		from, before  Position
		margin        int64
		backwards     bool
		outcome       SequenceOutcome
		to            Position
		text          string
		cycle         bool
		targetMaximum int64
		steps         int64
	}{
		"behind":                    {up, Position{37, true}, Position{1, false}, 0, false, SequenceSet, Position{37, true}, "", false, math.MaxInt64, 37},
		"not called":                {up, Position{99, false}, Position{1, false}, 0, false, SequenceSet, Position{99, false}, "", false, math.MaxInt64, 98},
		"there":                     {up, Position{37, true}, Position{37, true}, 0, false, SequenceKept, Position{}, "", false, math.MaxInt64, 0},
		"there, said otherwise":     {up, Position{37, true}, Position{38, false}, 0, false, SequenceKept, Position{}, "", false, math.MaxInt64, 0},
		"ahead by one":              {up, Position{37, true}, Position{38, true}, 0, false, SequenceKept, Position{}, "the target is ahead", false, math.MaxInt64, 0},
		"called counts":             {up, Position{1, true}, Position{1, false}, 0, false, SequenceSet, Position{1, true}, "", false, math.MaxInt64, 1},
		"backwards":                 {up, Position{37, true}, Position{99, true}, 0, true, SequenceSet, Position{37, true}, "", false, math.MaxInt64, -62},
		"descending, behind":        {down, Position{95, true}, Position{100, false}, 0, false, SequenceSet, Position{95, true}, "", false, math.MaxInt64, 2},
		"descending, ahead":         {down, Position{95, true}, Position{-20, true}, 0, false, SequenceKept, Position{}, "the target is ahead", false, math.MaxInt64, 0},
		"descending, not aligned":   {down, Position{95, true}, Position{98, false}, 0, false, SequenceSet, Position{95, true}, "", false, math.MaxInt64, 2},
		"margin":                    {up, Position{37, true}, Position{37, true}, 10, false, SequenceSet, Position{47, true}, "", false, math.MaxInt64, 10},
		"margin, descending":        {down, Position{95, true}, Position{95, true}, 10, false, SequenceSet, Position{45, true}, "", false, math.MaxInt64, 10},
		"margin, there":             {up, Position{37, true}, Position{47, true}, 10, false, SequenceKept, Position{}, "", false, math.MaxInt64, 0},
		"margin beyond the end":     {up, Position{math.MaxInt64 - 3, true}, Position{1, false}, 4, false, SequenceRefused, Position{}, "and the margin are 9223372036854775808, outside", false, math.MaxInt64, 0},
		"at the end":                {up, Position{math.MaxInt64, true}, Position{1, false}, 0, false, SequenceSet, Position{math.MaxInt64, true}, "", false, math.MaxInt64, 0},
		"both at the end":           {up, Position{math.MaxInt64, true}, Position{math.MaxInt64, true}, 0, false, SequenceKept, Position{}, "", false, math.MaxInt64, 0},
		"outside":                   {up, Position{101, true}, Position{1, false}, 0, false, SequenceRefused, Position{}, "the publisher's value is 101, outside of the range", false, 100, 0},
		"outside, and not called":   {up, Position{101, false}, Position{1, false}, 0, false, SequenceRefused, Position{}, "outside of the range", false, 100, 0},
		"fits into a smaller range": {up, Position{100, true}, Position{1, false}, 0, false, SequenceSet, Position{100, true}, "from 1 to 100 on the target", false, 100, 100},
		"begins anew":               {up, Position{5, true}, Position{990, true}, 0, false, SequenceKept, Position{}, "the target is ahead: --allow-backwards would set it; at its end", true, math.MaxInt64, 0},
	} {
		t.Run(name, func(t *testing.T) {
			from := &source.Sequence{Type: "bigint", Increment: test.increment, Min: 1, Max: math.MaxInt64, Cycle: test.cycle, LastValue: test.from.LastValue, Called: test.from.Called}
			to := &localSequence{Schema: "s", Name: "q", Type: "bigint", Increment: test.increment, Min: 1, Max: test.targetMaximum}
			if test.increment < 0 {
				from.Min, to.Min = math.MinInt64, math.MinInt64
			}
			m := planMove(from, to, test.before, test.margin, test.backwards)
			require.Equal(t, test.outcome, m.outcome)
			if test.text == "" {
				require.Empty(t, m.text)
			}
			require.Contains(t, m.text, test.text)
			if m.outcome == SequenceSet {
				require.Equal(t, test.to, m.to)
				if test.steps != 0 {
					require.Equal(t, test.steps, m.steps.Int64())
				}
			}
			require.Equal(t, m.outcome == SequenceRefused, m.remedy != "")
		})
	}
}

// Where it may not go backwards, a sequence of the target never does, and gives
// afterwards nothing that the publisher's has given; its steps lead there as well.
func TestPlanNeverGoesBackwards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		increment := rapid.Int64Range(1, 7).Draw(t, "increment")
		if rapid.Bool().Draw(t, "descending") {
			increment = -increment
		}
		position := rapid.Custom(func(t *rapid.T) Position {
			return Position{LastValue: rapid.OneOf(rapid.Int64Range(-30, 30), rapid.Int64()).Draw(t, "value"), Called: rapid.Bool().Draw(t, "called")}
		})
		at, before := position.Draw(t, "source"), position.Draw(t, "target")
		margin := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, 9), rapid.Int64Range(0, math.MaxInt64)).Draw(t, "margin")
		from := &source.Sequence{Increment: increment, Min: math.MinInt64, Max: math.MaxInt64, LastValue: at.LastValue, Called: at.Called}
		to := &localSequence{Increment: increment, Min: math.MinInt64, Max: math.MaxInt64}
		m := planMove(from, to, before, margin, false)
		direction := big.NewInt(increment)
		// reaches tells whether one value comes after another, or is it.
		reaches := func(one, other *big.Int) bool {
			return new(big.Int).Sub(one, other).Sign()*direction.Sign() >= 0
		}
		switch m.outcome {
		case SequenceSet:
			after := m.to.next(increment)
			require.False(t, reaches(before.next(increment), after))
			require.True(t, reaches(after, at.next(increment)))
			climbed := new(big.Int).Add(before.next(increment), new(big.Int).Mul(m.steps, direction))
			require.True(t, reaches(climbed, after))
			require.False(t, reaches(new(big.Int).Sub(climbed, direction), after), "one step less is not enough")
		case SequenceKept:
			require.True(t, reaches(before.next(increment), at.next(increment)))
		case SequenceRefused:
			require.NotZero(t, margin)
		}
	})
}

func TestPairsOfSequences(t *testing.T) {
	column := source.SequenceOwner{Schema: "s", Table: "t", Column: "c"}
	local := []localSequence{
		{Schema: "s", Name: "same"},
		{Schema: "s", Name: "old"},
		{Schema: "s", Name: "new", OfSchema: "s", OfTable: "t", OfColumn: "c"},
		{Schema: "s", Name: "first", OfSchema: "s", OfTable: "t", OfColumn: "d"},
		{Schema: "s", Name: "second", OfSchema: "s", OfTable: "t", OfColumn: "d"},
	}
	several := column
	several.Column = "d"
	pairs := pairSequences([]source.Sequence{
		{Schema: "s", Name: "same"},
		{Schema: "s", Name: "old", Owner: column},
		{Schema: "s", Name: "second", Owner: several},
		{Schema: "s", Name: "third", Owner: several},
		{Schema: "other", Name: "same"},
	}, local)
	var names []string
	for _, pair := range pairs {
		if pair.local == nil {
			names = append(names, "none")
			continue
		}
		names = append(names, pair.local.Name)
	}
	require.Equal(t, []string{"same", "new", "second", "none", "none"}, names)
}
