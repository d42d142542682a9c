package apply

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/stream"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
	"pgapply/internal/spool"
)

// calm is how a full spool is cured, be it at its limit or its disk. It is full of
// transactions that are in progress, and reading on, up to the commits that would empty
// it, is what it has no room for. So the stream starts over with streaming off: the
// publisher keeps each transaction until it commits. And none is received while one
// before it that is spooled is applied, so that each has the spool to itself. That lasts
// until those that were in progress then have ended.
type calm struct {
	on bool
	// until is the publisher's position when it began; 0 until a connection tells.
	until lsn.LSN
}

// errCalmOver ends a stream that need not be calm any more.
var errCalmOver = errors.New("what filled the spool is applied")

// calmDown tells whether err may be cured by receiving less at a time, and has the next attempt do so.
func (e *Engine) calmDown(err error) bool {
	_, limit := errors.AsType[*spool.LimitError](err)
	_, disk := errors.AsType[*spool.DiskFullError](err)
	switch {
	case !limit && !disk, e.calm.on:
		return false
	case ClassOf(err) == Refused: // nothing was streamed: not even the directory could be made
		return false
	}
	e.log.Warn("the spool is full: what is in it is received again, each transaction when it is committed (streaming off) and those before it are applied",
		zap.Error(err))
	e.calm = calm{on: true}
	return true
}

// streaming is the mode of this attempt.
func (a *attempt) streaming() string {
	if a.engine.calm.on {
		return "off"
	}
	return a.options.streaming()
}

// budget is that of this attempt's stream.
func (a *attempt) budget() *txn.Budget {
	if a.engine.calm.on {
		return txn.NewFrugalBudget(a.options.MemoryLimit)
	}
	return txn.NewBudget(a.options.MemoryLimit)
}

// sessions is how many sessions apply in this attempt.
func (a *attempt) sessions() int {
	if a.engine.calm.on || a.control.terms.Fires {
		return 1
	}
	return a.options.Sessions()
}

// calmPause is how often it is looked whether the calm is over.
const calmPause = 2 * time.Second

// watchCalm returns errCalmOver once what was in progress when the spool was full has
// ended and is applied; nil when ctx ends.
func (a *attempt) watchCalm(ctx context.Context, s *stream.Stream) error {
	c := &a.engine.calm
	if !c.on {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(calmPause)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if s.Progress().Applied >= c.until && a.allEnded(ctx, c.until) {
			return errCalmOver
		}
	}
}

// allEnded asks the publisher whether it needs nothing from before the position any
// more: the slot moves on when the oldest transaction in progress has ended, and with
// the publisher's next note of which are running. A publisher that does not answer is
// asked again.
func (a *attempt) allEnded(ctx context.Context, position lsn.LSN) bool {
	conn, err := a.dial(ctx, a.options.Name+":look")
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	slot, err := conn.Slot(ctx, a.options.SlotName())
	return err == nil && slot != nil && slot.Restart >= position
}
