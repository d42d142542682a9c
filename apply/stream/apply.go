package stream

import (
	"cmp"
	"context"
	"maps"

	"pgapply/apply/target"
	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
	"pgapply/parallel"
)

// apply takes events off the queue until ctx ends. Ordinary transactions become groups;
// anything else waits until those before it are committed.
func (s *Stream) apply(ctx, patient context.Context) error {
	for ctx.Err() == nil {
		if err := s.step(ctx, patient); err != nil {
			return cmp.Or(err, s.confirm())
		}
	}
	return cmp.Or(s.confirm(), ctx.Err())
}

// step does what comes next.
func (s *Stream) step(ctx, patient context.Context) error {
	if s.forming == nil {
		e, some := s.next(ctx)
		switch {
		case !some && len(s.inLine) > 0:
			return s.finishOldest(patient)
		case !some:
			return s.confirm()
		case e.transaction == nil && len(s.inLine) > 0:
			last := s.inLine[len(s.inLine)-1]
			last.keepalive = last.keepalive.and(e)
			return nil
		case e.transaction == nil && s.unconfirmed != nil:
			s.unconfirmed.keepalive = s.unconfirmed.keepalive.and(e)
			return nil
		case e.transaction == nil:
			return s.idle(e)
		case !s.ordinary(e) && len(s.inLine) > 0:
			s.held = &e
			return s.finishOldest(patient)
		case !s.ordinary(e):
			return s.single(ctx, patient, e)
		}
		s.forming = newGroup(e)
	}
	s.grow()
	s.gather(ctx)
	return s.move(patient)
}

// waiting takes an event if there is one.
func (s *Stream) waiting() (event, bool) {
	if s.held != nil {
		e := *s.held
		s.held = nil
		return e, true
	}
	select {
	case e := <-s.events:
		return e, true
	default:
		return event{}, false
	}
}

// next takes an event. It waits for one, until ctx ends, while nothing is in work.
func (s *Stream) next(ctx context.Context) (event, bool) {
	if e, some := s.waiting(); some || len(s.inLine) > 0 || s.unconfirmed != nil {
		return e, some
	}
	select {
	case e := <-s.events:
		return e, true
	case <-ctx.Done():
		return event{}, false
	}
}

// single handles a transaction that is in no group: one that was streamed, that is
// prepared or decided about, that is skipped, or with which the stream ends.
func (s *Stream) single(ctx, patient context.Context, e event) error {
	t := e.transaction
	if err := s.confirm(); err != nil {
		s.forgo(e)
		return err
	}
	if s.beyondEnd(t) {
		s.forgo(e)
		return errEnd
	}
	if s.options.Skip > 0 && t.EndLSN >= s.options.Skip {
		done, err := s.skip(ctx, t)
		if err != nil {
			return err
		}
		if done {
			s.pool.Committed(e.complete)
		} else {
			s.held = &e
		}
		return nil
	}
	if s.options.Undone > 0 && t.EndLSN >= s.options.Undone {
		done, err := s.undone(t)
		if err == nil && done {
			s.pool.Committed(e.complete)
		}
		if err != nil || done {
			return err
		}
	}
	var err error
	if e.ahead != nil {
		err = s.applyAhead(patient, e)
	} else {
		err = s.applyGroup([]*txn.Transaction{t})
	}
	if err != nil {
		return err
	}
	s.pool.Committed(e.complete)
	return nil
}

// beyondEnd tells whether a transaction committed at or after the end position. Where a
// ROLLBACK PREPARED began is not known, only where it ends.
func (s *Stream) beyondEnd(t *txn.Transaction) bool {
	if t.Kind == txn.RollbackPrepared {
		return s.options.End > 0 && t.EndLSN > s.options.End
	}
	return s.options.End > 0 && t.FinalLSN >= s.options.End
}

func (s *Stream) applyGroup(group []*txn.Transaction) error {
	s.waitsFor(s.options.Target)
	outcome, err := s.options.Target.Apply(group)
	s.waitsFor(nil)
	return s.applied(group, outcome, err)
}

// applied accounts for a group and releases it.
func (s *Stream) applied(group []*txn.Transaction, outcome target.Outcome, err error) error {
	s.account(group, outcome)
	if outcome.Recorded > 0 {
		s.tracker.Committed(outcome.Recorded)
		// A COMMIT that is cancelled while it waits for standbys succeeds all the same.
		if s.options.Synchronous && s.reading.Err() == nil {
			s.tracker.AllDurable()
		}
	}
	var end lsn.LSN
	if outcome.Committed > 0 {
		end = group[outcome.Committed-1].EndLSN
		// Transactions that had nothing for us left no trace in the origin.
		s.tracker.Idle(end)
	}
	for _, t := range group {
		t.Release()
	}
	if err == nil && s.options.End > 0 && end >= s.options.End {
		return errEnd
	}
	return err
}

// idle handles a keepalive: everything before its position is applied.
func (s *Stream) idle(e event) error {
	s.tracker.Idle(e.position)
	s.pool.Committed(e.complete)
	if e.urgent {
		select {
		case s.urgent <- struct{}{}:
		default:
		}
	}
	if s.options.End > 0 && e.position >= s.options.End {
		return errEnd
	}
	return nil
}

// Progress counts what a stream has done.
type Progress struct {
	// Received is the end of what was read from the publisher.
	Received lsn.LSN
	// Applied is committed on the target, Flushed durable there, and
	// Acknowledged is what the publisher was told.
	Applied, Flushed, Acknowledged lsn.LSN
	// LastCommitTime is when the last applied transaction committed on the publisher, and
	// OldestCommitTime when the oldest did that is received and not applied; 0 for none.
	LastCommitTime, OldestCommitTime decoder.Timestamp

	Transactions, Groups, Replays int64
	// ParallelGroups counts the groups that were applied by a worker beside those before
	// them, ParallelReplays those that could not be, and were applied at their turn.
	ParallelGroups, ParallelReplays      int64
	Inserts, Updates, Deletes, Truncates int64
	NotMember                            int64
	// Messages counts logical messages, of transactions and of none.
	Messages int64
	// Conflicts that were resolved, by type. A snapshot's map is its own.
	Conflicts map[conflict.Type]int64

	Assembler txn.Stats
	// RowByRow are the tables whose changes are not merged, as far as they were met.
	RowByRow []target.RowByRow
	// Workers are the sessions that apply; the first one does so in order of commits.
	Workers []Worker
}

func (s *Stream) received(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.progress.Received = max(s.mu.progress.Received, e.position)
	if e.transaction != nil {
		s.mu.backlog.received(e.position, e.transaction.Time)
	}
}

func (s *Stream) account(group []*txn.Transaction, outcome target.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.mu.progress
	p.Transactions += int64(outcome.Committed)
	if outcome.Committed > 0 {
		p.Groups++
	}
	if outcome.Replayed {
		p.Replays++
	}
	p.Inserts += outcome.Inserts
	p.Updates += outcome.Updates
	p.Deletes += outcome.Deletes
	p.Truncates += outcome.Truncates
	p.NotMember += outcome.NotMember
	p.Messages += outcome.Messages
	for t, count := range outcome.Conflicts {
		if p.Conflicts == nil {
			p.Conflicts = make(map[conflict.Type]int64)
		}
		p.Conflicts[t] += count
	}
	if outcome.Committed > 0 {
		p.LastCommitTime = group[outcome.Committed-1].Time
	}
}

// accountAhead counts how a group that was in line was committed.
func (s *Stream) accountAhead(fate parallel.Fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch fate {
	case parallel.AsHoped:
		s.mu.progress.ParallelGroups++
	case parallel.Missed:
		s.mu.progress.ParallelReplays++
	case parallel.InTurn:
	}
}

// Progress returns a snapshot. It may be called from any goroutine.
func (s *Stream) Progress() Progress {
	applied := s.tracker.Applied().Reached
	s.mu.Lock()
	progress := s.mu.progress
	progress.Conflicts = maps.Clone(progress.Conflicts)
	progress.Acknowledged = s.mu.recorded
	progress.OldestCommitTime = s.mu.backlog.oldest(applied)
	s.mu.Unlock()
	progress.Applied = applied
	durable := s.tracker.Durable()
	progress.Flushed = durable.Reached
	progress.Acknowledged = max(progress.Acknowledged, durable.Transaction)
	progress.Assembler = s.assembler.Stats()
	progress.Workers = s.workers()
	progress.RowByRow = s.options.Target.RowByRow()
	return progress
}
