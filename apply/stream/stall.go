package stream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/target"
)

// The head must never wait for a later transaction of ours. On the publisher it does
// not, but a unique index or a trigger that only the target has, or another application
// in between, can make it: the later one, a streamed one or a group, waits for its turn,
// and nothing would move.

const (
	// stallAfter is how long the head waits for the target before anybody asks why.
	stallAfter = time.Second
	// stallPause is how often it is looked at.
	stallPause = 250 * time.Millisecond
)

// head is the session that the applier waits for.
type head struct {
	session *target.Session
	ahead   *ahead
	since   time.Time
}

// waitsFor notes the session that the applier waits for; nil for none.
func (s *Stream) waitsFor(session *target.Session) {
	s.setHead(head{session: session, since: time.Now()})
}

// waitsForAhead notes the transaction or group, on whichever worker.
func (s *Stream) waitsForAhead(p *ahead) { s.setHead(head{ahead: p, since: time.Now()}) }

func (s *Stream) setHead(h head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.head, s.mu.stalled = h, ""
}

// headBackend is the head's backend and since when it is waited for; 0 for none.
func (s *Stream) headBackend() (pid uint32, since time.Time) {
	s.mu.Lock()
	h := s.mu.head
	s.mu.Unlock()
	session := h.session
	if h.ahead != nil {
		if p := h.ahead.place.Load(); p != nil {
			session = p.session
		}
	}
	if session == nil {
		return 0, h.since
	}
	return session.PID(), h.since
}

// watchStalls looks whom the head waits for, and has our own later transactions give
// way: they are rolled back and applied at their turn.
func (s *Stream) watchStalls(ctx context.Context) error {
	ticker := time.NewTicker(stallPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		pid, since := s.headBackend()
		if pid == 0 || time.Since(since) < stallAfter {
			continue
		}
		blockers, err := s.options.State.Blockers(ctx, pid)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		s.giveWay(pid, blockers)
		s.explain(since, blockers)
	}
}

// giveWay rolls back the workers among those that the head's backend waits for.
func (s *Stream) giveWay(head uint32, blockers []Blocker) {
	for worker, session := range s.options.Workers {
		pid := session.PID()
		if pid != head && slices.ContainsFunc(blockers, func(b Blocker) bool { return b.PID == pid }) {
			s.options.Log.Info("a transaction that was applied ahead stands in the way of an earlier one: it is rolled back and applied at its turn", zap.Int("worker", worker+1))
			s.pool.Yield(worker + 1)
		}
	}
}

// explain says what the head waits for, in the status and, once, in the log.
func (s *Stream) explain(since time.Time, blockers []Blocker) {
	reason := ""
	if len(blockers) > 0 {
		at := max(0, slices.IndexFunc(blockers, func(b Blocker) bool { return b.GID != "" }))
		reason = blockers[at].String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.head.since != since || s.mu.stalled == reason {
		return
	}
	s.mu.stalled = reason
	if reason == "" {
		return
	}
	s.options.Log.Warn("the transaction whose turn it is waits for " + reason)
}

func (b Blocker) String() string {
	if b.GID != "" {
		return fmt.Sprintf("a lock of prepared transaction %q on the target; if its COMMIT PREPARED comes later in the stream, nothing moves before somebody runs COMMIT PREPARED %s there", b.GID, "'"+strings.ReplaceAll(b.GID, "'", "''")+"'")
	}
	return fmt.Sprintf("a lock of the target's server process %d", b.PID)
}
