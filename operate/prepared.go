package operate

import (
	"context"
	"fmt"
	"strings"

	"pgapply/apply"
	"pgapply/apply/state"
)

// findPrepared looks for prepared transactions of this subscription, and refuses to go
// on where it was not said how they end. Their rows are neither committed nor rolled
// back, and hold locks.
func (r *Removal) findPrepared(ctx context.Context, target *targetSession) (err error) {
	r.Prepared, err = state.ListPrepared(ctx, target.conn, target.preparedPrefix(r.Subscription))
	switch {
	case err != nil:
		return apply.TargetError(err)
	case r.end != "" && r.end != CommitPrepared && r.end != RollbackPrepared:
		return &apply.Error{Class: apply.Configuration, Err: fmt.Errorf("--prepared %q is not one of %s, %s", r.end, CommitPrepared, RollbackPrepared)}
	case len(r.Prepared) > 0 && r.end == "":
		return refused("see on the publisher what became of each, and repeat with --prepared=commit or --prepared=rollback",
			"subscription %q has prepared transactions on the target: %s", r.Subscription, apply.Names(r.Prepared))
	}
	return nil
}

// decision says what becomes of prepared transactions.
func (r *Removal) decision() string {
	if r.end == CommitPrepared {
		return "by committing them"
	}
	return "by rolling them back"
}

// alone ends prepared transactions that are all that is left of a subscription.
func (r *Removal) alone(ctx context.Context, target *targetSession, options CleanupOptions) error {
	if !options.Confirmed {
		return notConfirmed(options)
	}
	return r.endPrepared(ctx, target)
}

// endPrepared commits or rolls back what findPrepared has found.
func (r *Removal) endPrepared(ctx context.Context, target *targetSession) error {
	verb, past := "COMMIT", "committed"
	if r.end == RollbackPrepared {
		verb, past = "ROLLBACK", "rolled back"
	}
	for _, p := range r.Prepared {
		// The command takes no parameter. Whoever may not end it reads so from the server.
		_, err := target.conn.Exec(ctx, verb+" PREPARED '"+strings.ReplaceAll(p.Name, "'", "''")+"'")
		if err != nil {
			return apply.TargetError(fmt.Errorf("end prepared transaction %s: %w", p.Name, err))
		}
		r.did("%s prepared transaction %s", past, p.Name)
	}
	return nil
}
