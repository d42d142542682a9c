package txn

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder"
	"pgapply/internal/lsn"
)

// watcher follows one transaction on the assembler's goroutine, keeps what it has
// applied, and checks each step against the assembler's own state.
type watcher struct {
	t        require.TestingT
	open     *Open
	follower *Follower
	limit    uint64
	applied  []applied
	dropped  bool
	// completed tells of each record that ever began at a position how many
	// transactions were complete when its block began.
	completed map[int64]uint64
	// whole is that number for all of an ordinary transaction.
	whole uint64
}

type applied struct {
	position int64
	change   string
}

// follow starts over.
func (w *watcher) follow() {
	w.close()
	w.follower, w.applied, w.limit = w.open.Follow(), nil, 0
}

func (w *watcher) close() {
	if w.follower != nil {
		w.follower.Close()
		w.follower = nil
	}
}

// next makes one step and tells whether there may be more.
func (w *watcher) next(limit uint64) bool {
	w.limit = max(w.limit, limit)
	step, found, err := w.follower.Next(limit)
	tape := &w.open.transaction.tape
	switch {
	case errors.Is(err, ErrRolledBack):
		require.True(w.t, w.dropped)
		w.applied = nil
		return false
	case errors.Is(err, io.EOF):
		require.NotZero(w.t, w.open.transaction.Sequence, "the end of what is not complete")
		require.Equal(w.t, tape.size, w.follower.position)
		return false
	}
	require.NoError(w.t, err)
	require.False(w.t, w.dropped)
	switch {
	case !found:
		if position := w.follower.position; position < tape.size {
			require.Greater(w.t, w.completedAt(position), w.limit, "something is held back")
		} else {
			require.Zero(w.t, w.open.transaction.Sequence, "the end is held back")
		}
		require.Zero(w.t, w.open.mu.buffered, "whoever waits needs no memory")
		return false
	case step.Undo:
		require.Equal(w.t, Change{}, step.Change)
		require.Greater(w.t, len(w.applied), 0)
		require.GreaterOrEqual(w.t, w.applied[len(w.applied)-1].position, step.Position)
		for len(w.applied) > 0 && w.applied[len(w.applied)-1].position >= step.Position {
			w.applied = w.applied[:len(w.applied)-1]
		}
	default:
		if len(w.applied) > 0 {
			require.Less(w.t, w.applied[len(w.applied)-1].position, step.Position)
		}
		require.Less(w.t, step.Position, tape.size, "it has been cut")
		require.LessOrEqual(w.t, w.completedAt(step.Position), w.limit, "a block runs ahead")
		w.applied = append(w.applied, applied{step.Position, showChange(w.open.XID(), step.Change)})
	}
	return true
}

func (w *watcher) completedAt(position int64) uint64 {
	if w.open.transaction.Streamed {
		return w.completed[position]
	}
	return w.whole
}

// rest reads to the end and returns all that was applied.
func (w *watcher) rest() (changes []string) {
	if w.follower == nil {
		w.follow()
	}
	for w.next(w.open.transaction.Sequence - 1) {
	}
	for _, a := range w.applied {
		changes = append(changes, a.change)
	}
	return changes
}

// watchers are Streams that watch every transaction.
type watchers struct {
	t         require.TestingT
	assembler *Assembler
	all       []*watcher
}

func (s *watchers) Opened(o *Open) {
	s.all = append(s.all, &watcher{t: s.t, open: o, completed: map[int64]uint64{}, whole: s.assembler.Completed()})
}

func (s *watchers) Arrived(o *Open) { require.False(s.t, s.of(o).dropped) }

func (s *watchers) Ended(o *Open, rolledBack bool) {
	w := s.of(o)
	require.False(s.t, w.dropped)
	w.dropped = rolledBack
}

// add is Assembler.Add, and notes where records begin.
func (s *watchers) add(f frame) (*Transaction, error) {
	var before int64
	open := s.current()
	if open != nil {
		before = open.transaction.tape.size
	}
	t, err := s.assembler.Add(f)
	if open != nil && open == s.current() {
		s.of(open).completed[before] = s.assembler.Completed()
	}
	return t, err
}

// current is the stream whose block arrives.
func (s *watchers) current() *Open {
	if s.assembler.state != inStream {
		return nil
	}
	return s.assembler.current.open
}

// of finds the watcher of a transaction, or nil.
func (s *watchers) of(o *Open) *watcher {
	for _, w := range s.all {
		if w.open == o {
			return w
		}
	}
	return nil
}

// forget ends a watcher and removes it.
func (s *watchers) forget(w *watcher) {
	w.close()
	for i := range s.all {
		if s.all[i] == w {
			s.all = append(s.all[:i:i], s.all[i+1:]...)
			return
		}
	}
}

func (s *watchers) opens() (opens []*Open) {
	for _, w := range s.all {
		opens = append(opens, w.open)
	}
	return opens
}

// startFollowing adds a stream with a table and follows it.
func startFollowing(t testing.TB, options Options) (*Assembler, *watcher) {
	s := &watchers{t: t}
	options.Streams = s
	a := NewAssembler(options)
	s.assembler = a
	w := wire{}
	feed(t, a, w.streamStart(7, true), w.relation(7, table(1, "t", "v")))
	s.all[0].follow()
	return a, s.all[0]
}

// A change that is larger than a piece is copied whole, in memory that is gone
// with the next.
func TestFollowsLargeChanges(t *testing.T) {
	for name, spool := range map[string]func() (SpoolFile, error){
		"memory": nil, "spooled": (&memorySpool{}).create,
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBudget(1000)
			a, watched := startFollowing(t, Options{Budget: b, Spool: spool})
			sizes := []int{10, 1_000_000, 10, 300_000, 70_000, 100_000, 5000, pieceSize, pieceSize - 32, 1}
			w := wire{inStream: true}
			for _, size := range sizes {
				feed(t, a, w.insert(7, 1, row(size)))
			}
			for _, size := range sizes {
				step, found, err := watched.follower.Next(0)
				require.NoError(t, err)
				require.True(t, found)
				require.Len(t, step.Message.(*decoder.Insert).New[0].Data, size)
				buffered := watched.open.mu.buffered
				require.Equal(t, watched.follower.buffer.capacity(), buffered)
				require.EqualValues(t, chunkCapacity(max(pieceSize, recordHeader+13+size)), buffered, "%d bytes", size)
				checkBudget(t, a, nil, watched.open)
			}
			require.False(t, watched.next(0))
			require.Zero(t, watched.open.mu.buffered)
			watched.close()
			require.NoError(t, a.Close())
			require.Zero(t, b.Used())
		})
	}
}

// What a follower needs counts as what its transaction is. While that arrives, the
// reader of the stream does not wait for it.
func TestFollowersMemoryCounts(t *testing.T) {
	b := NewBudget(2 * pieceSize)
	a, watched := startFollowing(t, Options{Budget: b, Spool: (&memorySpool{}).create})
	w := wire{inStream: true}
	feed(t, a, w.insert(7, 1, row(10)), w.insert(7, 1, row(10)), w.insert(7, 1, row(10)))
	before := b.Used()
	require.True(t, watched.next(0))
	require.EqualValues(t, pieceSize, b.Used()-before)
	require.Zero(t, b.ready.Load())

	feed(t, a, w.streamStop())
	transaction := finish(t, a, w.streamCommit(7, 1, 2))
	require.Zero(t, b.open.Load())
	require.Error(t, b.Wait(cancelled(t)), "now it waits for its turn")
	transaction.Release()
	require.EqualValues(t, pieceSize, b.Used())
	watched.close()
	require.Zero(t, b.Used())
	require.NoError(t, b.Wait(cancelled(t)))
}

// A follower of a transaction that is gone has its own memory until it is closed.
func TestFollowerOutlivesItsTransaction(t *testing.T) {
	b := NewBudget(1 << 20)
	a, watched := startFollowing(t, Options{Budget: b})
	w := wire{inStream: true}
	feed(t, a, w.insert(7, 1, text("kept")), w.insert(7, 1, text("gone")))
	step, _, err := watched.follower.Next(0)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.Equal(t, "INSERT t(v): kept", showChange(7, step.Change))
	require.EqualValues(t, pieceSize, b.Used())
	for range 2 {
		require.False(t, watched.next(0))
	}
	require.Empty(t, watched.applied)
	require.Zero(t, b.Used())
	watched.follower.Close()
	_, _, err = watched.follower.Next(0)
	require.ErrorContains(t, err, "transaction 7: its follower is closed")
	watched.follower.Close()
	require.Zero(t, b.Used())
}

// Blocks are few however many there are, and count.
func TestBlocksOfAStream(t *testing.T) {
	b := NewBudget(1 << 20)
	a, watched := startFollowing(t, Options{Budget: b})
	w := wire{inStream: true}
	feed(t, a, w.insert(7, 1, text("x")), w.streamStop())
	for range 1000 {
		feed(t, a, w.streamStart(7, false), w.insert(7, 1, text("x")), w.streamStop())
	}
	require.Len(t, watched.open.mu.blocks, 1)
	alone := b.Used()
	for range 1000 {
		finish(t, a, w.prepare(8, 1, 2, "")).Release()
		feed(t, a, w.streamStart(7, false), w.streamStop())
	}
	require.Len(t, watched.open.mu.blocks, 2, "blocks of nothing")
	for range 1000 {
		finish(t, a, w.prepare(8, 1, 2, "")).Release()
		feed(t, a, w.streamStart(7, false), w.insert(8, 1, text("x")), w.streamStop())
	}
	require.Len(t, watched.open.mu.blocks, 1001)
	require.Greater(t, b.Used(), alone+16*1000)
	feed(t, a, w.streamAbort(7, 8))
	require.Len(t, watched.open.mu.blocks, 1)
	watched.close()
	require.NoError(t, a.Close())
}

// Without Streams nothing can be followed, and nothing has a price.
func TestNobodyFollows(t *testing.T) {
	w := wire{}
	a := NewAssembler(Options{Budget: NewBudget(1 << 20)})
	feed(t, a, w.streamStart(7, true), w.streamStop())
	require.Nil(t, finish(t, a, w.streamCommit(7, 1, 2)).Open())
	a = NewAssembler(Options{Budget: NewBudget(1 << 20), Streams: &script{opened: map[string]*Open{}}})
	require.Nil(t, inserts(t, a, 7, 1, 10).Open())
	require.EqualValues(t, 1, a.Completed())
}

// After a fault of the spool a follower sees what was there before, and never half
// of something.
func TestFollowsBesideSpoolFaults(t *testing.T) {
	fault := errors.New("the disk is gone")
	insert := (&wire{inStream: true}).insert
	for fails, provoke := range map[string]func(*Assembler) (records int){
		"write": func(a *Assembler) (records int) {
			for ; ; records++ {
				if _, err := a.Add(insert(8, 1, row(1000))); err != nil {
					require.ErrorIs(t, err, fault)
					return records
				}
			}
		},
		"truncate": func(a *Assembler) int {
			_, err := a.Add((&wire{}).streamAbort(7, 8))
			require.ErrorIs(t, err, fault)
			return 0
		},
		"read": func(a *Assembler) int { return 0 },
	} {
		t.Run(fails, func(t *testing.T) {
			file := &faultyFile{fault: fault}
			b := NewBudget(20_000)
			a, watched := startFollowing(t, Options{
				Budget: b, Spool: func() (SpoolFile, error) { return file, nil },
			})
			w := wire{}
			feed(t, a, insert(7, 1, text("first")), insert(8, 1, text("second")))
			require.NoError(t, a.spill(a.current))
			feed(t, a, insert(8, 1, text("third")), w.streamStop())
			if fails == "write" {
				feed(t, a, w.streamStart(7, false))
			}
			file.fails = fails
			records := provoke(a)
			if fails == "read" {
				_, _, err := watched.follower.Next(0)
				require.ErrorIs(t, err, fault)
				require.ErrorContains(t, err, "read transaction 7: ")
			} else {
				for watched.next(0) {
				}
				want := map[string]int{"write": 3 + records, "truncate": 2}
				require.Len(t, watched.applied, want[fails])
			}
			require.NoError(t, a.Close())
			require.False(t, watched.next(0))
			watched.close()
			require.Zero(t, b.Used())
			require.Zero(t, b.spooled.Load())
		})
	}
}

// TestLargeOrdinaryTransactions are told of like streamed ones of one block, smaller ones
// are not.
func TestLargeOrdinaryTransactions(t *testing.T) {
	told := &watchers{t: t}
	a := NewAssembler(Options{Budget: NewBudget(64 << 20), Streams: told})
	told.assembler = a
	w := wire{}
	for i, rows := range []int{10, 10_000, 10} {
		final := lsn.LSN(100 * (i + 1))
		feed(t, a, w.begin(uint32(i+1), final), w.relation(0, table(1, "t", "v")))
		for range rows {
			feed(t, a, w.insert(0, 1, row(40)))
		}
		transaction := finish(t, a, w.commit(uint32(i+1), final, final+10))
		require.Equal(t, rows == 10_000, transaction.Open() != nil)
		if o := transaction.Open(); o != nil {
			w := told.of(o)
			require.Equal(t, uint64(1), w.whole)
			w.follow()
			require.False(t, w.next(0), "what was complete before is not committed")
			require.Len(t, w.rest(), rows)
			w.close()
		}
		transaction.Release()
	}
	require.Len(t, told.all, 1)
	require.NoError(t, a.Close())
}
