package parallel

import "pgapply/internal/invariant"

// Line is the order in which groups of transactions commit, and says which may be
// applied beside those before them. It decides, and does nothing: the head, to whom it
// belongs, forms one group after the other, does what [Line.Next] says, and asks again.
//
//	forming      Ask ──► Offer(keys), Bar
//	   │
//	   ├─ Enter ──► in line: applied by a worker, at once ── Finish ──► Leave
//	   └─ Apply, once the line is empty
//
// A group enters if it shares no key with any in line, so what it does rests on nothing
// that they do. A group that cannot tell its keys is barred: it waits until the line is
// empty, and nothing enters beside it. So does one that may still grow: as long as there
// are others to wait for it does better to become larger.
//
// Where groups keep meeting, or cannot tell their keys, asking is a waste. So after each
// that follows upon another more are barred unasked, at most 63.
type Line struct {
	groups, mostKeys int // how many there may be in line

	keys keys
	// first and next number the groups in line, from 1; held are how many keys each has
	// told, oldest first, and sum is how many that is.
	first, next uint64
	held        []int
	sum         int

	forming candidate

	// misses counts the groups since one last entered and committed as hoped, and rest
	// how many more are barred unasked.
	misses int
	rest   int
}

// candidate is the group that the head is forming.
type candidate struct {
	state candidateState
	keys  []uint64 // of one that has told
	after uint64   // the last group that it shares a key with; 0 for none
}

type candidateState uint8

const (
	unasked candidateState = iota
	told
	barred
)

// Move is what the head does next with the group that it is forming.
type Move uint8

const (
	// Finish: the oldest in line has its turn; then ask again. The group may grow.
	Finish Move = iota + 1
	// Ask for the group's keys, and tell them by Offer, or Bar.
	Ask
	// Enter: the group is in line now, as the last one.
	Enter
	// Apply the group at once, with nothing beside it.
	Apply
)

// Fate is how a group that was in line came to be committed.
type Fate uint8

const (
	// InTurn: by the head, and nobody had tried ahead of its turn.
	InTurn Fate = iota
	// AsHoped: a worker had applied it ahead of its turn.
	AsHoped
	// Missed: a worker had tried, in vain.
	Missed
)

// Extent is how far a group may grow.
type Extent uint8

const (
	// Settled: no further, since it has told its keys.
	Settled Extent = iota
	// Share: to its share of what all groups in line may have together.
	Share
	// Whole: to all of that, since nothing will be beside it.
	Whole
)

// mostMisses bounds how often that which is barred unasked doubles: up to 63 groups.
const mostMisses = 7

// NewLine makes a line for so many groups, which together have not more keys than that,
// unless a group is by itself.
func NewLine(groups, mostKeys int) *Line {
	return &Line{groups: groups, mostKeys: mostKeys, first: 1, next: 1}
}

// Len is how many groups are in line.
func (l *Line) Len() int { return int(l.next - l.first) }

// Next says what to do with the group that the head is forming. It is closed if it
// will not grow any more, and more says that another waits behind it.
func (l *Line) Next(closed, more bool) Move {
	f := &l.forming
	if f.state == unasked {
		if !closed || !more && l.Len() == 0 || l.groups < 2 {
			return l.alone()
		}
		if l.rest == 0 {
			return Ask
		}
		l.rest--
		l.forming.state = barred
	}
	switch {
	case f.state == barred:
		return l.alone()
	case f.after >= l.first, l.Len() == l.groups, l.Len() > 0 && l.sum+len(f.keys) > l.mostKeys:
		return Finish
	}
	l.keys.take(f.keys, l.next, l.first)
	l.held = append(l.held, len(f.keys))
	l.sum += len(f.keys)
	l.next++
	l.forming = candidate{}
	return Enter
}

// Extent says how far the group may grow that the head is forming.
func (l *Line) Extent() Extent {
	switch {
	case l.forming.state == told:
		return Settled
	case l.forming.state == barred, l.rest > 0, l.groups < 2:
		return Whole
	}
	return Share
}

// alone is the move of a group that nothing may be beside.
func (l *Line) alone() Move {
	if l.Len() > 0 {
		return Finish
	}
	l.forming = candidate{}
	return Apply
}

// Offer tells the keys of the group that is being formed. They must not change before
// the move Enter.
func (l *Line) Offer(keys []uint64) {
	f := &l.forming
	invariant.Check(f.state == unasked, "a group tells its keys twice")
	f.state, f.keys = told, keys
	for _, key := range keys {
		f.after = max(f.after, l.keys.holder(key))
	}
	if f.after >= l.first {
		l.missed()
	}
}

// Bar tells that the group that is being formed cannot tell its keys.
func (l *Line) Bar() {
	invariant.Check(l.forming.state == unasked, "a group that has told its keys is barred")
	l.forming.state = barred
	l.missed()
}

// Leave takes the oldest group out of the line, once it is committed.
func (l *Line) Leave(fate Fate) {
	invariant.Check(l.Len() > 0, "nobody is in line")
	l.sum -= l.held[0]
	l.held = l.held[:copy(l.held, l.held[1:])]
	l.first++
	switch fate {
	case AsHoped:
		l.misses = 0
	case Missed:
		l.missed()
	case InTurn:
	}
}

// missed counts a group that was not applied ahead, although it might have been.
func (l *Line) missed() {
	l.misses = min(l.misses+1, mostMisses)
	l.rest = 1<<l.misses/2 - 1
}
