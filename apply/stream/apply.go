package stream

import (
	"context"
	"maps"
	"time"

	"pgapply/apply/target"
	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
)

// apply takes events off the queue until ctx ends: consecutive transactions that
// are waiting already form a group, so an idle system applies one to one.
func (s *Stream) apply(ctx, patient context.Context) error {
	var group []*txn.Transaction
	for {
		e, ok := s.next(ctx)
		if !ok {
			return ctx.Err()
		}
		if e.transaction == nil {
			if err := s.idle(e); err != nil {
				return err
			}
			continue
		}
		if s.beyondEnd(e.transaction) {
			s.forgo(e)
			return errEnd
		}
		if s.options.Skip > 0 && e.transaction.EndLSN >= s.options.Skip {
			if done, err := s.skip(ctx, e.transaction); err != nil {
				return err
			} else if done {
				s.pool.Committed(e.complete)
				continue
			}
		}
		if e.ahead != nil {
			if err := s.applyAhead(patient, e); err != nil {
				return err
			}
			s.pool.Committed(e.complete)
			continue
		}
		var keepalive event
		group, keepalive = s.gather(group[:0], e.transaction)
		if err := s.applyGroup(group); err != nil {
			return err
		}
		keepalive.complete = max(keepalive.complete, group[len(group)-1].Sequence)
		s.pool.Committed(keepalive.complete)
		if keepalive.position > 0 || keepalive.urgent {
			if err := s.idle(keepalive); err != nil {
				return err
			}
		}
	}
}

// next waits for an event.
func (s *Stream) next(ctx context.Context) (event, bool) {
	if s.held != nil {
		e := *s.held
		s.held = nil
		return e, true
	}
	if ctx.Err() != nil {
		return event{}, false
	}
	select {
	case e := <-s.events:
		return e, true
	case <-ctx.Done():
		return event{}, false
	}
}

// gather adds to the first transaction what waits in the queue and fits the same
// target transaction. Keepalives on the way count after the whole group: the last
// one of them is returned.
func (s *Stream) gather(group []*txn.Transaction, first *txn.Transaction) ([]*txn.Transaction, event) {
	group = append(group, first)
	rows, size := first.Len(), first.Bytes()
	var keepalive event
	for {
		var e event
		select {
		case e = <-s.events:
		default:
			return group, keepalive
		}
		t := e.transaction
		if t == nil {
			keepalive = event{position: max(keepalive.position, e.position), urgent: keepalive.urgent || e.urgent, complete: e.complete}
			continue
		}
		rows += t.Len()
		size += t.Bytes()
		limits := &s.options.Limits
		if len(group) >= limits.Transactions || rows > limits.Rows || size > limits.Bytes ||
			span(first.Time, t.Time) > limits.Age || first.Kind != txn.Commit || t.Kind != txn.Commit || t.Streamed || s.beyondEnd(t) || s.options.Skip > 0 && t.EndLSN >= s.options.Skip {
			s.held = &e
			return group, keepalive
		}
		group = append(group, t)
	}
}

func span(first, last decoder.Timestamp) time.Duration {
	return time.Duration(last-first) * time.Microsecond
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
		if s.options.Synchronous {
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
	// LastCommitTime is when the last applied transaction committed on the publisher.
	LastCommitTime decoder.Timestamp

	Transactions, Groups, Replays        int64
	Inserts, Updates, Deletes, Truncates int64
	NotMember                            int64
	// Messages counts logical messages, of transactions and of none.
	Messages int64
	// Conflicts that were resolved, by type. A snapshot's map is its own.
	Conflicts map[conflict.Type]int64

	Assembler txn.Stats
	// Workers are the sessions that apply; the first one does so in order of commits.
	Workers []Worker
}

func (s *Stream) received(position lsn.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.progress.Received = max(s.mu.progress.Received, position)
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

// Progress returns a snapshot. It may be called from any goroutine.
func (s *Stream) Progress() Progress {
	s.mu.Lock()
	progress := s.mu.progress
	progress.Conflicts = maps.Clone(progress.Conflicts)
	progress.Acknowledged = s.mu.recorded
	s.mu.Unlock()
	progress.Applied = s.tracker.Applied().Reached
	durable := s.tracker.Durable()
	progress.Flushed = durable.Reached
	progress.Acknowledged = max(progress.Acknowledged, durable.Transaction)
	progress.Assembler = s.assembler.Stats()
	progress.Workers = s.workers()
	return progress
}
