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
	"pgapply/internal/plain"
)

// Switching is what a pause or a resume found and did.
type Switching struct {
	// wanted is the phase that the runner was told to reach: Paused or Streaming.
	wanted state.Phase
	// Changed is false where the subscription already was as wanted.
	Changed bool
	// Followed says that a runner lives and does as it was told; Report is what was
	// seen last.
	Followed bool
	Report   *Report
}

const (
	// runnerPatience is how long a runner may take to follow.
	runnerPatience = 10 * time.Second
	// lookAgain is how often its status is read meanwhile; it writes when its phase changes.
	lookAgain = 200 * time.Millisecond
)

// Pause makes the runner stop applying, also the one that is started next. What is
// in work is finished first, or rolled back. The reason is for people to read.
func Pause(ctx context.Context, ends Endpoints, reason string) (*Switching, error) {
	return throw(ctx, ends, state.Paused, runnerPatience, func(store *state.Store) (bool, error) {
		return store.Pause(ctx, reason)
	})
}

// Resume lets a paused subscription go on. One that was cut over goes on only where the
// operator confirms it; nil does not.
func Resume(ctx context.Context, ends Endpoints, confirm func(Question) bool) (*Switching, error) {
	return throw(ctx, ends, state.Streaming, runnerPatience, func(store *state.Store) (bool, error) {
		sub, err := store.Subscription(ctx)
		if err != nil {
			return false, err
		}
		if sub != nil && sub.CutOver() {
			if question := undoCutover(sub); confirm == nil || !confirm(question) {
				return false, refused("repeat with --yes, if nothing was written to the target since", "subscription %q is %s, and to go on with it is not confirmed", ends.Name, sub.PauseReason)
			}
		}
		return store.Resume(ctx)
	})
}

// undoCutover asks about what cannot be taken back.
func undoCutover(sub *state.Subscription) Question {
	return Question{
		Text: fmt.Sprintf("Subscription %q was %s: the target is the one that writes. To go on applies what the publisher wrote since over what was written on the target, and with the way back running, what comes back is applied again.",
			sub.Name, sub.PauseReason),
		Word: sub.Name,
	}
}

// throw changes the state, and gives a runner that lives the time to reach the phase.
func throw(ctx context.Context, ends Endpoints, phase state.Phase, patience time.Duration, change func(*state.Store) (bool, error)) (*Switching, error) {
	target, store, err := ends.openState(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	if err := target.writable(); err != nil {
		return nil, err
	}
	s := &Switching{wanted: phase}
	s.Changed, err = change(store)
	switch {
	case errors.Is(err, state.ErrNoSubscription):
		return nil, target.unknown(ctx, store)
	case err != nil && ctx.Err() != nil:
		return nil, &apply.Error{
			Class: apply.Other, Hint: "see `pgapply status`",
			Err: fmt.Errorf("whether subscription %q is %s is not known: %w", ends.Name, s.done(), context.Cause(ctx)),
		}
	case err != nil:
		return nil, apply.TargetError(err)
	}
	if err := s.watch(ctx, target, store, patience); err != nil {
		return nil, s.unfollowed(ctx, ends.Name, err)
	}
	return s, nil
}

// unfollowed is the error of a watch that broke off: what was told stays told, and a
// runner that lives follows all the same.
func (s *Switching) unfollowed(ctx context.Context, name string, err error) error {
	const format = "subscription %q is %s, and the runner was not seen to follow yet: %w"
	if ctx.Err() != nil {
		return &apply.Error{Class: apply.Other, Hint: "see `pgapply status`", Err: fmt.Errorf(format, name, s.done(), context.Cause(ctx))}
	}
	typed := apply.TargetError(err)
	return &apply.Error{Class: typed.Class, Hint: cmp.Or(typed.Hint, "see `pgapply status`"), Retryable: typed.Retryable, Err: fmt.Errorf(format, name, s.done(), typed.Err)}
}

// done is what was told, in a word.
func (s *Switching) done() string {
	if s.wanted == state.Paused {
		return "paused"
	}
	return "resumed"
}

// watch reads the status until a runner has reached the phase, none lives, the
// opposite was told, or the time is up.
func (s *Switching) watch(ctx context.Context, target *targetSession, store *state.Store, patience time.Duration) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		seen, err := glance(ctx, store)
		if err != nil {
			return err
		}
		s.Report = newReport(store.Name(), target.server, seen)
		s.Followed = s.Report.Runner.Alive && s.Report.Status != nil && s.Report.Status.Phase == s.wanted
		// With an error before, that it streams does not yet tell that it is gone.
		proved := s.Followed && (s.wanted == state.Paused || s.Report.LastError == "")
		if proved || s.pausedAgain() || !s.Report.Runner.Alive {
			return nil
		}
		select {
		case <-again.C:
		case <-late.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pausedAgain says that what was resumed has been paused since, as the runner does
// when an apply error is met again.
func (s *Switching) pausedAgain() bool { return s.wanted == state.Streaming && !s.Report.Enabled }

// Err is why a resume was in vain, or nil.
func (s *Switching) Err() error {
	if !s.pausedAgain() {
		return nil
	}
	r := s.Report
	if r.LastError == "" {
		return &apply.Error{
			Class: apply.Conflict, Hint: "see `pgapply status`",
			Err: fmt.Errorf("resumed subscription %q, but it was paused again: %s", r.Subscription, r.paused()),
		}
	}
	return &apply.Error{
		Class: apply.Conflict, Hint: r.LastErrorHint,
		Err: fmt.Errorf("resumed subscription %q, but it paused again: %s", r.Subscription, r.LastError),
	}
}

// Text says what became of it, in two lines; see Err first.
func (s *Switching) Text() string {
	r := s.Report
	var text strings.Builder
	switch {
	case s.wanted == state.Paused && s.Changed:
		fmt.Fprintf(&text, "paused subscription %q\n", r.Subscription)
	case s.wanted == state.Paused:
		fmt.Fprintf(&text, "subscription %q was %s\n", r.Subscription, r.paused())
	case s.Changed:
		fmt.Fprintf(&text, "resumed subscription %q\n", r.Subscription)
	default:
		fmt.Fprintf(&text, "subscription %q was not paused\n", r.Subscription)
	}
	who := fmt.Sprintf("the runner, process %d on %s,", r.Runner.PID, r.Runner.Host)
	switch {
	case r.Runner.Lock == "" && r.Enabled:
		text.WriteString("no runner lives: start one with `pgapply run`\n")
	case r.cutOver:
		fmt.Fprintf(&text, "%s\n", r.goOn())
	case r.Runner.Lock == "":
		text.WriteString("no runner lives; one that is started waits until `pgapply resume`\n")
	case !r.Runner.Alive:
		fmt.Fprintf(&text, "%s gave no sign of life for %s: see `pgapply status`\n", who, seconds(r.Runner.HeartbeatAge))
	case s.Followed && r.Enabled && r.LastError != "":
		fmt.Fprintf(&text, "%s streams, and nothing shows yet that the last error is gone: %s\n", who, plain.Line(r.LastError))
	case s.Followed && r.Enabled:
		fmt.Fprintf(&text, "%s streams\n", who)
	case s.Followed:
		fmt.Fprintf(&text, "%s applies nothing any more\n", who)
	case r.Status == nil:
		text.WriteString("a runner is starting: see `pgapply status`\n")
	default:
		fmt.Fprintf(&text, "%s is still %s%s: see `pgapply status`\n", who, r.Status.Phase, after(": ", plain.Line(r.LastError)))
	}
	return Named(text.String(), r.Subscription)
}

// after puts a separator before a text that is not empty.
func after(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}
