package parallel

import "time"

// State is what a worker is at, in words for people.
type State string

const (
	Idle        State = "idle"         // it has no transaction
	Applying    State = "applying"     // Advance runs
	Waiting     State = "waiting"      // for more to arrive, for earlier commits, or for its turn: the task may know
	Finishing   State = "finishing"    // it is its transaction's turn
	RollingBack State = "rolling back" // it leaves its transaction to the head, or the publisher has rolled it back
)

// Status is one worker at one moment.
type Status struct {
	Worker int
	State  State
	Since  time.Time // when the state began; of a waiting worker, when it last looked for something to do

	// What follows is for a worker that is not idle.

	Label uint32 // as given to Start
	// Task is nil until it has begun. The pool goes on using it: ask it only what it
	// answers to any goroutine.
	Task Task
}

// Workers tells what the workers are at, in the order of their numbers.
func (p *Pool) Workers() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Status, 0, len(p.mu.workers))
	for _, w := range p.mu.workers {
		status := Status{Worker: w.number, State: w.state(), Since: w.since}
		if w.running != nil {
			status.Label, status.Task = w.running.label, w.running.task
		}
		all = append(all, status)
	}
	return all
}

// state names what the worker is at. The caller holds the mutex of the pool.
func (w *worker) state() State {
	switch {
	case w.running == nil:
		return Idle
	case w.running.stage == finishing:
		return Finishing
	case w.running.stage == leaving:
		return RollingBack
	case w.running.calling:
		return Applying
	}
	return Waiting
}
