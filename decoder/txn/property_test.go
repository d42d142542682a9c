package txn

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever the sessions of a publisher do, and however little memory there is,
// the transactions that come out are those that went in, in their order. Whoever
// follows those that are streamed, whenever he looks, comes to the same.
func TestAssemblesWhatThePublisherDid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSubscriber(t)
		p := newPublisher(t, s.receive)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			p.step()
			require.Equal(t, len(p.streams), s.assembler.Stats().OpenStreams)
		}
		s.close()
	})
}

// subscriber feeds an assembler and compares what it returns.
type subscriber struct {
	*rapid.T
	spool     memorySpool
	budget    *Budget
	assembler *Assembler
	watchers  watchers
	socket    []byte // each frame is overwritten by the next
	kept      []*Transaction
	expected  []*expected
}

func newSubscriber(t *rapid.T) *subscriber {
	limit := rapid.SampledFrom([]int64{1, 3000, 8000, 40_000, 1 << 20}).Draw(t, "limit")
	s := &subscriber{T: t, budget: NewBudget(limit)}
	options := Options{Budget: s.budget}
	if rapid.IntRange(0, 4).Draw(t, "followed") > 0 {
		options.Streams = &s.watchers
	}
	if rapid.Bool().Draw(t, "spool") {
		options.Spool = s.spool.create
	}
	s.assembler = NewAssembler(options)
	s.watchers = watchers{t: t, assembler: s.assembler}
	return s
}

func (s *subscriber) receive(f frame, completes *expected) {
	s.socket = append(s.socket[:0], f...)
	transaction, err := s.watchers.add(s.socket)
	require.NoError(s, err, "message %c", f[0])
	poison(s.socket)
	require.Equal(s, completes != nil, transaction != nil, "message %c", f[0])
	if transaction != nil {
		s.kept, s.expected = append(s.kept, transaction), append(s.expected, completes)
		require.Equal(s, s.assembler.Completed(), transaction.Sequence)
	}
	s.look()
	checkBudget(s, s.assembler, s.kept, s.watchers.opens()...)
	for transaction != nil && len(s.kept) > 0 && rapid.IntRange(0, 2).Draw(s.T, "release") > 0 {
		s.take()
	}
}

// look lets some of those who follow a transaction make a few steps.
func (s *subscriber) look() {
	if len(s.watchers.all) == 0 || rapid.IntRange(0, 2).Draw(s.T, "look") > 0 {
		return
	}
	w := s.watchers.all[rapid.IntRange(0, len(s.watchers.all)-1).Draw(s.T, "watcher")]
	switch {
	case w.follower == nil:
		w.follow()
	case w.dropped && rapid.Bool().Draw(s.T, "forget"):
		s.watchers.forget(w)
		return
	case rapid.IntRange(0, 19).Draw(s.T, "start over") == 0:
		w.follow()
	}
	steps := rapid.IntRange(1, 20).Draw(s.T, "steps")
	limit := rapid.Uint64Range(0, s.assembler.Completed()).Draw(s.T, "limit")
	for range steps {
		if !w.next(limit) {
			break
		}
	}
}

// take compares the oldest transaction, twice, and releases it.
func (s *subscriber) take() {
	w := s.watchers.of(s.kept[0].Open())
	for range 2 {
		if diff := cmp.Diff(s.expected[0], observe(s.kept[0]), cmp.AllowUnexported(expected{})); diff != "" {
			s.Fatalf("the transaction differs (-want +got):\n%s", diff)
		}
		if w != nil {
			require.Equal(s, s.expected[0].changes, w.rest())
		}
	}
	if w != nil {
		s.watchers.forget(w)
	}
	s.kept[0].Release()
	s.kept, s.expected = s.kept[1:], s.expected[1:]
}

func observe(t *Transaction) *expected {
	e := &expected{header: fmt.Sprintf("%s %d at %s, end %s, streamed %t, gid %q, origin %q",
		t.Kind, t.XID, t.FinalLSN, t.EndLSN, t.Streamed, t.GID, t.Origin)}
	changes := t.Changes()
	for range t.Len() {
		change, err := changes.Next()
		if err != nil {
			e.changes = append(e.changes, err.Error())
			return e
		}
		e.changes = append(e.changes, showChange(t.XID, change))
	}
	if _, err := changes.Next(); !errors.Is(err, io.EOF) {
		e.changes = append(e.changes, fmt.Sprintf("%v instead of the end", err))
	}
	return e
}

// checkBudget counts again what the budget must have counted. The transactions
// in completed are those that are complete and not released; followed are all that
// have followers which are not closed.
func checkBudget(t require.TestingT, a *Assembler, completed []*Transaction, followed ...*Open) {
	var openBytes, tapes, readyBytes int64
	count := func(o *assembly) {
		openBytes += o.bookkeeping + o.tape.memory
		tapes += o.tape.memory
	}
	if a.plain.Transaction != nil {
		count(&a.plain)
	}
	for _, stream := range a.streams {
		count(stream)
	}
	for _, open := range followed {
		if open.mu.state == ready {
			readyBytes += open.mu.buffered
		} else {
			openBytes += open.mu.buffered
		}
	}
	for _, transaction := range completed {
		readyBytes += transaction.bookkeeping + transaction.tape.memory
		if buffer := transaction.reader.buffer; buffer != nil {
			readyBytes += buffer.capacity()
		}
	}
	require.Equal(t, openBytes, a.budget.open.Load())
	require.Equal(t, readyBytes, a.budget.ready.Load())
	if a.spool != nil {
		require.LessOrEqual(t, tapes, a.budget.limit/2)
	}
}

func (s *subscriber) close() {
	require.NoError(s, s.assembler.Close())
	for _, w := range s.watchers.all {
		if w.dropped && w.follower != nil {
			require.False(s, w.next(0))
			w.close()
		}
	}
	for len(s.kept) > 0 {
		s.take()
	}
	require.Zero(s, s.budget.Used())
	require.Zero(s, s.budget.spooled.Load())
	require.Zero(s, s.spool.open())
	_, err := s.assembler.Add(frame{'E'})
	require.ErrorContains(s, err, "closed")
}
