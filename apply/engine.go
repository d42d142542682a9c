// Package apply is the engine: it wires publisher, state and target into a running
// subscription, and keeps it running.
//
//	attempt: control session ─ publisher ─ state and lock ─ origin ─ slot ─ stream
//	   ▲                                                                      │
//	   └────────────── pause ◄── classify what went wrong ◄───────────────────┘
//
// Every attempt starts from what is recorded on both ends, so an attempt that
// ends anywhere, also by kill -9, is followed by one that goes on where the target
// stands. The stages themselves are below: apply/stream, apply/target, origin.
package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/apply/stream"
	"pgapply/apply/tablesync"
	"pgapply/apply/target"
	"pgapply/conflict"
	"pgapply/internal/lsn"
)

// Engine runs one subscription.
type Engine struct {
	options Options
	log     *zap.Logger
	backoff backoff
	// poll is how often the state is read for what a person wants, in case nobody
	// has notified us.
	poll time.Duration
	// moved has something when the engine has come to another phase, which the runner's row
	// is to show at once.
	moved chan struct{}
	// streamed is set once a stream has run: from then on only a lost slot ends
	// the engine, since whatever else is wrong was right before.
	streamed bool
	// followed is the publisher of the last stream.
	followed state.Source
	// displaced: we have taken over from a runner that gave no sign of life, and whose
	// sessions may live on.
	displaced bool
	// calm: streaming is off for a while.
	calm calm
	// control is nil while there is no session.
	control *control
	// met are the tables that the stream has met without knowing them, and for which it
	// was started over. They belong to the sessions that apply, in turn.
	met sync.Map
	// whole are the names of transactions that were prepared on the target, while tables
	// were being copied, without a change of such a table being left out.
	whole sync.Map
	// stuck is where a transaction finishes that could not be applied, 0 for none.
	stuck lsn.LSN
	// undone is where a prepared transaction finishes that the publisher has rolled back and
	// whose changes cannot be applied, 0 for none.
	undone lsn.LSN
	// records and pulse are for who watches: see Records and Pulse.
	records atomic.Pointer[Records]
	pulse   atomic.Int64

	mu struct {
		sync.Mutex
		status state.Status
		stream *stream.Stream
		// base holds the counters of the streams before this one.
		base stream.Progress
		// copy is nil while no tables are copied.
		copy *tablesync.Progress
		// appliedBefore is how many transactions were applied before the last error.
		appliedBefore int64
	}
}

// New returns an engine for options, or an Error of class Configuration.
func New(options Options) (*Engine, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	if options.Log == nil {
		options.Log = zap.NewNop()
	}
	e := &Engine{
		options: options, log: options.Log,
		backoff: backoff{first: firstPause, longest: longestPause}, poll: pollPause,
		moved: make(chan struct{}, 1),
	}
	e.mu.status = state.Status{
		Subscription: options.Name,
		Phase:        state.Starting,
		Since:        time.Now(),
		MemoryLimit:  options.MemoryLimit,
		SpoolLimit:   options.SpoolLimit,
	}
	e.turned()
	return e, nil
}

// Run replicates until ctx ends or the end position is reached, both of which give
// nil, or an error that a person has to look at: an *Error.
func (e *Engine) Run(ctx context.Context) error {
	defer e.phase(state.Stopped, "")
	if e.options.SpoolDir == "" {
		e.options.SpoolDir = os.TempDir()
	}
	for {
		started := time.Now()
		err := e.attempt(ctx)
		if err == nil || ctx.Err() != nil {
			e.leave(nil)
			return nil
		}
		if errors.Is(err, errCalmOver) {
			e.log.Info("what filled the spool is applied: the stream goes on as before")
			e.calm = calm{}
		}
		if errors.Is(err, errNews) || errors.Is(err, errUndone) || errors.Is(err, errWaited) || errors.Is(err, errCalmOver) || e.calmDown(err) {
			e.backoff.reset()
			continue
		}
		trouble := classify(err)
		e.recordConflict(ctx, trouble)
		e.failed(trouble)
		if failed, ok := errors.AsType[*target.TransactionError](trouble); ok && !trouble.Retryable {
			e.stuck = failed.EndLSN
		}
		if !e.retries(trouble) {
			e.leave(trouble)
			return trouble
		}
		if e.streamed && time.Since(started) > healthyAfter {
			e.backoff.reset()
		}
		pause := e.backoff.next()
		e.log.Warn(trouble.Error(), zap.String("hint", trouble.Hint), zap.Duration("retry_in", pause))
		e.phase(state.Retrying, "")
		e.pause(ctx, trouble)
		if !e.rest(ctx, pause) {
			e.leave(nil)
			return nil
		}
	}
}

// rest waits before the next try, and reports false when ctx ended first. A person
// who has told the subscription something since the last one began, or has just
// written into its row, does not want to wait.
func (e *Engine) rest(ctx context.Context, pause time.Duration) bool {
	var news chan struct{}
	if e.control != nil {
		news = e.control.news
	}
	until := time.Now().Add(pause)
	before := e.touched(ctx)
	for left := pause; left > 0; left = time.Until(until) {
		e.turned()
		woken, slept := doze(ctx, min(left, e.poll), news)
		if !slept {
			return false
		}
		if woken || !e.touched(ctx).Equal(before) {
			break
		}
	}
	return true
}

// touched is when the subscription's row was last written, as far as can be told.
func (e *Engine) touched(ctx context.Context) time.Time {
	if e.control == nil || !e.control.locked {
		return time.Time{}
	}
	subscription, err := e.control.store.Subscription(ctx)
	if err != nil || subscription == nil {
		return time.Time{}
	}
	return subscription.UpdatedAt
}

// attempt lives once, under a control session that is kept while it is good.
func (e *Engine) attempt(ctx context.Context) error {
	if e.control != nil && !e.control.alive() {
		e.control.close()
		e.control = nil
	}
	e.phase(state.Starting, "")
	if e.control == nil {
		var err error
		if e.control, err = e.connectControl(ctx); err != nil {
			return err
		}
	}
	c := e.control
	a := &attempt{engine: e, options: &e.options, log: e.log, control: c, met: make(chan struct{}, 1)}
	defer a.close()
	err := a.run(c.ctx)
	if c.ctx.Err() != nil && ctx.Err() == nil {
		// The session was lost, and whatever else went wrong followed from that.
		return context.Cause(c.ctx)
	}
	return err
}

// leave ends the control session, if there is one, and records why.
func (e *Engine) leave(trouble *Error) {
	if e.control != nil {
		e.control.leave(trouble)
		e.control = nil
	}
}

// recordConflict keeps what a failed transaction met on the target, and adds to the
// hint where to look it up. The session that applied has rolled back everything of its
// own.
func (e *Engine) recordConflict(ctx context.Context, trouble *Error) {
	failed, ok := errors.AsType[*target.TransactionError](trouble)
	if !ok || failed.Conflict == nil || e.control == nil || !e.control.locked {
		return
	}
	met := failed.Conflict
	id, fresh, err := e.control.store.RecordConflict(ctx, *met)
	if err != nil {
		e.log.Warn("record the conflict", zap.Error(err))
	}
	if id != 0 {
		trouble.Hint = fmt.Sprintf("see `pgapply conflicts show %d`, then %s", id, trouble.Hint)
	}
	if !fresh {
		return // the transaction was tried again
	}
	e.log.Warn("conflict stops the subscription", zap.String("conflict", string(met.Type)), zap.Int64("id", id),
		zap.String("schema", met.Schema), zap.String("table", met.Table), zap.String("policy", string(met.Policy)),
		zap.Uint32("remote_xid", met.RemoteXID), zap.Stringer("finished_at", met.FinishLSN), zap.Time("remote_commit_ts", met.RemoteTime))
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.base.Conflicts == nil {
		e.mu.base.Conflicts = make(map[conflict.Type]int64)
	}
	e.mu.base.Conflicts[met.Type]++
}

// pause disables the subscription when an apply error is to wait for a person.
func (e *Engine) pause(ctx context.Context, trouble *Error) {
	if trouble.Class != Conflict || trouble.Retryable || e.options.OnError != "pause" || e.control == nil || !e.control.locked {
		return
	}
	_, err := e.control.store.Pause(ctx, "an apply error")
	if err == nil {
		err = e.control.store.SetError(ctx, trouble.Error(), trouble.Hint)
	}
	if err != nil {
		e.log.Warn("pause the subscription: it is tried again instead", zap.Error(err))
	}
}

// retries decides whether time, or a person while we go on trying, can help.
func (e *Engine) retries(trouble *Error) bool {
	switch {
	case trouble.Class == SlotLost, trouble.Final:
		return false
	case trouble.Retryable:
		return true
	case trouble.Class == Conflict:
		return e.options.OnError != "stop"
	}
	return e.streamed
}

// failed records the error in the status.
func (e *Engine) failed(trouble *Error) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	status := &e.mu.status
	status.LastError, status.LastErrorHint, status.LastErrorAt = trouble.Error(), trouble.Hint, &now
	status.Retries++
	e.mu.appliedBefore = e.mu.base.Transactions
}

// phase records what the engine is doing.
func (e *Engine) phase(phase state.Phase, waitingFor string) {
	e.turned()
	e.mu.Lock()
	defer e.mu.Unlock()
	status := &e.mu.status
	if status.Phase != phase {
		status.Phase, status.Since = phase, time.Now()
		select {
		case e.moved <- struct{}{}:
		default:
		}
	}
	status.WaitingFor = waitingFor
}

// waitsFor says what is waited for beside what the engine is doing.
func (e *Engine) waitsFor(text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.status.WaitingFor = text
}

// Status returns a snapshot. It may be called from any goroutine.
func (e *Engine) Status() state.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	progress := e.mu.base
	if e.mu.stream != nil {
		progress = sum(e.mu.base, e.mu.stream.Progress())
		// A stream that runs is not yet a cure: the same transaction may fail again.
		settled := progress.Received <= progress.Applied && time.Since(e.mu.status.Since) >= healthyAfter
		if progress.Transactions > e.mu.appliedBefore || settled {
			e.mu.status.LastError, e.mu.status.LastErrorHint, e.mu.status.LastErrorAt = "", "", nil
		}
	}
	status := e.mu.status
	status.UpdatedAt = time.Now()
	status.Received = state.Position(progress.Received)
	status.Applied = state.Position(progress.Applied)
	status.Flushed = state.Position(progress.Flushed)
	status.Acknowledged = state.Position(progress.Acknowledged)
	if progress.LastCommitTime != 0 {
		committed := progress.LastCommitTime.Time()
		status.LastCommitTime = &committed
	}
	if progress.OldestCommitTime != 0 {
		committed := progress.OldestCommitTime.Time()
		status.OldestCommitTime = &committed
	}
	status.Transactions, status.Groups, status.Replays = progress.Transactions, progress.Groups, progress.Replays
	status.ParallelGroups, status.ParallelReplays = progress.ParallelGroups, progress.ParallelReplays
	status.Rows = state.Rows{
		Inserted: progress.Inserts, Updated: progress.Updates,
		Deleted: progress.Deletes, Truncated: progress.Truncates,
	}
	status.Misses = state.Misses{Update: progress.Conflicts[conflict.UpdateMissing], Delete: progress.Conflicts[conflict.DeleteMissing]}
	status.Conflicts, status.Messages = progress.Conflicts, progress.Messages
	status.MemoryBytes, status.SpoolBytes = progress.Assembler.MemoryBytes, progress.Assembler.SpooledBytes
	status.OpenStreams = progress.Assembler.OpenStreams
	for _, w := range progress.Workers {
		status.Workers = append(status.Workers, state.Worker{
			Number: w.Number, PID: w.PID, State: w.State, Since: w.Since, XID: w.XID, Changes: w.Changes,
			Transactions: w.Transactions, WaitingFor: w.WaitsFor,
		})
	}
	for _, t := range progress.RowByRow {
		status.RowByRow = append(status.RowByRow, state.RowByRow{Table: t.Schema + "." + t.Table, Reason: t.Reason})
	}
	status.Copy = CopyStatus(e.mu.copy)
	status.SetLag(status.UpdatedAt)
	return status
}

// sum adds the counters of earlier streams to those of the running one, whose
// positions count.
func sum(base, running stream.Progress) stream.Progress {
	running.Transactions += base.Transactions
	running.Groups += base.Groups
	running.Replays += base.Replays
	running.ParallelGroups += base.ParallelGroups
	running.ParallelReplays += base.ParallelReplays
	running.Inserts += base.Inserts
	running.Updates += base.Updates
	running.Deletes += base.Deletes
	running.Truncates += base.Truncates
	running.NotMember += base.NotMember
	running.Messages += base.Messages
	for t, count := range base.Conflicts {
		if running.Conflicts == nil {
			running.Conflicts = make(map[conflict.Type]int64)
		}
		running.Conflicts[t] += count
	}
	if running.LastCommitTime == 0 {
		running.LastCommitTime = base.LastCommitTime
	}
	return running
}

// running puts a stream into the status, or with nil takes it out.
func (e *Engine) running(s *stream.Stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.stream != nil {
		e.mu.base = sum(e.mu.base, e.mu.stream.Progress())
		e.mu.base.Assembler.MemoryBytes, e.mu.base.Assembler.SpooledBytes, e.mu.base.Assembler.OpenStreams = 0, 0, 0
	}
	e.mu.stream = s
}
