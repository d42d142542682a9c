package integration

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// fieldWatch asks the target the same again and again, beside the script.
type fieldWatch struct {
	query   string
	allowed []string
	stop    context.CancelFunc
	done    chan struct{} // closed when the fields below are final
	looks   int
	fault   string
}

// watch begins WATCH(query => a or b).
func (c *fieldCase) watch(argument string) {
	at := strings.LastIndex(argument, "=>")
	if at < 0 {
		c.fail("WATCH(query => a or b), not (%s)", argument)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	w := &fieldWatch{
		query: strings.TrimSpace(argument[:at]), allowed: fieldList(argument[at+len("=>"):], " or "),
		stop: cancel, done: make(chan struct{}),
	}
	c.watches = append(c.watches, w)
	own := &fieldEnd{name: c.tgt.name, uri: c.tgt.uri}
	go func() {
		defer close(w.done)
		defer own.forget()
		w.run(ctx, own)
	}()
	c.t.Cleanup(func() { cancel(); <-w.done })
}

// run looks until it is stopped or sees what must not be.
func (w *fieldWatch) run(ctx context.Context, target *fieldEnd) {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for ctx.Err() == nil {
		have, err := target.ask(ctx, w.query)
		refusal, answered := errors.AsType[*pgconn.PgError](err)
		switch {
		case err == nil && slices.Contains(w.allowed, have):
			w.looks++
		case err == nil:
			w.fault = "gives " + have
			return
		case answered && refusal.Severity == "ERROR":
			w.fault = "fails: " + err.Error()
			return
		}
		// A server that is away, as while it restarts, shows nothing.
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

// endWatches ends all of them, and the case if one of them saw what must not be.
func (c *fieldCase) endWatches() {
	for _, w := range c.watches {
		w.stop()
		<-w.done
		if w.fault != "" {
			c.fail("WATCH(%s) %s, and may give only %q", w.query, w.fault, w.allowed)
		}
		if w.looks == 0 {
			c.fail("WATCH(%s) has never got an answer", w.query)
		}
	}
	c.watches = nil
}
