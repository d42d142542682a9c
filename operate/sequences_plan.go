package operate

import (
	"fmt"
	"math/big"
	"strconv"

	"pgapply/internal/source"
)

// Position is where a sequence is. The JSON names are those of its columns.
type Position struct {
	// LastValue was given out last when Called, and is the next one when not.
	LastValue int64 `json:"last_value"`
	Called    bool  `json:"is_called"`
}

// String writes the value, and marks one that was not given out yet.
func (p *Position) String() string {
	switch {
	case p == nil:
		return "-"
	case !p.Called:
		return strconv.FormatInt(p.LastValue, 10) + " (next)"
	}
	return strconv.FormatInt(p.LastValue, 10)
}

// next is what nextval gives, which may be beyond the sequence's range, and then
// beyond that of its type: a sequence at its end gives an error, or begins anew.
func (p Position) next(increment int64) *big.Int {
	next := big.NewInt(p.LastValue)
	if p.Called {
		next.Add(next, big.NewInt(increment))
	}
	return next
}

// move is what is to be done with a sequence of the target.
type move struct {
	outcome SequenceOutcome
	to      Position // with outcome SequenceSet
	// steps is how many values lie between, with outcome SequenceSet; negative for a
	// move backwards.
	steps        *big.Int
	text, remedy string
}

// planMove says how the target's sequence comes from where it is to where the
// publisher's is, margin increments on. The two compare by what they give next, in
// the direction in which they count.
func planMove(from *source.Sequence, to *localSequence, before Position, margin int64, backwards bool) move {
	at := Position{LastValue: from.LastValue, Called: from.Called}
	goal := new(big.Int).Mul(big.NewInt(margin), big.NewInt(from.Increment))
	goal.Add(goal, big.NewInt(at.LastValue))
	if goal.Cmp(big.NewInt(to.Min)) < 0 || goal.Cmp(big.NewInt(to.Max)) > 0 {
		what := "the publisher's value"
		if margin > 0 {
			what += " and the margin are"
		} else {
			what += " is"
		}
		return move{
			outcome: SequenceRefused,
			text:    fmt.Sprintf("%s %s, outside of the range of the target's sequence, which is %s from %d to %d", what, goal, to.Type, to.Min, to.Max),
			remedy:  fmt.Sprintf("on the target: ALTER SEQUENCE %s AS %s MINVALUE %d MAXVALUE %d", to.quoted(), from.Type, from.Min, from.Max),
		}
	}
	at.LastValue = goal.Int64()
	distance := new(big.Int).Sub(at.next(from.Increment), before.next(to.Increment))
	increment := big.NewInt(to.Increment)
	// Rounded up in the direction of the sequence: so many steps reach at least the goal.
	steps, rest := new(big.Int).QuoRem(distance, increment, new(big.Int))
	if rest.Sign()*increment.Sign() > 0 {
		steps.Add(steps, big.NewInt(1))
	}
	m := move{outcome: SequenceSet, to: at, steps: steps, text: differences(from, to)}
	switch direction := distance.Sign() * increment.Sign(); {
	case direction == 0:
		m.outcome = SequenceKept
	case direction < 0 && !backwards:
		m.outcome = SequenceKept
		m.text = join("the target is ahead: --allow-backwards would set it", m.text)
	}
	return m
}

// differences names what makes the two count differently, and does not forbid to set
// one as the other.
func differences(from *source.Sequence, to *localSequence) string {
	text := ""
	if from.Type != to.Type || from.Min != to.Min || from.Max != to.Max {
		text = fmt.Sprintf("it is %s from %d to %d on the publisher, %s from %d to %d on the target", from.Type, from.Min, from.Max, to.Type, to.Min, to.Max)
	}
	cycles := map[bool]string{true: "begins anew", false: "gives an error"}
	if from.Cycle != to.Cycle {
		text = join(text, fmt.Sprintf("at its end it %s on the publisher, and %s on the target", cycles[from.Cycle], cycles[to.Cycle]))
	}
	return text
}

func join(one, other string) string {
	if one == "" || other == "" {
		return one + other
	}
	return one + "; " + other
}

// localSequence is a sequence of the target.
type localSequence struct {
	OID                         uint32
	Schema, Name                string
	Type                        string
	Increment, Min, Max         int64
	Cycle                       bool
	Reads, Writes               bool
	Role                        string // its owner
	Owns                        bool   // the session has the owner's rights
	OfSchema, OfTable, OfColumn string // the column that it belongs to, or empty
}

func (l *localSequence) quoted() string { return quotedName(l.Schema, l.Name) }

// sequencePair is a sequence of the publisher and the target's that answers to it.
type sequencePair struct {
	source.Sequence
	local  *localSequence // nil when there is none
	before *Position      // nil when it cannot be read
}

// pairSequences finds the target's for each of the publisher's. One that belongs to
// a column answers to the one that belongs to the same column, since that is the one
// that fills it; a name counts where the column has none, or several.
func pairSequences(list []source.Sequence, local []localSequence) []sequencePair {
	byName := make(map[[2]string]*localSequence, len(local))
	byColumn := make(map[source.SequenceOwner][]*localSequence)
	for i := range local {
		l := &local[i]
		byName[[2]string{l.Schema, l.Name}] = l
		if l.OfTable != "" {
			column := source.SequenceOwner{Schema: l.OfSchema, Table: l.OfTable, Column: l.OfColumn}
			byColumn[column] = append(byColumn[column], l)
		}
	}
	pairs := make([]sequencePair, len(list))
	for i, s := range list {
		pairs[i] = sequencePair{Sequence: s, local: byName[[2]string{s.Schema, s.Name}]}
		if of := byColumn[s.Owner]; s.Owner.Table != "" && len(of) == 1 {
			pairs[i].local = of[0]
		}
	}
	return pairs
}
