package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/lsn"
)

// Goal is what a wait is for. The zero value is that the subscription is ready: a runner
// streams without an error, and every table takes part.
type Goal struct {
	// Position, unless 0, is up to where every table must have what committed on the
	// publisher. No runner need live for that.
	Position lsn.LSN
	// Current is the publisher's position when the wait begins.
	Current bool
}

// Waiting is what a wait has come to. The JSON names are stable.
type Waiting struct {
	Subscription string `json:"subscription"`
	// Position is what was waited for; 0/0 where that is to be ready.
	Position state.Position `json:"position"`
	// Applied is up to where the changes of the publisher are committed on the target.
	Applied state.Position `json:"applied_lsn"`
	// Tables counts tables by the letter of their state.
	Tables  map[string]int `json:"tables"`
	Seconds float64        `json:"seconds"`
}

// Wait returns when a subscription has reached the goal. It also waits for what is not
// there yet: a runner, the state, a server that starts. Patience bounds it, 0 does not.
// Its end is an error of class Refused where no runner lives then, since more patience
// would be in vain, and else of class Other.
func Wait(ctx context.Context, ends Endpoints, goal Goal, patience time.Duration) (*Waiting, error) {
	w := &waiter{ends: ends, goal: goal, begin: time.Now(), missing: apply.TargetError(errors.New("the target was not asked yet"))}
	defer w.close()
	timer := &time.Timer{}
	if patience > 0 {
		timer = time.NewTimer(patience)
		defer timer.Stop()
	}
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		done, err := w.look(ctx)
		if done != nil || err != nil {
			return done, err
		}
		select {
		case <-again.C:
		case <-timer.C:
			return nil, w.timeout(patience)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// waiter looks again and again over one session, for as long as that lives.
type waiter struct {
	ends   Endpoints
	goal   Goal
	begin  time.Time
	target *targetSession
	store  *state.Store
	// missing is what kept the last look from being the last one.
	missing *apply.Error
}

func (w *waiter) close() {
	if w.target != nil {
		closeTarget(w.target.conn)
		w.target = nil
	}
}

// look returns a result where the goal is reached, and an error where it never will be.
func (w *waiter) look(ctx context.Context) (*Waiting, error) {
	done, err := w.ask(ctx)
	if err == nil {
		return done, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	typed, is := errors.AsType[*apply.Error](err)
	switch {
	case !is:
		typed = apply.TargetError(err)
	case errors.Is(err, errNotYet) || errors.Is(err, state.ErrNoSchema):
		w.missing = typed
		return nil, nil
	}
	if !typed.Retryable {
		return nil, typed
	}
	w.close()
	w.missing = typed
	return nil, nil
}

// errNotYet marks an error that more patience may cure.
var errNotYet = errors.New("not yet")

// ask looks once. What is not there yet is an error, too.
func (w *waiter) ask(ctx context.Context) (*Waiting, error) {
	if w.goal.Current && w.goal.Position == 0 {
		publisher, identity, err := w.ends.openSource(ctx)
		if err != nil {
			return nil, err
		}
		closeSource(publisher)
		w.goal.Position = identity.Position
	}
	if w.target == nil {
		target, store, err := w.ends.openState(ctx)
		if err != nil {
			return nil, err
		}
		w.target, w.store = target, store
	}
	seen, err := glance(ctx, w.store)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	progress, err := w.store.Progress(ctx)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	return w.judge(newReport(w.ends.Name, w.target.server, seen), seen.subscription, progress)
}

// judge compares what is there with what is wanted.
func (w *waiter) judge(r *Report, subscription *state.Subscription, progress lsn.LSN) (*Waiting, error) {
	done := &Waiting{
		Subscription: r.Subscription, Position: state.Position(w.goal.Position), Applied: r.applied(progress),
		Tables: r.Tables, Seconds: time.Since(w.begin).Seconds(),
	}
	switch {
	case subscription == nil && r.Runner.Alive:
		return nil, r.notYet("a runner is starting, and has recorded nothing yet")
	case subscription == nil:
		return nil, r.notYet("the target knows no subscription %q", r.Subscription)
	case len(r.TablesNotReady) > 0:
		return nil, r.notYet("tables are not ready: %s%s", tablesLine(r.Tables), after("; ", r.copied()))
	case w.goal.Position != 0 && done.Applied < done.Position:
		return nil, r.notYet("it is at %s", done.Applied)
	case w.goal.Position != 0:
		return done, nil
	case !r.Runner.Alive:
		return nil, r.notYet("no runner lives")
	case r.Status == nil || r.Status.Phase != state.Streaming:
		return nil, r.notYet("the runner does not stream")
	case r.LastError != "":
		return nil, r.notYet("nothing shows yet that the last error is gone")
	}
	return done, nil
}

// applied is how far the target has everything. The runner knows of more than is recorded:
// where nothing is published there is nothing to commit.
func (r *Report) applied(progress lsn.LSN) state.Position {
	applied := max(state.Position(progress), r.Slot.Acknowledged)
	if r.Status != nil {
		applied = max(applied, r.Status.Applied)
	}
	return applied
}

// copied says how far a copy is that goes on.
func (r *Report) copied() string {
	if !r.Runner.Alive || r.Status == nil || r.Status.Copy == nil {
		return ""
	}
	return CopyLine(r.Status.Copy, r.Status.UpdatedAt)
}

// notYet says what is missing, and the most important problem.
func (r *Report) notYet(format string, arguments ...any) *apply.Error {
	class, hint := apply.Other, "see `pgapply status`"
	if !r.Runner.Alive {
		class, hint = apply.Refused, "start one with `pgapply run`"
	}
	text := fmt.Sprintf(format, arguments...)
	if len(r.Problems) > 0 && !strings.HasPrefix(r.Problems[0], text) {
		text += "; " + r.Problems[0]
	} else if len(r.Problems) > 0 {
		text = r.Problems[0]
	}
	if r.LastErrorHint != "" {
		hint = r.LastErrorHint
	}
	return &apply.Error{Class: class, Hint: hint, Err: notYet{text}}
}

type notYet struct{ text string }

func (n notYet) Error() string { return n.text }

// Unwrap makes it an errNotYet.
func (n notYet) Unwrap() error { return errNotYet }

// timeout is the error of a wait whose time is up.
func (w *waiter) timeout(patience time.Duration) error {
	why := w.missing
	return &apply.Error{
		Class: why.Class, Hint: cmp.Or(why.Hint, "see `pgapply status`"),
		Err: fmt.Errorf("subscription %q is not %s after %s: %w", w.ends.Name, w.goal, duration(patience), why.Err),
	}
}

func (g Goal) String() string {
	switch {
	case g.Position != 0:
		return "applied up to " + g.Position.String()
	case g.Current:
		return "applied up to the publisher's position"
	}
	return "ready"
}

// Text says what was reached, and how long it took.
func (w *Waiting) Text() string {
	what := "ready"
	if w.Position != 0 {
		what = "applied up to " + w.Position.String()
	}
	return fmt.Sprintf("subscription %q is %s after %s; tables: %s; applied %s\n", w.Subscription, what, seconds(w.Seconds), tablesLine(w.Tables), w.Applied)
}
