package stream

import (
	"context"
	"errors"
	"time"

	"pgapply/internal/lsn"
	"pgapply/internal/source"
)

const (
	// samplePause is how often the target's flush position is read while a
	// commit is not durable yet. The target's WAL writer needs longer.
	samplePause = 20 * time.Millisecond
	// recordPause is how often a position that only keepalives vouch for is
	// recorded on the target, which costs a flush there.
	recordPause = time.Second
	// answerPause is the same when the publisher asks: a shutdown waits for it.
	answerPause = 50 * time.Millisecond
	forever     = time.Hour
)

// acknowledge follows the tracker and tells the publisher what it may forget.
func (s *Stream) acknowledge(ctx context.Context) error {
	var sampled, recorded time.Time
	asked := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.tracker.Changed():
		case <-s.urgent:
			asked = true
		case <-timer.C:
		}
		pause := forever
		if s.tracker.Pending() {
			if since := time.Since(sampled); since >= samplePause {
				if err := s.sample(ctx); err != nil {
					return err
				}
				sampled = time.Now()
			}
			pause = samplePause - time.Since(sampled)
		}
		if s.unrecorded() {
			wait := recordPause
			if asked {
				wait = answerPause
			}
			if since := time.Since(recorded); since >= wait {
				if err := s.record(ctx); err != nil {
					return err
				}
				recorded, asked = time.Now(), false
			} else {
				pause = min(pause, wait-since)
			}
		}
		s.report()
		if s.tracker.Pending() {
			pause = min(pause, samplePause)
		}
		timer.Reset(max(pause, time.Millisecond))
	}
}

// sample asks the target how far its WAL is flushed.
func (s *Stream) sample(ctx context.Context) error {
	position := s.tracker.Applied()
	local, flushed, err := s.options.State.LocalFlush(ctx)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err // a commit that is cancelled while it waits for standbys succeeds all the same
	}
	s.tracker.Sample(position, local, flushed)
	return nil
}

// unrecorded tells whether the durable position lies beyond what either the
// origin or the state on the target could prove after a crash.
func (s *Stream) unrecorded() bool {
	durable := s.tracker.Durable()
	s.mu.Lock()
	defer s.mu.Unlock()
	return durable.Reached > max(durable.Transaction, s.mu.recorded)
}

// record makes the durable position provable. Only then may it be acknowledged:
// the publisher would move the slot ahead of all that the target knows, and a
// later start could not tell that from lost changes.
func (s *Stream) record(ctx context.Context) error {
	reached := s.tracker.Durable().Reached
	if err := errors.Join(s.options.State.Acknowledge(ctx, reached), ctx.Err()); err != nil {
		return err // as in sample
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.recorded = max(s.mu.recorded, reached)
	return nil
}

// report hands the newest positions to the feedback writer.
func (s *Stream) report() {
	flushed := s.acknowledgeable()
	applied := s.tracker.Applied().Reached
	// News goes out at once: a synchronous publisher's COMMIT waits for it.
	s.options.Source.Report(source.Position{Flushed: flushed, Applied: max(applied, flushed)}, flushed > s.reported)
	s.reported = flushed
}

func (s *Stream) acknowledgeable() lsn.LSN {
	durable := s.tracker.Durable()
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(durable.Transaction, s.mu.recorded)
}

// settle waits until everything that is applied is durable and reported.
func (s *Stream) settle(ctx context.Context) error {
	ticker := time.NewTicker(samplePause)
	defer ticker.Stop()
	for s.tracker.Pending() {
		if err := s.sample(ctx); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.unrecorded() {
		if err := s.record(ctx); err != nil {
			return err
		}
	}
	s.report()
	return nil
}
