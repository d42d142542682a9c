package stream

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/target"
	"pgapply/decoder/txn"
	"pgapply/parallel"
)

// Streamed transactions on workers: the assembler tells of them while they arrive,
// the pool gives each to a worker, and a task applies what the worker may apply.

// ahead is what is applied ahead of its turn, on its way through the pool: a streamed
// transaction, or a group.
type ahead struct {
	running *parallel.Running
	// place is set once a worker has it.
	place atomic.Pointer[place]
}

// place is a worker's session with what it applies.
type place struct {
	session *target.Session
	log     *zap.Logger
	// transactions is how many a group has; 0 for a streamed one, of which changes counts
	// what was applied. Waiting is what for, for status.
	transactions int
	changes      atomic.Int64
	waiting      atomic.Pointer[string]
	// cancelled: it was told to let go, so that its errors say nothing.
	cancelled atomic.Bool
}

// at is the place itself, of any task.
func (p *place) at() *place { return p }

// Cancel frees a call that waits for the target.
func (p *place) Cancel() {
	p.cancelled.Store(true)
	ctx, release := context.WithTimeout(context.Background(), cancelGrace)
	defer release()
	_ = p.session.Interrupt(ctx) // too late, or the connection is lost: the call ends by itself
}

// Opened, Arrived and Ended are called by the assembler, in the reader's goroutine. While
// there is a transaction to skip, which is known by its end alone, none is applied ahead.
func (s *Stream) Opened(o *txn.Open) {
	if s.skipping.Load() {
		return
	}
	p := &ahead{}
	s.open[o] = p
	p.running = s.pool.Start(o.XID(), func(worker int) parallel.Task {
		t := &task{
			place:    place{session: s.options.Workers[worker-1], log: s.options.Log.With(zap.Int("worker", worker), zap.Uint32("xid", o.XID()))},
			follower: o.Follow(),
		}
		t.session.Run(o.XID())
		p.place.Store(&t.place)
		return t
	})
}

// Arrived says that there is more of the transaction.
func (s *Stream) Arrived(o *txn.Open) {
	if p := s.open[o]; p != nil {
		p.running.Arrived()
	}
}

// Ended says that nothing more will come.
func (s *Stream) Ended(o *txn.Open, rolledBack bool) {
	p := s.open[o]
	switch {
	case p == nil:
	case rolledBack:
		p.running.Drop()
		delete(s.open, o)
	default:
		p.running.Arrived()
	}
}

// takeAhead returns the life on a worker of a transaction that is complete now.
func (s *Stream) takeAhead(t *txn.Transaction) *ahead {
	o := t.Open()
	if o == nil {
		return nil
	}
	p := s.open[o]
	delete(s.open, o)
	return p
}

// forgo lets an event's transaction go, which is not applied here and now.
func (s *Stream) forgo(e event) {
	if e.ahead != nil {
		e.ahead.running.Drop()
	}
	if e.transaction != nil {
		e.transaction.Release()
	}
}

// applyAhead ends a transaction that was given to the pool: on its worker, or, if that
// could not do it, from the start on the head's own session. It is its turn.
func (s *Stream) applyAhead(patient context.Context, e event) error {
	t := e.transaction
	var outcome target.Outcome
	var has bool
	var asked error
	if t.Kind == txn.Prepare {
		if has, asked = s.options.Target.Has(t); has || asked != nil {
			e.ahead.running.Drop() // it may wait for what is prepared already
		}
	}
	s.waitsForAhead(e.ahead)
	done, err := e.ahead.running.Finish(patient, func(applied parallel.Task) (err error) {
		outcome, err = applied.(*task).end(t) //nolint:forcetypeassert // Opened made it
		return err
	})
	s.waitsFor(nil)
	if err = cmp.Or(asked, err); err != nil {
		t.Release()
		return err
	}
	group := []*txn.Transaction{t}
	if done {
		return s.applied(group, outcome, nil)
	}
	return s.applyGroup(group)
}

// watchPool ends the stream when a worker has lost its connection.
func (s *Stream) watchPool(ctx context.Context) error {
	select {
	case <-s.pool.Failed():
		return s.pool.Err()
	case <-ctx.Done():
		return nil
	}
}

// closePool has all workers roll back. A target that does not answer loses their
// connections.
func (s *Stream) closePool() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.pool.Close()
	}()
	if waited(closed, cancelGrace) {
		return
	}
	for _, session := range s.options.Workers {
		session.Close()
	}
	<-closed
}

// task applies one transaction on a worker's session.
type task struct {
	place
	follower *txn.Follower
}

// Advance applies what has arrived and rests on nothing but the first committed
// transactions.
func (t *task) Advance(committed uint64) error {
	err := t.advance(committed)
	if err != nil && !errors.Is(err, txn.ErrRolledBack) && !t.cancelled.Load() {
		t.log.Debug("a streamed transaction waits for its turn", zap.Error(err))
	}
	return err
}

func (t *task) advance(committed uint64) error {
	for {
		step, some, err := t.follower.Next(committed)
		switch {
		case errors.Is(err, io.EOF):
			t.waiting.Store(&waitsForTurn)
			return t.session.Settle()
		case err == nil && !some && t.follower.Held():
			t.waiting.Store(&waitsForCommits)
			return t.session.Settle()
		case err == nil && !some:
			t.waiting.Store(&waitsForMore)
			return t.session.Settle()
		case err != nil:
			return err
		case step.Undo:
			err = t.session.Undo(step.Position)
		default:
			err = t.session.Change(step.Change, step.Position)
			t.changes.Add(1)
		}
		if err != nil {
			return err
		}
	}
}

// end applies the rest and commits.
func (t *task) end(transaction *txn.Transaction) (target.Outcome, error) {
	if err := t.Advance(math.MaxUint64); err != nil {
		return target.Outcome{}, err
	}
	outcome, err := t.session.End(transaction)
	if err == nil {
		t.follower.Close()
	}
	return outcome, err
}

// Abandon rolls back.
func (t *task) Abandon() error {
	t.log.Debug("roll back what was applied ahead", zap.Int64("changes", t.changes.Load()))
	t.follower.Close()
	return t.session.Abandon()
}

// What a worker with a transaction waits for.
var (
	waitsForMore    = "more of the transaction"
	waitsForCommits = "the commits of earlier transactions"
	waitsForTurn    = "its turn to commit"
)

// Worker is what a session that applies is at, for status.
type Worker struct {
	// Number is 0 for the session that applies in the order of commits.
	Number int
	// PID is the backend's on the target.
	PID   uint32
	State string
	// Since is when the state began.
	Since time.Time
	// XID is the transaction in progress that a worker applies, of which Changes are
	// applied so far; 0 for none. Transactions is how many the group has that it applies.
	XID          uint32
	Changes      int64
	Transactions int
	// WaitsFor says what for, where the worker waits.
	WaitsFor string
}

// workers describes the sessions.
func (s *Stream) workers() []Worker {
	s.mu.Lock()
	h, stalled, pool := s.mu.head, s.mu.stalled, s.pool
	s.mu.Unlock()
	if pool == nil {
		return nil // asked before Run
	}
	first := Worker{PID: s.options.Target.PID(), State: string(parallel.Idle), Since: h.since}
	switch {
	case h.ahead != nil:
		first.State, first.WaitsFor = string(parallel.Waiting), "a worker whose turn it is"
	case h.session != nil:
		first.State, first.WaitsFor = string(parallel.Applying), stalled
	}
	all := []Worker{first}
	for _, status := range pool.Workers() {
		w := Worker{
			Number: status.Worker, PID: s.options.Workers[status.Worker-1].PID(),
			State: string(status.State), Since: status.Since, XID: status.Label,
		}
		if t, ok := status.Task.(interface{ at() *place }); ok {
			p := t.at()
			w.Changes, w.Transactions = p.changes.Load(), p.transactions
			if p.transactions > 0 {
				w.XID = 0
			}
			switch reason := p.waiting.Load(); {
			case h.ahead != nil && h.ahead.place.Load() == p:
				w.WaitsFor = stalled
			case status.State == parallel.Waiting && reason != nil:
				w.WaitsFor = *reason
			}
		}
		all = append(all, w)
	}
	return all
}
