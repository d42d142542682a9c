package txn

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each streamed transaction is followed on a goroutine of its own, as workers do
// it, while it arrives, moves to its file, is cut, starts over and ends. What the
// worker has then applied is what the transaction holds.
func TestFollowElsewhere(t *testing.T) {
	spool := &memorySpool{}
	b := NewBudget(100_000)
	workers := &workers{running: map[*Open]*worker{}}
	a := NewAssembler(Options{Budget: b, Spool: spool.create, Streams: workers})
	p := &busyPublisher{t: t, random: rand.New(rand.NewPCG(1, 2)), assembler: a, workers: workers}
	for range 500 {
		p.step()
	}
	require.NoError(t, a.Close())
	workers.wait()
	require.Greater(t, p.complete, 8)
	require.Zero(t, b.Used())
	require.Zero(t, b.spooled.Load())
	require.Zero(t, spool.open())
}

// A follower that never waits looks at any moment: between a change and the next
// piece of memory for the tape, too.
func TestRestlessFollower(t *testing.T) {
	for name, variant := range map[string]struct {
		limit int64
		size  int // of a row; larger than a chunk, each takes memory of its own
	}{
		"spooled":    {20_000, 100},
		"large rows": {64 << 20, largestChunk},
	} {
		t.Run(name, func(t *testing.T) {
			spool := &memorySpool{}
			b, streams := NewBudget(variant.limit), &latest{}
			a := NewAssembler(Options{Budget: b, Spool: spool.create, Streams: streams})
			w := wire{}
			for xid := uint32(1); xid <= 5; xid++ {
				feed(t, a, w.streamStart(xid, true), w.relation(xid, table(1, "t", "v")))
				changes := make(chan int)
				go spin(streams.open.Follow(), a.Completed(), changes)
				for range 20 {
					feed(t, a, w.insert(xid, 1, row(variant.size)))
				}
				feed(t, a, w.streamStop())
				transaction := finish(t, a, w.streamCommit(xid, 1, 2))
				require.Equal(t, 20, <-changes)
				transaction.Release()
			}
			require.NoError(t, a.Close())
			require.Zero(t, b.Used())
			require.Zero(t, spool.open())
		})
	}
}

// spin reads to the end and sends the number of changes.
func spin(f *Follower, limit uint64, changes chan<- int) {
	defer close(changes)
	count := 0
	for {
		_, found, err := f.Next(limit)
		if err != nil {
			break
		}
		if found {
			count++
		} else {
			runtime.Gosched()
		}
	}
	f.Close()
	changes <- count
}

// workers are Streams that give each transaction a worker.
type workers struct {
	running   map[*Open]*worker
	committed atomic.Uint64
	all       sync.WaitGroup
}

type worker struct {
	arrived chan struct{}
	done    chan struct{} // closed when the follower has come to its end
	applied []applied
	err     error
}

func (w *workers) Opened(o *Open) {
	one := &worker{arrived: make(chan struct{}, 1), done: make(chan struct{})}
	w.running[o] = one
	w.all.Go(func() { one.run(o, &w.committed) })
}

func (w *workers) Arrived(o *Open) { w.running[o].wake() }

func (w *workers) Ended(o *Open, rolledBack bool) {
	w.running[o].wake()
	if rolledBack {
		delete(w.running, o)
	}
}

// commit lets all go on who wait for a transaction to be applied.
func (w *workers) commit(sequence uint64) {
	w.committed.Store(sequence)
	for _, one := range w.running {
		one.wake()
	}
}

func (w *workers) wait() { w.all.Wait() }

func (w *worker) wake() {
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

// run applies the transaction and, when its connection is cut as happens now and
// then, starts over.
func (w *worker) run(o *Open, committed *atomic.Uint64) {
	defer close(w.done)
	f := o.Follow()
	defer func() { f.Close() }()
	for steps := 1; ; steps++ {
		step, found, err := f.Next(committed.Load())
		switch {
		case err != nil:
			w.err = err
			return
		case !found:
			<-w.arrived
		case step.Undo:
			w.applied = slices.DeleteFunc(w.applied, func(a applied) bool { return a.position >= step.Position })
		default:
			w.applied = append(w.applied, applied{step.Position, showChange(o.XID(), step.Change)})
		}
		if steps%5000 == 0 {
			f.Close()
			f, w.applied = o.Follow(), nil
		}
	}
}

// busyPublisher sends streamed transactions with nested subtransactions, which
// come and go, and ordinary ones in between.
type busyPublisher struct {
	t         *testing.T
	random    *rand.Rand
	wire      wire
	assembler *Assembler
	workers   *workers
	xid       uint32
	streams   []*busyStream
	complete  int
}

type busyStream struct {
	xid     uint32
	nested  []uint32 // subtransactions, the innermost last
	started bool
}

func (p *busyPublisher) step() {
	if len(p.streams) < 4 {
		p.xid++
		p.streams = append(p.streams, &busyStream{xid: p.xid})
	}
	i := p.random.IntN(len(p.streams))
	s := p.streams[i]
	switch action := p.random.IntN(40); {
	case action < 25 || !s.started:
		p.block(s)
	case action < 30 && len(s.nested) > 0:
		gone := s.nested[p.random.IntN(len(s.nested)):]
		s.nested = s.nested[:len(s.nested)-len(gone)]
		for _, xid := range slices.Backward(gone) {
			feed(p.t, p.assembler, p.wire.streamAbort(s.xid, xid))
		}
	case action < 35:
		p.xid++
		p.apply(inserts(p.t, p.assembler, p.xid, 3, 100))
	case action < 36: // starts over
		s.nested, s.started = nil, false
		p.block(s)
	case action < 37:
		p.streams = slices.Delete(p.streams, i, i+1)
		feed(p.t, p.assembler, p.wire.streamAbort(s.xid, s.xid))
	case action < 39:
		p.streams = slices.Delete(p.streams, i, i+1)
		p.apply(finish(p.t, p.assembler, p.wire.streamCommit(s.xid, 1, 2)))
	}
}

func (p *busyPublisher) block(s *busyStream) {
	feed(p.t, p.assembler, p.wire.streamStart(s.xid, !s.started))
	s.started = true
	for range p.random.IntN(40) {
		if p.random.IntN(10) == 0 {
			p.xid++
			s.nested = append(s.nested, p.xid)
		}
		xid := s.xid
		if len(s.nested) > 0 {
			xid = s.nested[len(s.nested)-1]
		}
		// The description is new each time, as after a rollback.
		id := uint32(p.random.IntN(3))
		feed(p.t, p.assembler, p.wire.relation(xid, table(id, fmt.Sprint("t", p.random.IntN(100)), "v")))
		size := p.random.IntN(300)
		if p.random.IntN(300) == 0 {
			size = 3 * pieceSize
		}
		for range p.random.IntN(10) {
			feed(p.t, p.assembler, p.wire.insert(xid, id, text(strings.Repeat("x", size))))
		}
	}
	feed(p.t, p.assembler, p.wire.streamStop())
}

// apply is what the head does with a transaction whose turn has come.
func (p *busyPublisher) apply(t *Transaction) {
	defer t.Release()
	defer func() { p.workers.commit(t.Sequence) }()
	if t.Open() == nil {
		return
	}
	w := p.workers.running[t.Open()]
	delete(p.workers.running, t.Open())
	<-w.done
	require.ErrorIs(p.t, w.err, io.EOF)
	var changes []string
	for _, a := range w.applied {
		changes = append(changes, a.change)
	}
	require.Equal(p.t, observe(t).changes, changes)
	p.complete++
}
