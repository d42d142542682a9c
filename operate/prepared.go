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
		return refused(preparedHint(r.Prepared),
			"subscription %q has prepared transactions on the target: %s", r.Subscription, apply.Names(r.Prepared))
	}
	return nil
}

// preparedHint says how to find out what became of prepared transactions, and how to end
// them where that is not the same for all.
func preparedHint(prepared []state.Prepared) string {
	var asked, ended []string
	for _, p := range prepared {
		asked = append(asked, fmt.Sprintf("SELECT pg_xact_status('%d')", p.XID))
		ended = append(ended, fmt.Sprintf("COMMIT PREPARED %s or ROLLBACK PREPARED %[1]s", literal(p.Name)))
	}
	return fmt.Sprintf("see on the publisher what became of each: %s; then repeat with --prepared=commit or --prepared=rollback for all of them, "+
		"or end each by hand first, on the target: %s", strings.Join(asked, "; "), strings.Join(ended, "; "))
}

// literal quotes a name, in commands that take no parameter.
func literal(name string) string { return "'" + strings.ReplaceAll(name, "'", "''") + "'" }

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
		_, err := target.conn.Exec(ctx, verb+" PREPARED "+literal(p.Name))
		if err != nil {
			return apply.TargetError(fmt.Errorf("end prepared transaction %s: %w", p.Name, err))
		}
		r.did("%s prepared transaction %s", past, p.Name)
	}
	return nil
}
