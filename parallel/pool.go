// Package parallel applies transactions ahead of their turn, each on a worker of its
// own, beside the transactions that commit meanwhile: those that are still running on
// the publisher, and groups of those that have ended.
//
//	reader    Start Arrived Drop --> queue --> worker 1   Advance, Advance, .. end
//	watchdog  Yield                       '--> worker 2   Advance, .. Abandon
//	head      Start Finish Committed               :
//
// The [Pool] applies, and the [Line] says which groups may be applied beside others.
// A worker applies as much of its transaction as has arrived and may run. Out of
// turn nothing is decided: on any error it is rolled back, and the head applies it
// from the start when its turn comes. The head alone decides the turn, so commits
// happen in the order of its calls to Finish.
//
// What a transaction is, and how it is applied, is a [Task]'s business: this
// package knows no SQL, no position and no connection.
package parallel

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pgapply/internal/invariant"
)

// ErrClosed is what a pool that was closed answers.
var ErrClosed = errors.New("the worker pool is closed")

// Pool is a fixed number of workers and the transactions that they apply. All of
// its methods, and those of [Running], may be called from any goroutine; unless
// they say otherwise they do not block.
type Pool struct {
	goroutines sync.WaitGroup // the workers, and calls to Cancel
	failed     chan struct{}

	// mu also guards the fields of every worker and Running. No Task is called under
	// it.
	mu struct {
		sync.Mutex
		workers   []*worker  // worker n is at n-1
		queue     []*Running // those that are queued, longest waiting first; none while a worker is free
		committed uint64
		stopped   error // why, once the pool has; nothing is queued or applying then
	}
}

// worker is what one goroutine is at.
type worker struct {
	number  int
	running *Running  // nil while it is free
	since   time.Time // when its state began: see Status
	wake    sync.Cond // something has changed for its goroutine, which alone waits
}

// New returns a pool whose workers are numbered from 1. With none of them every
// transaction is left to the head.
func New(workers int) *Pool {
	p := &Pool{failed: make(chan struct{})}
	for i := range workers {
		w := &worker{number: i + 1, since: time.Now(), wake: sync.Cond{L: &p.mu}}
		p.mu.workers = append(p.mu.workers, w)
		p.goroutines.Go(func() { p.work(w) })
	}
	return p
}

// Start hands over a transaction that has begun to arrive. The free
// worker with the lowest number takes it at once, else it waits until one is free or
// its turn has come. The worker calls begin for the task, even if the transaction
// has just been dropped; begin must not wait for the target. The label is for
// people: see [Status].
func (p *Pool) Start(label uint32, begin func(worker int) Task) *Running {
	r := &Running{pool: p, label: label, begin: begin, news: true, over: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.stopped != nil {
		r.settle(left)
		return r
	}
	p.mu.queue = append(p.mu.queue, r)
	p.assign()
	return r
}

// Committed tells how many transactions are committed on the target, and so what
// may run now. The number never falls.
func (p *Pool) Committed(n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	invariant.Check(n >= p.mu.committed, "%d transactions are committed, after %d", n, p.mu.committed)
	p.mu.committed = n
	for _, w := range p.mu.workers {
		if w.running != nil {
			w.running.tell()
		}
	}
}

// Yield makes a worker roll back what it applies and leave it to the head: the
// cure when the transaction whose turn it is waits for locks of that worker, be it
// through others. It has no effect on a worker whose transaction has its turn, or
// that has none; so whoever found the workers in the way may name all of them.
func (p *Pool) Yield(worker int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if worker < 1 || worker > len(p.mu.workers) {
		return
	}
	if r := p.mu.workers[worker-1].running; r != nil && r.stage == applying {
		r.leave()
	}
}

// Failed is closed when a worker could not roll back. Its connection cannot be
// trusted any more, and a pool that lacks a worker is of no use: it stops, as if it
// were closed. See [Pool.Err].
func (p *Pool) Failed() <-chan struct{} { return p.failed }

// Err tells why the pool has stopped: the error of the Abandon that failed, or
// [ErrClosed]; nil while it works.
func (p *Pool) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.stopped
}

// Close has every transaction rolled back, also the one that is finishing unless it
// is too late for that, and waits for all of it.
func (p *Pool) Close() {
	p.mu.Lock()
	p.stop(ErrClosed)
	p.mu.Unlock()
	p.goroutines.Wait()
}

// stop makes every worker leave what it has and end. The caller holds mu.
func (p *Pool) stop(reason error) {
	if p.mu.stopped != nil {
		return
	}
	p.mu.stopped = reason
	for _, r := range p.mu.queue {
		r.settle(left)
	}
	p.mu.queue = nil
	for _, w := range p.mu.workers {
		if r := w.running; r != nil && r.stage != leaving {
			r.leave()
		}
		w.wake.Signal()
	}
}

// assign gives free workers what waits for them. The caller holds mu.
func (p *Pool) assign() {
	for _, w := range p.mu.workers {
		if w.running == nil && len(p.mu.queue) > 0 {
			r := p.mu.queue[0]
			p.mu.queue = slices.Delete(p.mu.queue, 0, 1)
			w.running, r.worker = r, w
			r.become(applying)
			w.wake.Signal()
		}
	}
}

// work is the goroutine of one worker.
func (p *Pool) work(w *worker) {
	for {
		r := p.take(w)
		if r == nil {
			return
		}
		task := r.begin(w.number)
		r.began(task)
		p.apply(r, task)
	}
}

// take waits until the worker has a transaction; nil when the pool has stopped.
func (p *Pool) take(w *worker) *Running {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w.running == nil && p.mu.stopped == nil {
		w.wake.Wait()
	}
	return w.running
}

// apply runs a transaction on its worker, and returns when nothing of it is open
// there.
func (p *Pool) apply(r *Running, task Task) {
	for {
		switch stage, committed := r.next(); stage {
		case applying:
			r.returned(task.Advance(committed))
		case finishing:
			if r.returned(r.end(task)) {
				p.release(r, done, nil)
				return
			}
		case leaving:
			p.release(r, left, task.Abandon())
			return
		}
	}
}

// release takes a transaction that is over from its worker. An error is that of
// its Abandon, and stops the pool.
func (p *Pool) release(r *Running, over stage, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && p.mu.stopped == nil {
		p.stop(fmt.Errorf("worker %d: roll back transaction %d: %w", r.worker.number, r.label, err))
		close(p.failed)
	}
	r.worker.running = nil
	r.settle(over)
	p.assign()
}
