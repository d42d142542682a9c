package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/internal/conninfo"
)

// A target that is gone says so, or the network does. One that keeps its connections and
// answers nothing, since it is frozen, or since something on the way has forgotten them, is
// known by nothing but that. And a statement may take long, and must not be broken off for it.
//
//	control session ── asked, no answer ──► look, over another connection ──► at work: waited for
//	(at least a heartbeat every 10 s)                   │
//	                                                    └─► neither an answer nor work, for
//	                                                        TargetTimeout: given up
//
// Only the control session is watched, since it is never asked for long work. Without it
// the others end too.

// SilentTargetError says that a target keeps its connections, and does not answer.
type SilentTargetError struct {
	// For is how long.
	For time.Duration
	// Look is what became of the last look over another connection; nil where that was
	// answered, and the session that was asked is not at work.
	Look error
}

func (e *SilentTargetError) Error() string {
	text := fmt.Sprintf("the target has not answered for %s, and keeps the connection", e.For.Round(time.Second))
	if e.Look != nil {
		return text + ": " + e.Look.Error()
	}
	return text + ": its session waits for us"
}

// Unwrap returns what became of the look.
func (e *SilentTargetError) Unwrap() error { return e.Look }

// attend gives the session up when the target has been silent for too long.
func (c *control) attend() {
	limit := c.engine.options.TargetTimeout
	ticker := time.NewTicker(limit / 9)
	defer ticker.Stop()
	socket := c.conn.PgConn().Conn()
	var worked time.Time // the last sign that the target works on what it was asked
	warned := false
	for {
		select {
		case <-ticker.C:
		case <-c.ctx.Done():
			return
		}
		asked := conninfo.UnansweredSince(socket)
		silent := !asked.IsZero() && time.Since(asked) >= limit/3
		c.engine.silent(asked, silent)
		if !silent {
			warned = false
			continue
		}
		since := asked
		if worked.After(asked) {
			since = worked
		}
		if time.Since(since) < limit/3 {
			continue
		}
		works, err := c.look(limit / 3)
		switch {
		case c.ctx.Err() != nil:
			return
		case works:
			worked, warned = time.Now(), false
			c.engine.log.Debug("the target has not answered, and is at work", zap.Duration("for", time.Since(asked)))
		case !warned: // one look is not enough: we may have been frozen ourselves, with the answer unread
			warned = true
			c.engine.log.Warn("the target does not answer", zap.Duration("for", time.Since(asked)), zap.Error(err))
		case time.Since(since) >= limit && asked.Equal(conninfo.UnansweredSince(socket)):
			c.cancel(&Error{
				Class: Target, Retryable: true, Err: &SilentTargetError{For: time.Since(asked), Look: err},
				Hint: "see whether the target's machine or its processes are frozen, and whether a firewall, NAT or balancer on the way drops connections without a word",
			})
			_ = socket.Close() // whoever waits for an answer need not
			return
		}
	}
}

// look tells whether the target works on what the session was asked.
func (c *control) look(limit time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	options := &c.engine.options
	return state.AtWork(ctx, options.Target, options.TargetPassfile, options.Name, c.conn.PgConn().PID())
}

// silent puts into the status, or takes out of it, that the target does not answer.
func (e *Engine) silent(since time.Time, silent bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.status.TargetSilentSince = nil
	if silent {
		e.mu.status.TargetSilentSince = &since
	}
}

// abandonSilent closes the sessions that apply, so that nobody waits for their answers any
// more, once the target is given up since it is silent. The returned function ends the watch.
func (a *attempt) abandonSilent(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() {
		if _, silent := errors.AsType[*SilentTargetError](context.Cause(ctx)); !silent {
			return
		}
		a.session.Close()
		for _, worker := range a.workers {
			worker.Close()
		}
	})
}
