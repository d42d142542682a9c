package apply

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"pgapply/apply/state"
)

// control is the session on the target that outlives attempts: it holds the lock
// that makes this process the subscription's only runner, and writes what the
// engine is doing, also while an attempt waits or the engine pauses between two.
type control struct {
	engine *Engine
	conn   *pgx.Conn
	target state.Target
	// store is nil until the state may be touched.
	store  *state.Store
	locked bool
	// terms are nil until they were settled.
	terms *Terms
	// news holds a token when somebody has told the subscription something since the
	// last one was taken. Whoever takes it reads the state anew.
	news chan struct{}

	// ctx ends when the session is lost, and with it the lock: whatever runs
	// under the lock runs under ctx.
	ctx    context.Context //nolint:containedctx // it is the life of the session
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup
}

// connectControl opens the session.
func (e *Engine) connectControl(ctx context.Context) (*control, error) {
	conn, err := state.ConnectControl(ctx, e.options.Target, e.options.TargetPassfile, e.options.Name)
	if err != nil {
		return nil, TargetError(err)
	}
	c := &control{engine: e, conn: conn, news: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.tasks.Go(c.attend)
	if c.target, err = state.ReadTarget(c.ctx, conn); err != nil {
		lost := context.Cause(c.ctx)
		c.close()
		return nil, TargetError(cmp.Or(lost, err))
	}
	return c, nil
}

// open creates or migrates the state, of which found is what there is.
func (c *control) open(found *state.Found) error {
	if c.store != nil {
		return nil
	}
	store, err := found.Open(c.ctx)
	if err != nil {
		return TargetError(err)
	}
	c.store = store
	return nil
}

// reign makes this process the runner, once the lock is taken.
func (c *control) reign() error {
	c.locked = true
	host, _ := os.Hostname() // for people to read; empty will do
	runner := state.Runner{PID: os.Getpid(), Host: host, Version: c.engine.options.Version}
	if err := c.store.StartRunner(c.ctx, runner); err != nil {
		return TargetError(err)
	}
	c.tasks.Go(c.beat)
	c.tasks.Go(c.listen)
	if c.engine.options.ReadRecords {
		c.tasks.Go(c.readRecords)
	}
	return nil
}

// listen passes on that there is news, until the session is closed or lost.
func (c *control) listen() {
	err := c.store.Notified(c.ctx, func() {
		select {
		case c.news <- struct{}{}:
		default:
		}
	})
	if err != nil {
		c.cancel(TargetError(err))
	}
}

// prunePause is how often old conflicts are deleted.
const prunePause = time.Hour

// sweepPause is how often recorded positions that are passed are deleted.
const sweepPause = 10 * time.Second

// beat writes the status while it changes, at most once a second, unless the engine has
// come to another phase, for which people wait, and a heartbeat otherwise, until the session is closed or lost. Little changes in the middle of a
// transaction: rows count when they are committed, and reading pauses at the memory
// limit. And it takes turns with what else the session does, such as recording an
// acknowledgement, which waits for the target's disk.
func (c *control) beat() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var written state.Status
	var writtenAt, prunedAt, sweptAt time.Time
	var swept int64
	for {
		c.engine.turned()
		status := c.engine.Status()
		if status.Transactions != swept && time.Since(sweptAt) >= sweepPause {
			c.note(c.store.PruneProgress(c.ctx))
			swept, sweptAt = status.Transactions, time.Now()
		}
		if changed(written, status) || time.Since(writtenAt) >= state.HeartbeatInterval {
			if err := c.store.WriteStatus(c.ctx, &status); err != nil {
				c.cancel(TargetError(err))
				return
			}
			written, writtenAt = status, time.Now()
		}
		select {
		case <-ticker.C:
		case <-c.engine.moved:
		case <-c.ctx.Done():
			return
		}
		if time.Since(prunedAt) >= prunePause {
			deleted, err := c.store.Prune(c.ctx, c.engine.options.ConflictRetention)
			c.note(err)
			if deleted < state.PruneLimit {
				prunedAt = time.Now()
			}
		}
	}
}

// changed compares what tells more than the time of day.
func changed(before, after state.Status) bool {
	before.UpdatedAt, after.UpdatedAt = time.Time{}, time.Time{}
	before.LagSeconds, after.LagSeconds = 0, 0
	first, err := json.Marshal(before)
	if err != nil {
		return true
	}
	second, err := json.Marshal(after)
	return err != nil || string(first) != string(second)
}

// alive proves that session and lock still are.
func (c *control) alive() bool {
	if c.ctx.Err() != nil {
		return false
	}
	if !c.locked {
		return !c.conn.IsClosed() // nobody else uses it yet
	}
	status := c.engine.Status()
	return c.store.WriteStatus(c.ctx, &status) == nil
}

// closeTime bounds what is written at the end.
const closeTime = time.Second

// leave records how the engine ends, and that it does; trouble is nil for an
// orderly end.
func (c *control) leave(trouble *Error) {
	c.cancel(context.Canceled)
	c.tasks.Wait()
	if c.locked {
		// Not a context, after whose end pgx would wait for a silent server once more.
		_ = c.conn.PgConn().Conn().SetDeadline(time.Now().Add(closeTime))
		ctx := context.Background()
		if trouble != nil {
			c.note(c.store.SetError(ctx, trouble.Error(), trouble.Hint))
		}
		c.note(c.store.EndRunner(ctx))
	}
	c.close()
}

func (c *control) note(err error) {
	if err != nil {
		c.engine.log.Debug("write the state", zap.Error(err))
	}
}

// close ends the session and waits for its goroutines.
func (c *control) close() {
	c.cancel(context.Canceled)
	c.tasks.Wait()
	c.engine.silent(time.Time{}, false)
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = c.conn.Close(ctx) // what it held ends with it either way
}
