package txn

import (
	"context"
	"sync"
	"sync/atomic"

	"pgapply/internal/invariant"
)

// Budget bounds the memory of transactions in flight, in bytes. Half of it is
// for open transactions, which are still arriving, and half for ready ones,
// which are complete and not released yet. One Budget may serve several
// assemblers; it is safe for concurrent use.
//
// Ready transactions that have spool files are few, so that a slow target does
// not fill the disk: one that is being applied and one that waits; see NewFrugalBudget.
//
// It counts the capacity of the memory that holds changes, and an estimate of
// what each transaction needs beside that; what a Follower has copied counts as
// its transaction does. The descriptions of tables that
// outlive a transaction are not counted.
type Budget struct {
	limit    int64
	most     int          // so many ready transactions with spool files are too many
	spooled  atomic.Int64 // bytes in spool files
	recycler recycler

	// Every transaction changes these a few times, from two goroutines at once.
	open  atomic.Int64
	ready atomic.Int64
	files atomic.Int64 // of ready transactions
	// waited tells release that lowered is there.
	waited atomic.Bool

	mu struct {
		sync.Mutex
		// lowered, unless nil, is closed when there is room again.
		lowered chan struct{}
	}
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit, most: 2} }

// NewFrugalBudget is NewBudget for a spool with little room: while a ready transaction
// has a spool file no other one arrives, so that each has the room to itself.
func NewFrugalBudget(limit int64) *Budget { return &Budget{limit: limit, most: 1} }

// Used is the memory of all transactions in flight, in bytes.
func (b *Budget) Used() int64 { return b.open.Load() + b.ready.Load() }

// Wait blocks while ready transactions take more than half of the budget, or two
// of them have spool files. When ctx ends it returns its cause. The reader of a
// stream calls it before it reads on; somebody else must be releasing
// transactions meanwhile.
func (b *Budget) Wait(ctx context.Context) error {
	for {
		lowered := b.overfull()
		if lowered == nil {
			return nil
		}
		select {
		case <-lowered:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// overfull returns nil when there is room, else what to wait for.
func (b *Budget) overfull() <-chan struct{} {
	if b.hasRoom() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.lowered == nil {
		b.mu.lowered = make(chan struct{})
		b.waited.Store(true)
	}
	if b.hasRoom() {
		return nil // of a release that may not have seen that somebody waits
	}
	return b.mu.lowered
}

// hasRoom tells whether more transactions may become ready.
func (b *Budget) hasRoom() bool {
	return b.ready.Load() <= b.limit/2 && b.files.Load() < int64(b.most)
}

// reserve charges size bytes to the open transactions if they then take no more
// than half of the budget.
func (b *Budget) reserve(size int64) bool {
	for {
		open := b.open.Load()
		if open+size > b.limit/2 {
			return false
		}
		if b.open.CompareAndSwap(open, open+size) {
			return true
		}
	}
}

// charge adds size bytes, which may be negative, to the open transactions
// whatever they take.
func (b *Budget) charge(size int64) {
	open := b.open.Add(size)
	invariant.Check(open >= 0, "open transactions take %d bytes", open)
}

// complete moves a transaction of size bytes in memory, and files spool files,
// from the open ones to the ready ones.
func (b *Budget) complete(size int64, files int) {
	if files > 0 {
		b.files.Add(int64(files))
	}
	b.ready.Add(size)
	b.charge(-size)
}

// chargeReady adds size bytes to the ready transactions.
func (b *Budget) chargeReady(size int64) { b.ready.Add(size) }

// release takes size bytes and files spool files from the ready transactions.
func (b *Budget) release(size int64, files int) {
	if files > 0 {
		b.files.Add(-int64(files))
	}
	ready := b.ready.Add(-size)
	invariant.Check(ready >= 0, "ready transactions take %d bytes", ready)
	if !b.waited.Load() || !b.hasRoom() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.lowered != nil {
		close(b.mu.lowered)
		b.mu.lowered = nil
		b.waited.Store(false)
	}
}
