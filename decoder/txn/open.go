package txn

import (
	"math"
	"sort"
	"sync"
	"sync/atomic"

	"pgapply/internal/invariant"
)

// Streams is told of streamed transactions while they arrive, and of ordinary ones that
// are large. Add and Close call it on the assembler's goroutine, which waits meanwhile: it must not block.
type Streams interface {
	// Opened: the first block begins, or the ordinary transaction turns out to be large.
	Opened(*Open)
	// Arrived: a block has ended, or a part was rolled back, or there is some more.
	Arrived(*Open)
	// Ended: all of it has arrived, and Add returns its Transaction next. Or
	// rolledBack: the publisher has rolled it back or starts it over, under the
	// same transaction id; or the assembler was closed.
	Ended(o *Open, rolledBack bool)
}

// Open is a transaction as it arrives, for somebody who wants to read
// it before it is complete. It may be passed to another goroutine.
type Open struct {
	transaction *Transaction

	// mu guards what its fields say, and the transaction's tape and table of
	// relations. The assembler alone changes those, under mu, and so need not
	// take mu to read them; once the transaction is complete they do not change
	// until its Release.
	mu struct {
		sync.Mutex
		state    openState
		blocks   []block
		follower *Follower // the one that is in use
		buffered int64     // bytes of followers' buffers, charged to the budget
	}

	// cut is the lowest position that the tape was cut to since the follower
	// looked, and uncut when it was not. It changes under mu and may be read
	// without.
	cut atomic.Int64
}

// uncut is higher than any position.
const uncut = math.MaxInt64

type openState uint8

const (
	arriving openState = iota
	ready              // complete
	gone               // rolled back or dropped
	released
)

// block is where a block of a streamed transaction begins on the tape, and how
// many transactions were complete then.
type block struct {
	start     int64
	completed uint64
}

func newOpen(t *Transaction) *Open {
	o := &Open{transaction: t}
	o.cut.Store(uncut)
	return o
}

// XID is the publisher's transaction id, which wraps around.
func (o *Open) XID() uint32 { return o.transaction.XID }

// Follow returns a reader at the first change. There must be one Follower at a
// time: after the Close of one another may start over.
func (o *Open) Follow() *Follower {
	f := &Follower{open: o, decoder: o.transaction.budget.recycler.newDecoder()}
	o.mu.Lock()
	defer o.mu.Unlock()
	invariant.Check(o.mu.follower == nil, "transaction %d has a second follower", o.transaction.XID)
	o.mu.follower = f
	o.cut.Store(uncut)
	return f
}

// lock is taken by whoever changes the transaction. Transactions that nobody can
// follow have no Open and need none.
func (o *Open) lock() {
	if o != nil {
		o.mu.Lock()
	}
}

func (o *Open) unlock() {
	if o != nil {
		o.mu.Unlock()
	}
}

// begin notes a block that begins while that many transactions are complete.
// Blocks with nothing in between make one, so that a transaction whose blocks
// come alone has few.
func (o *Open) begin(completed uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	start, last := o.transaction.tape.size, len(o.mu.blocks)-1
	switch {
	case last >= 0 && o.mu.blocks[last].completed == completed:
	case last >= 0 && o.mu.blocks[last].start == start: // an empty one
		o.mu.blocks[last].completed = completed
	default:
		o.mu.blocks = append(o.mu.blocks, block{start, completed})
	}
}

// cutDown forgets what lies beyond the end of a tape that has just been cut. The
// caller holds the lock.
func (o *Open) cutDown() {
	if o == nil {
		return
	}
	size := o.transaction.tape.size
	o.mu.blocks = o.mu.blocks[:sort.Search(len(o.mu.blocks), func(i int) bool {
		return o.mu.blocks[i].start >= size
	})]
	o.cut.Store(min(o.cut.Load(), size))
}

// end says that nothing more arrives. The caller holds the lock.
func (o *Open) end(state openState) {
	if o == nil {
		return
	}
	o.mu.state = state
	if state != ready {
		o.cut.Store(0)
	}
}

// reach is the end of what may be read by somebody for whom that many
// transactions are complete. The caller holds the lock.
func (o *Open) reach(completed uint64) int64 {
	later := sort.Search(len(o.mu.blocks), func(i int) bool {
		return o.mu.blocks[i].completed > completed
	})
	if later < len(o.mu.blocks) {
		return o.mu.blocks[later].start
	}
	return o.transaction.tape.size
}

// charge adds size bytes, which may be negative, of a follower's buffer to the
// budget. While the transaction is not complete they count as open: the reader
// of the stream, which the transaction's rest depends on, must not wait for them.
func (o *Open) charge(size int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.buffered += size
	budget := o.transaction.budget
	switch o.mu.state {
	case arriving, gone:
		budget.charge(size)
	default:
		budget.release(-size, 0)
	}
}

// buffered is what a transaction that becomes ready takes along. The caller
// holds the lock.
func (o *Open) buffered() int64 {
	if o == nil {
		return 0
	}
	return o.mu.buffered
}

// needs is about what an Open takes, in bytes.
func (o *Open) needs() int64 {
	if o == nil {
		return 0
	}
	const open, block = 128, 16
	return open + block*int64(cap(o.mu.blocks))
}
