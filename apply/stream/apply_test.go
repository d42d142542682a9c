package stream

import (
	"testing"
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

func TestGather(t *testing.T) {
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
			s.forming = newGroup(c.first.transaction)
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

// TestProgressBeforeRun: whoever has the stream may ask at once.
func TestProgressBeforeRun(t *testing.T) {
	s := New(Options{Budget: txn.NewBudget(1), Target: new(target.Session), Resume: 20, Recorded: 10})
	require.Equal(t, lsn.LSN(20), s.Progress().Received)
	require.Empty(t, s.Progress().Workers)
}
