package operate

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/lsn"
	"pgapply/internal/plain"
)

// Skipping is what a skip found and did.
type Skipping struct {
	Subscription string
	// Position is where the transaction ends that is skipped; 0 when the skip was
	// taken back. Before is what was set until now.
	Position, Before lsn.LSN
	// Failing is where the transaction ends that the last error is about; 0 where
	// none is known.
	Failing   lsn.LSN
	LastError string
	// Report is what was seen last.
	Report *Report
}

// Skip makes the runner leave out the one transaction that ends at the position,
// the "finished at" of an apply error, and record what changes it has as conflicts: a
// COMMIT PREPARED or ROLLBACK PREPARED has none. Position 0
// takes that back. A position at or below what is applied is refused: nothing would
// ever be skipped there.
func Skip(ctx context.Context, ends Endpoints, position lsn.LSN) (*Skipping, error) {
	target, store, err := ends.openState(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	if err := target.writable(); err != nil {
		return nil, err
	}
	seen, err := observe(ctx, target, store)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	if seen.subscription == nil {
		return nil, target.unknown(ctx, store)
	}
	s := &Skipping{Subscription: ends.Name, Position: position, Report: newReport(ends.Name, target.server, seen)}
	s.LastError = s.Report.LastError
	s.Failing = finishOf(s.LastError)
	// What was prepared before the slot knew of it arrives late, and ends below what is applied.
	if position != 0 && position != s.Failing {
		if err := skippable(ctx, store, seen.subscription, position); err != nil {
			return nil, err
		}
	}
	s.Before, err = store.SetSkip(ctx, position)
	if errors.Is(err, state.ErrNoSubscription) { // a cleanup came first
		return nil, target.unknown(ctx, store)
	}
	return s, targetErrorOrNil(err)
}

func skippable(ctx context.Context, store *state.Store, subscription *state.Subscription, position lsn.LSN) error {
	progress, err := store.Progress(ctx)
	if err != nil {
		return apply.TargetError(err)
	}
	applied := max(progress, subscription.AckLSN, subscription.ConsistentPoint)
	if position > applied {
		return nil
	}
	return refused("give the position that the error names: `finished at ...`, see `pgapply status`",
		"no transaction that finishes at %s can be skipped: everything up to %s is applied", position, applied)
}

var finishedAt = regexp.MustCompile(`finished at ([0-9A-F]+/[0-9A-F]+)`)

// finishOf finds the position in the text of a *target.TransactionError.
func finishOf(message string) lsn.LSN {
	found := finishedAt.FindStringSubmatch(message)
	if found == nil {
		return 0
	}
	position, err := lsn.Parse(found[1])
	if err != nil {
		return 0
	}
	return position
}

// Text says what will be skipped and when.
func (s *Skipping) Text() string {
	if s.Position == 0 {
		if s.Before == 0 {
			return fmt.Sprintf("subscription %q had no transaction to skip\n", s.Subscription)
		}
		return fmt.Sprintf("the transaction that finishes at %s will not be skipped\n", s.Before)
	}
	text := fmt.Sprintf("subscription %q will skip the transaction that finishes at %s", s.Subscription, s.Position)
	if s.Before != 0 && s.Before != s.Position {
		text += fmt.Sprintf(", and no longer the one at %s", s.Before)
	}
	text += "; what changes it has go to `pgapply conflicts`\n"
	switch s.Failing {
	case 0:
		text += "no failing transaction is known: make sure that the position is the end of one\n"
	case s.Position:
		text += "it is the one that fails: " + plain.Line(s.LastError) + "\n"
	default:
		text += fmt.Sprintf("attention: the one that fails finishes at %s: %s\n", s.Failing, plain.Line(s.LastError))
	}
	switch {
	case !s.Report.Enabled:
		text += fmt.Sprintf("the subscription is %s: %s\n", s.Report.paused(), s.Report.goOn())
	case !s.Report.Runner.Alive:
		text += "no runner lives: start one with `pgapply run`\n"
	}
	return Named(text, s.Subscription)
}
