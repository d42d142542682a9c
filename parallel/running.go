package parallel

import (
	"context"
	"slices"
	"time"

	"pgapply/internal/invariant"
)

// cancelAgain is how long a canceled call may take to return before it is canceled
// once more.
const cancelAgain = time.Second

// Running is a transaction that is still running on the publisher, or waits for
// its turn to commit on the target.
//
// A transaction goes through stages:
//
//	queued ---> applying ---> finishing ---> done
//	   |            |             |           ^
//	   |            v             |           | a Cancel came too late
//	   |         leaving <--------'           |
//	   |            | '-----------------------'
//	   v            v
//	   '--> left <--'
//
// Once it has left, no worker takes it again.
type Running struct {
	pool  *Pool
	label uint32
	begin func(worker int) Task
	over  chan struct{} // closed when it is done or has left

	// The mutex of the pool guards what follows.

	stage   stage
	news    bool             // something has arrived or committed since Advance was last called
	worker  *worker          // who has it or had it; nil while none has
	task    Task             // nil until it has begun
	end     func(Task) error // set before it is finishing
	calling bool             // Advance or end is running
	cancel  *cancellation    // of that call, if any
}

// cancellation is the calls to Cancel that one call of the worker receives.
type cancellation struct {
	returned chan struct{} // closed by the worker: its call has returned
	over     chan struct{} // closed by the canceling goroutine: Cancel is not called any more
}

// stage is where a transaction stands.
type stage uint8

const (
	queued    stage = iota // no worker has had it
	applying               // a worker applies it out of turn, or waits for more of it
	finishing              // it is its turn: its worker runs end, after an Advance that still runs
	leaving                // its worker has to roll it back, after a call that still runs
	left                   // nothing of it is on the target, and no worker has it
	done                   // end has succeeded
)

// Arrived tells that more of the transaction has arrived, or that a part of it was
// rolled back.
func (r *Running) Arrived() {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.tell()
}

// Drop tells that the publisher has rolled the transaction back, or that no worker may
// apply it. It is rolled back here too. Finish need not be called; if it is, it waits
// for that and returns false.
func (r *Running) Drop() {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	invariant.Check(r.stage != finishing && r.stage != done, "transaction %d is dropped in its turn", r.label)
	switch r.stage {
	case queued:
		p.unqueue(r)
	case applying:
		r.leave()
	}
}

// Finish is called when it is the transaction's turn to commit, for one transaction
// at a time. It waits for its worker to run end on the task, once Advance does not
// run: end applies the rest, which may be all, and commits. An error of end must
// mean that nothing is committed, or else Abandon has to fail.
//
// It returns true when end has succeeded, whatever else has happened meanwhile. It
// returns false without an error when the caller has to apply the transaction from
// the start: no worker had it, or its worker had left it to the caller, or end
// failed. Other errors are [Pool.Err] and, when ctx ends, its cause: the worker is
// canceled then. In any case no worker has to do with the transaction any more, and
// what was not committed is rolled back, unless the pool has failed.
func (r *Running) Finish(ctx context.Context, end func(Task) error) (bool, error) {
	p := r.pool
	p.mu.Lock()
	switch r.stage {
	case queued:
		p.unqueue(r)
	case applying:
		invariant.Check(!slices.ContainsFunc(p.mu.workers, (*worker).isFinishing), "transaction %d has its turn beside another", r.label)
		r.end = end
		r.become(finishing)
		r.worker.wake.Signal()
	}
	p.mu.Unlock()

	select {
	case <-r.over:
	case <-ctx.Done():
		p.mu.Lock()
		if r.stage == finishing {
			r.leave()
		}
		p.mu.Unlock()
		<-r.over
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.stage == done:
		return true, nil
	case p.mu.stopped != nil:
		return false, p.mu.stopped
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	}
	return false, nil
}

// The functions below up to setCalling expect that the caller holds the mutex.

// unqueue takes the transaction from the queue, for good.
func (p *Pool) unqueue(r *Running) {
	i := slices.Index(p.mu.queue, r)
	invariant.Check(i >= 0, "transaction %d waits for a worker outside of the queue", r.label)
	p.mu.queue = slices.Delete(p.mu.queue, i, i+1)
	r.settle(left)
}

// isFinishing tells whether the worker's transaction has its turn.
func (w *worker) isFinishing() bool { return w.running != nil && w.running.stage == finishing }

// tell makes for another Advance.
func (r *Running) tell() {
	r.news = true
	if r.worker != nil {
		r.worker.wake.Signal()
	}
}

// leave makes the worker roll the transaction back, and frees it from the call that
// it is in.
func (r *Running) leave() {
	r.become(leaving)
	r.worker.wake.Signal()
	if r.calling {
		c := &cancellation{returned: make(chan struct{}), over: make(chan struct{})}
		r.cancel = c
		task := r.task
		r.pool.goroutines.Go(func() { c.run(task) })
	}
}

// settle ends the transaction in its last stage.
func (r *Running) settle(over stage) {
	r.become(over)
	close(r.over)
}

// become is the only one that changes the stage.
func (r *Running) become(next stage) {
	invariant.Check(r.stage.leadsTo(next), "transaction %d goes from stage %d to %d", r.label, r.stage, next)
	r.stage = next
	if r.worker != nil {
		r.worker.since = time.Now()
	}
}

// leadsTo is the diagram of Running.
func (s stage) leadsTo(next stage) bool {
	switch next {
	case applying:
		return s == queued
	case finishing:
		return s == applying
	case leaving:
		return s == applying || s == finishing
	case left:
		return s == queued || s == leaving
	case done:
		return s == finishing || s == leaving
	}
	return false
}

// setCalling notes that Advance or end begins or has returned.
func (r *Running) setCalling(calling bool) {
	invariant.Check(r.calling != calling, "transaction %d is called twice at a time", r.label)
	r.calling = calling
	if r.stage == applying {
		r.worker.since = time.Now()
	}
}

// began notes the task that begin has returned.
func (r *Running) began(task Task) {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.task = task
}

// next waits until the worker has something to do, and tells by the stage what: to
// advance while that many transactions are committed, to end, or to abandon.
func (r *Running) next() (stage, uint64) {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for r.stage == applying && !r.news {
		r.worker.wake.Wait()
	}
	r.news = false
	if r.stage != leaving {
		r.setCalling(true)
	}
	return r.stage, p.mu.committed
}

// returned ends the call that next asked for, and tells whether it has succeeded.
// After it, no Cancel is on its way.
func (r *Running) returned(err error) bool {
	p := r.pool
	p.mu.Lock()
	r.setCalling(false)
	if err != nil && r.stage != leaving {
		r.leave()
	}
	c := r.cancel
	p.mu.Unlock()
	if c != nil {
		close(c.returned)
		<-c.over
	}
	return err == nil
}

// run cancels the call until it has returned.
func (c *cancellation) run(task Task) {
	defer close(c.over)
	for {
		task.Cancel()
		select {
		case <-c.returned:
			return
		case <-time.After(cancelAgain):
		}
	}
}
