package stream

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply/target"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
	"pgapply/parallel"
)

// waiting makes a stream whose queue holds the events.
func waiting(limits Limits, end lsn.LSN, events ...event) *Stream {
	s := &Stream{options: Options{Limits: limits, End: end}, events: make(chan event, len(events)), line: parallel.NewLine(1, 0)}
	for _, e := range events {
		s.events <- e
	}
	return s
}

func transaction(end lsn.LSN, change ...func(*txn.Transaction)) event {
	t := &txn.Transaction{Kind: txn.Commit, FinalLSN: end - 1, EndLSN: end}
	for _, set := range change {
		set(t)
	}
	return event{transaction: t, position: end}
}

func TestGrow(t *testing.T) {
	roomy := Limits{Transactions: 100, Rows: 100, Bytes: 1 << 20, Age: time.Second}
	streamed := func(t *txn.Transaction) { t.Streamed = true }
	prepared := func(t *txn.Transaction) { t.Kind = txn.Prepare }
	late := func(t *txn.Transaction) { t.Time = decoder.Timestamp(2_000_000) }
	for _, c := range []struct {
		name   string
		limits Limits
		end    lsn.LSN
		first  event
		events []event
		// The group's size, what is held back, whether it may grow later, whether another
		// group waits, and the keepalive that counts after it.
		size               int
		held, closed, more bool
		keepalive          lsn.LSN
	}{
		{"nothing waits", roomy, 0, transaction(10), nil, 1, false, false, false, 0},
		{"all that waits", roomy, 0, transaction(10), []event{transaction(20), transaction(30)}, 3, false, false, false, 0},
		{"keepalives in between", roomy, 0, transaction(10), []event{{position: 15}, transaction(20), {position: 25}}, 2, false, false, false, 25},
		{"number", Limits{2, 100, 100, time.Second}, 0, transaction(10), []event{transaction(20), transaction(30)}, 2, false, true, true, 0},
		{"one", Limits{1, 100, 100, time.Second}, 0, transaction(10), nil, 1, false, true, false, 0},
		{"age", roomy, 0, transaction(10), []event{transaction(20, late)}, 1, true, true, true, 0},
		{"a streamed one stands alone", roomy, 0, transaction(10), []event{transaction(20, streamed)}, 1, true, true, false, 0},
		{"a prepared one stands alone", roomy, 0, transaction(10), []event{transaction(20, prepared)}, 1, true, true, false, 0},
		{"the end position", roomy, 25, transaction(10), []event{transaction(20), transaction(30)}, 2, true, true, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := waiting(c.limits, c.end, c.events...)
			s.forming = newGroup(c.first)
			s.grow()
			group := s.forming.transactions
			require.Len(t, group, c.size)
			require.Equal(t, c.held, s.held != nil)
			require.Equal(t, c.closed, s.forming.closed)
			require.Equal(t, c.more, s.more())
			require.Equal(t, c.keepalive, s.forming.keepalive.position)
			for i := 1; i < len(group); i++ {
				require.Greater(t, group[i].EndLSN, group[i-1].EndLSN)
			}
		})
	}
}

// TestGather: a group waits for more for as long as the publisher is behind and has more.
func TestGather(t *testing.T) {
	const step = gatherTime/10 + time.Microsecond
	late := func(end lsn.LSN) event {
		e := transaction(end)
		e.late = true
		return e
	}
	for _, c := range []struct {
		name   string
		most   int
		first  event
		events []event // one after each step
		size   int
		takes  time.Duration
	}{
		{"not late", 100, transaction(10), []event{late(20)}, 1, 0},
		{"late, and nothing more comes", 100, late(10), nil, 1, gatherTime},
		{"late", 100, late(10), []event{late(20), late(30)}, 3, gatherTime},
		{"the publisher catches up", 100, late(10), []event{late(20), transaction(30), late(40)}, 3, 2 * step},
		{"the publisher has no more", 100, late(10), []event{late(20), {position: 25}, late(30)}, 2, 2 * step},
		{"full", 3, late(10), []event{late(20), late(30), late(40), late(50)}, 3, 3 * step},
		{"too much for the time", 100, late(10), []event{
			late(1), late(2), late(3), late(4), late(5), late(6), late(7), late(8), late(9), late(10), late(11), late(12),
		}, 10, gatherTime},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{Limits: Limits{Transactions: c.most, Rows: 100, Bytes: 1 << 20, Age: time.Second}})
				began := time.Now()
				steps := time.NewTicker(step)
				defer steps.Stop()
				var reader sync.WaitGroup
				defer reader.Wait()
				reader.Go(func() {
					for _, e := range c.events {
						<-steps.C
						s.events <- e
						s.tellEnough(e)
					}
				})
				s.forming = newGroup(c.first)
				s.grow()
				s.gather(t.Context())
				require.Equal(t, c.takes, time.Since(began))
				require.Len(t, s.forming.transactions, c.size)
			})
		})
	}
	t.Run("stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := New(Options{Limits: Limits{Transactions: 100, Rows: 100, Bytes: 1 << 20, Age: time.Second}})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			began := time.Now()
			s.forming = newGroup(late(10))
			s.gather(ctx)
			require.Zero(t, time.Since(began))
		})
	})
}

// TestProgressBeforeRun: whoever has the stream may ask at once.
func TestProgressBeforeRun(t *testing.T) {
	s := New(Options{Budget: txn.NewBudget(1), Target: new(target.Session), Resume: 20, Recorded: 10})
	require.Equal(t, lsn.LSN(20), s.Progress().Received)
	require.Empty(t, s.Progress().Workers)
}
