package origin

import (
	"sync"

	"pgapply/internal/invariant"
	"pgapply/internal/lsn"
)

// Tracker is a low-water mark: it knows which of the publisher's positions are
// applied and which of those are durable on the target. Positions arrive in the
// order of the stream, so a position stands for everything before it.
//
// A position is durable once the target has flushed its own WAL up to a point
// that was read after the position was applied. It is safe for concurrent use.
type Tracker struct {
	mu struct {
		sync.Mutex
		applied    Position
		durable    Position
		unflushed  []sample // ascending in both members
		lastSample lsn.LSN
	}
	changed chan struct{}
}

// Position is a point in the publisher's WAL.
type Position struct {
	// Reached: everything that committed before it is applied.
	Reached lsn.LSN
	// Transaction is the end of the last transaction at or below Reached. Beyond
	// it nothing is recorded by the origin, only keepalives say so.
	Transaction lsn.LSN
}

// sample says that position is durable once the target's WAL is flushed to local.
type sample struct {
	position Position
	local    lsn.LSN
}

// NewTracker starts at a position that is durable: the resume point.
func NewTracker(transaction, reached lsn.LSN) *Tracker {
	t := &Tracker{changed: make(chan struct{}, 1)}
	t.mu.applied = Position{Reached: max(reached, transaction), Transaction: transaction}
	t.mu.durable = t.mu.applied
	return t
}

// Committed says that the transaction which ends at end is committed on the
// target, and so are all before it.
func (t *Tracker) Committed(end lsn.LSN) {
	t.advance(func(p *Position) {
		p.Transaction = max(p.Transaction, end)
		p.Reached = max(p.Reached, end)
	})
}

// Idle says that a keepalive named position and that everything which was read
// from the stream before it is committed on the target (or was not ours to apply).
func (t *Tracker) Idle(position lsn.LSN) {
	t.advance(func(p *Position) { p.Reached = max(p.Reached, position) })
}

func (t *Tracker) advance(move func(*Position)) {
	t.mu.Lock()
	before := t.mu.applied
	move(&t.mu.applied)
	moved := t.mu.applied != before
	// Nothing of the target's waits to be flushed: what a keepalive adds is as
	// durable as what came before it.
	if moved && t.mu.applied.Transaction == t.mu.durable.Transaction {
		t.mu.durable = t.mu.applied
	}
	t.mu.Unlock()
	if moved {
		select {
		case t.changed <- struct{}{}:
		default:
		}
	}
}

// Changed yields a value after positions moved; several moves may share one.
func (t *Tracker) Changed() <-chan struct{} { return t.changed }

// Applied is the newest position whose transactions are committed on the target.
func (t *Tracker) Applied() Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.applied
}

// Pending says whether something is applied but not known to be durable.
func (t *Tracker) Pending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.applied.Transaction != t.mu.durable.Transaction
}

// Sample records that position, which Applied returned before the target was
// asked, is durable once the target's WAL is flushed up to local, and that it is
// flushed up to flushed now.
func (t *Tracker) Sample(position Position, local, flushed lsn.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if position.Reached > t.mu.lastSample {
		t.mu.unflushed = append(t.mu.unflushed, sample{position, local})
		t.mu.lastSample = position.Reached
	}
	done := 0
	for done < len(t.mu.unflushed) && t.mu.unflushed[done].local <= flushed {
		t.durable(t.mu.unflushed[done].position)
		done++
	}
	t.mu.unflushed = append(t.mu.unflushed[:0], t.mu.unflushed[done:]...)
}

// durable raises the durable position; t.mu is held.
func (t *Tracker) durable(position Position) {
	invariant.Check(position.Transaction <= t.mu.applied.Transaction && position.Reached <= t.mu.applied.Reached,
		"durable %v is ahead of applied %v", position, t.mu.applied)
	if position.Reached > t.mu.durable.Reached {
		t.mu.durable = position
	}
	if t.mu.durable.Transaction == t.mu.applied.Transaction {
		t.mu.durable = t.mu.applied
	}
}

// Durable is the newest position that survives a crash of the target. Its
// Reached may be reported to the publisher as flushed once a record of it is
// durable on the target, its Transaction at once.
func (t *Tracker) Durable() Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.durable
}

// AllDurable says that what is committed so far is durable: the target's COMMIT
// had waited for it.
func (t *Tracker) AllDurable() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.durable = t.mu.applied
	t.mu.unflushed = t.mu.unflushed[:0]
}
