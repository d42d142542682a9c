package apply

import (
	"context"
	"time"

	"pgapply/apply/state"
	"pgapply/apply/target"
)

// recentConflicts is how many of the newest conflicts are kept for people to look at.
const recentConflicts = 20

// How often the records are read: soon again while tables are on their way or conflicts
// come, and seldom while nothing changes but by somebody else's hand. They may take no
// more than one part in recordsShare of the session's time.
const (
	recordsPause = 2 * time.Second
	recordsRest  = 10 * time.Second
	recordsShare = 20
)

// Records are what the state on the target says about the subscription, as its runner
// last read it. They are not changed after that.
type Records struct {
	// At is when they were read.
	At             time.Time
	Target         state.Target
	Subscription   *state.Subscription
	Tables         []state.Table
	WaitingIndexes []string
	Conflicts      state.ConflictStats
	// Recent are the newest conflicts, with the values of their rows.
	Recent   []state.RecordedConflict
	Prepared []state.Prepared
}

// ready tells whether all tables take part in the stream.
func (r *Records) ready() bool {
	for i := range r.Tables {
		if r.Tables[i].State != state.TableReady {
			return false
		}
	}
	return len(r.Tables) > 0
}

// Records returns what was read last, also when the target is gone meanwhile; nil before
// the first time, and without Options.ReadRecords. It may be called from any goroutine.
func (e *Engine) Records() *Records { return e.records.Load() }

// Pulse is when the engine last showed that its own loops turn, whatever it waits for.
// It is never far in the past unless the target, or something in here, does not answer:
// each step that waits for longer has a limit. It may be called from any goroutine.
func (e *Engine) Pulse() time.Time { return time.Unix(0, e.pulse.Load()) }

func (e *Engine) turned() { e.pulse.Store(time.Now().UnixNano()) }

// readRecords reads the records while they change, until the session is closed or lost.
// It takes turns with what else the session does.
func (c *control) readRecords() {
	ticker := time.NewTicker(recordsPause)
	defer ticker.Stop()
	var records *Records
	var began time.Time
	var took time.Duration
	var conflicts int64
	for {
		met, since := c.engine.conflictsMet(), time.Since(began)
		changing := records == nil || !records.ready() || met != conflicts
		if (changing || since >= recordsRest) && since >= recordsShare*took {
			began, conflicts = time.Now(), met
			read, err := c.readOnce()
			took = time.Since(began)
			c.note(err)
			if err == nil {
				records = read
				c.engine.records.Store(read)
			}
		}
		select {
		case <-ticker.C:
		case <-c.ctx.Done():
			return
		}
	}
}

func (c *control) readOnce() (*Records, error) {
	r := &Records{At: time.Now(), Target: c.target}
	for _, read := range []func(context.Context) error{
		into(&r.Subscription, c.store.Subscription),
		into(&r.Tables, c.store.Tables),
		into(&r.WaitingIndexes, c.store.WaitingIndexes),
		into(&r.Conflicts, c.store.ConflictStats),
		into(&r.Recent, func(ctx context.Context) ([]state.RecordedConflict, error) {
			return c.store.RecentConflicts(ctx, recentConflicts)
		}),
		into(&r.Prepared, func(ctx context.Context) ([]state.Prepared, error) {
			return c.store.Prepared(ctx, target.PreparedPrefix(c.engine.options.Name, c.target.DatabaseOID))
		}),
	} {
		if err := read(c.ctx); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// into reads one thing to where it belongs.
func into[T any](where *T, read func(context.Context) (T, error)) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		*where, err = read(ctx)
		return err
	}
}

// conflictsMet counts the conflicts of this runner, resolved or not.
func (e *Engine) conflictsMet() (met int64) {
	for _, count := range e.Status().Conflicts {
		met += count
	}
	return met
}
