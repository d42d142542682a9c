package parallel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestSchedules plays what a publisher may do, with random interleavings, failures
// and stalls, against a small database, and compares with the transactions applied
// one after the other in the order of their commits. Time is virtual.
func TestSchedules(t *testing.T) {
	for _, workers := range []int{0, 1, 2, 3, 8} {
		t.Run(fmt.Sprint(workers, " workers"), rapid.MakeCheck(func(rt *rapid.T) {
			p := plan{
				workers: workers,
				steps:   rapid.SliceOfN(rapid.Custom(drawStep), 80, 160).Draw(rt, "steps"),
				end:     rapid.SampledFrom([]string{"settle", "stop the head", "close"}).Draw(rt, "end"),
			}
			var failures []string
			synctest.Test(t, func(*testing.T) { failures = p.play() })
			for _, failure := range failures {
				rt.Error(failure)
			}
		}))
	}
}

type plan struct {
	workers int
	steps   []step
	end     string
}

// step is one thing that happens. Which is its meaning, and for which transaction,
// depends on what is there when it happens.
type step struct {
	what    string
	pick    int
	changes []change
	abandon bool          // of a transaction that begins: its roll back fails
	pause   time.Duration // until the next step
}

// change is one of a row, and takes a lock that the publisher does not know.
type change struct {
	key, hidden int
	value       int
	fails       bool          // on a worker
	latency     time.Duration // of the statement
}

func (c change) of(old int) int { return old*31 + c.value }

func drawStep(rt *rapid.T) step {
	s := step{
		what: rapid.SampledFrom([]string{
			"cure", "begin", "begin", "begin", "block", "block", "block", "block", "block", "block", "block", "block",
			"commit", "commit", "commit", "roll back", "ordinary", "yield",
		}).Draw(rt, "what"),
		pick:  rapid.IntRange(0, 9).Draw(rt, "pick"),
		pause: drawDuration(rt, "pause", 2),
	}
	switch s.what {
	case "begin":
		s.abandon = rapid.IntRange(0, 99).Draw(rt, "abandon fails") == 57
	case "block", "ordinary":
		s.changes = rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) change {
			return change{
				key:    rapid.IntRange(0, 5).Draw(rt, "key"),
				hidden: rapid.IntRange(100, 103).Draw(rt, "hidden"),
				value:  rapid.IntRange(1, 30).Draw(rt, "value"),
				fails:  rapid.IntRange(0, 29).Draw(rt, "fails") == 17,

				latency: drawDuration(rt, "latency", 5),
			}
		}), 1, 3).Draw(rt, "changes")
	}
	return s
}

func drawDuration(rt *rapid.T, label string, most int) time.Duration {
	return time.Duration(rapid.IntRange(0, most).Draw(rt, label)) * time.Millisecond
}

// transaction is one of the publisher.
type transaction struct {
	id       int
	running  *Running // nil of an ordinary one
	keys     map[int]bool
	dropped  atomic.Bool
	abandon  bool
	sequence uint64

	mu     sync.Mutex
	blocks []block
}

type block struct {
	after   uint64 // how many had committed when it arrived
	changes []change
}

// block gives the nth if there is one.
func (x *transaction) block(n int) (block, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n >= len(x.blocks) {
		return block{}, false
	}
	return x.blocks[n], true
}

// model is one run of a plan.
type model struct {
	pool     *Pool
	db       *database
	sessions []*session // 0 is the head's

	// of the publisher, and so of the goroutine that plays the plan
	open    []*transaction
	history []*transaction // committed
	events  chan *transaction
	began   int

	committed atomic.Uint64 // on the target
	closing   atomic.Bool
	lost      atomic.Bool // an Abandon has failed before
	headGone  chan struct{}

	mu       sync.Mutex
	applied  []int // ids, in the order of their commits on the target
	tasks    []*modelTask
	failures []string
}

// play returns what was wrong.
func (p plan) play() []string {
	ctx, shutDown := context.WithCancelCause(context.Background())
	m := &model{pool: New(p.workers), db: newDatabase(), events: make(chan *transaction, len(p.steps)), headGone: make(chan struct{})}
	for i := range p.workers + 1 {
		m.sessions = append(m.sessions, m.db.session(i))
	}
	stopped := errors.New("shut down")
	go func() {
		defer close(m.headGone)
		if err := m.head(ctx); err != nil && !errors.Is(err, stopped) && !errors.Is(err, errLost) && !errors.Is(err, ErrClosed) {
			m.fail("the head ends with %v", err)
		}
	}()
	for _, s := range p.steps {
		m.step(s)
		elapse(s.pause)
	}
	if p.end == "settle" {
		m.settle()
	}
	close(m.events)
	if p.end == "stop the head" {
		shutDown(stopped)
		synctest.Wait()
	}
	m.closing.Store(true)
	m.pool.Close()
	<-m.headGone
	shutDown(nil)
	m.verify(p.end != "settle")
	return m.failures
}

func (m *model) fail(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures = append(m.failures, fmt.Sprintf(format, args...))
}

// step is the reader's side.
func (m *model) step(s step) {
	var x *transaction
	at := 0
	if len(m.open) > 0 {
		at = s.pick % len(m.open)
		x = m.open[at]
	}
	switch s.what {
	case "begin":
		m.began++
		begun := &transaction{id: m.began, keys: map[int]bool{}, abandon: s.abandon}
		begun.running = m.pool.Start(uint32(begun.id), func(worker int) Task { return m.begin(worker, begun) })
		m.open = append(m.open, begun)
	case "block":
		if x == nil || !m.take(x, s.changes) {
			return
		}
		x.mu.Lock()
		x.blocks = append(x.blocks, block{after: uint64(len(m.history)), changes: s.changes})
		x.mu.Unlock()
		x.running.Arrived()
	case "ordinary":
		m.began++
		o := &transaction{id: m.began, keys: map[int]bool{}, blocks: []block{{changes: s.changes}}}
		if m.take(o, s.changes) {
			m.commit(o)
		}
	case "commit", "roll back":
		if x == nil {
			return
		}
		m.open = append(m.open[:at], m.open[at+1:]...)
		if s.what == "commit" {
			m.commit(x)
		} else {
			x.running.Drop()
			x.dropped.Store(true)
		}
	case "yield":
		m.pool.Yield(s.pick)
	case "cure":
		synctest.Wait()
		m.verifyQuiet()
		m.cure()
	}
}

// take locks the rows of changes on the publisher, if they are free there.
func (m *model) take(x *transaction, changes []change) bool {
	for _, c := range changes {
		for _, other := range m.open {
			if other != x && other.keys[c.key] {
				return false
			}
		}
	}
	for _, c := range changes {
		x.keys[c.key] = true
	}
	return true
}

func (m *model) commit(x *transaction) {
	m.history = append(m.history, x)
	x.sequence = uint64(len(m.history))
	m.events <- x
}

// head commits in the order of the publisher.
func (m *model) head(ctx context.Context) error {
	for x := range m.events {
		done, err := false, error(nil)
		if x.running != nil {
			done, err = x.running.Finish(ctx, func(task Task) error { return task.(*modelTask).end() })
			m.verifyFinished(x, done)
		}
		if err != nil {
			return err
		}
		if !done {
			for _, b := range x.blocks {
				for _, c := range b.changes {
					if err := m.sessions[0].apply(c); err != nil {
						return fmt.Errorf("replay %d: %w", x.id, err)
					}
				}
			}
			m.committing(m.sessions[0], x)
		}
		if got := m.committed.Load(); got != x.sequence {
			m.fail("after %d, %d are committed instead of %d", x.id, got, x.sequence)
		}
		m.pool.Committed(x.sequence)
	}
	return nil
}

// verifyFinished looks at what Finish has left behind.
func (m *model) verifyFinished(x *transaction, done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, task := range m.tasks {
		if task.x == x && (!task.over.Load() || task.ended != done) {
			m.failures = append(m.failures, fmt.Sprintf("%d: Finish returns %v; over %v, committed %v", x.id, done, task.over.Load(), task.ended))
		}
	}
}

// committing commits on the target.
func (m *model) committing(s *session, x *transaction) {
	m.mu.Lock()
	m.applied = append(m.applied, x.id)
	m.mu.Unlock()
	s.end(true)
	m.committed.Add(1)
}

// settle lets everything run until the head has caught up or is gone, and cures
// stalls on the way.
func (m *model) settle() {
	for range 1000 {
		synctest.Wait()
		m.verifyQuiet()
		select {
		case <-m.headGone:
			return
		default:
		}
		if m.committed.Load() == uint64(len(m.history)) {
			return
		}
		m.cure()
		elapse(cancelAgain) // a Cancel may have come too early
	}
	m.fail("the head hangs: %+v", m.pool.Workers())
}

// cure makes those yield whom the head waits for.
func (m *model) cure() {
	at := m.sessions[0]
	for _, w := range m.pool.Workers() {
		if w.State == Finishing {
			at = m.sessions[w.Worker]
		}
	}
	for _, worker := range at.blockers() {
		m.pool.Yield(worker)
	}
}

// verifyQuiet looks for work that nobody does, while no goroutine can run.
func (m *model) verifyQuiet() {
	m.pool.mu.Lock()
	queue := len(m.pool.mu.queue)
	m.pool.mu.Unlock()
	for _, w := range m.pool.Workers() {
		task, _ := w.Task.(*modelTask)
		switch w.State {
		case Idle:
			if queue > 0 {
				m.fail("worker %d is idle while %d wait", w.Worker, queue)
			}
		case Waiting:
			if b, ok := task.x.block(task.at); ok && b.after <= m.committed.Load() {
				m.fail("worker %d sleeps while %d could go on", w.Worker, task.x.id)
			}
			if task.x.dropped.Load() {
				m.fail("worker %d keeps %d, which was dropped", w.Worker, task.x.id)
			}
		}
	}
}

// verify compares the end with the transactions applied one after the other.
func (m *model) verify(aborted bool) {
	failed := false
	select {
	case <-m.pool.Failed():
		failed = true
		if !errors.Is(m.pool.Err(), errLost) {
			m.fail("the pool fails with %v", m.pool.Err())
		}
	default:
	}
	if m.lost.Load() && !failed {
		m.fail("a roll back has failed, and the pool has not")
	}
	if len(m.applied) != len(m.history) && !aborted && !failed {
		m.fail("%d of %d transactions were applied", len(m.applied), len(m.history))
	}
	rows := map[int]int{}
	for i, id := range m.applied {
		if x := m.history[i]; x.id != id {
			m.fail("commit %d is of %d instead of %d", i+1, id, x.id)
		}
		for _, b := range m.history[i].blocks {
			for _, c := range b.changes {
				rows[c.key] = c.of(rows[c.key])
			}
		}
	}
	if diff := cmp.Diff(rows, m.db.rows); diff != "" {
		m.fail("rows, as they should be and as they are:\n%s", diff)
	}
	if len(m.db.locks) > 0 {
		m.fail("%d locks remain", len(m.db.locks))
	}
	for _, task := range m.tasks {
		if task.ended == (task.abandoned == 1) || task.abandoned > 1 {
			m.fail("%d: committed by its worker: %v, and abandoned %d times", task.x.id, task.ended, task.abandoned)
		}
	}
}

var errLost = errors.New("connection lost")

// modelTask applies a transaction on a worker's session.
type modelTask struct {
	m         *model
	x         *transaction
	session   *session
	at        int         // the next block
	called    atomic.Bool // by its worker
	canceling atomic.Bool
	over      atomic.Bool
	abandoned int
	ended     bool
}

func (m *model) begin(worker int, x *transaction) Task {
	task := &modelTask{m: m, x: x, session: m.sessions[worker]}
	if task.session.task != nil {
		m.fail("worker %d has %d and begins %d", worker, task.session.task.x.id, x.id)
	}
	task.session.task = task
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, earlier := range m.tasks {
		if earlier.x == x {
			m.failures = append(m.failures, fmt.Sprintf("%d is begun twice", x.id))
		}
	}
	m.tasks = append(m.tasks, task)
	return task
}

// call is around what the worker calls.
func (task *modelTask) call(what string) func() {
	if task.called.Swap(true) || task.over.Load() {
		task.m.fail("%d: %s in or after another call", task.x.id, what)
	}
	return func() { task.called.Store(false) }
}

// apply goes on with the tape as far as it may.
func (task *modelTask) apply(committed uint64) error {
	for {
		b, ok := task.x.block(task.at)
		if !ok || b.after > committed {
			return nil
		}
		for _, c := range b.changes {
			if c.fails {
				return errors.New("injected")
			}
			if err := task.session.apply(c); err != nil {
				return err
			}
		}
		task.at++
	}
}

func (task *modelTask) Advance(committed uint64) error {
	defer task.call("Advance")()
	if now := task.m.committed.Load(); committed > now {
		task.m.fail("%d: told that %d are committed, but %d are", task.x.id, committed, now)
	}
	return task.apply(committed)
}

func (task *modelTask) end() error {
	defer task.call("end")()
	if now := task.m.committed.Load(); now != task.x.sequence-1 {
		task.m.fail("%d: has its turn after %d instead of %d", task.x.id, now, task.x.sequence-1)
	}
	if err := task.apply(task.x.sequence); err != nil {
		return err
	}
	task.ended = true
	task.over.Store(true)
	task.session.task = nil
	task.m.committing(task.session, task.x)
	return nil
}

func (task *modelTask) Abandon() error {
	defer task.call("Abandon")()
	if task.canceling.Load() {
		task.m.fail("%d: Abandon while Cancel is on its way", task.x.id)
	}
	task.over.Store(true)
	task.abandoned++
	elapse(time.Millisecond)
	task.session.task = nil
	task.session.end(false)
	if task.x.abandon {
		if !task.m.closing.Load() {
			task.m.lost.Store(true)
		}
		return errLost
	}
	return nil
}

func (task *modelTask) Cancel() {
	if task.canceling.Swap(true) || task.over.Load() && !task.ended {
		task.m.fail("%d: Cancel during another or after Abandon", task.x.id)
	}
	elapse(time.Millisecond) // the way to the target
	task.session.cancel()
	task.canceling.Store(false)
}
