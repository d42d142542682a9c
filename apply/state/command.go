package state

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/lsn"
)

// Channel is notified, with the subscription's name as the payload, when somebody
// has written what its runner is to do, which [Store.Notified] hears. A runner also
// reads its row again every second.
const Channel = "pgapply"

// Pause makes the runner stop at the next transaction's end, and keeps the next
// one from starting. It tells whether that is new: a paused subscription keeps the
// time and the reason of its first pause.
func (s *Store) Pause(ctx context.Context, reason string) (changed bool, err error) {
	enabled, err := s.command(ctx, "pause", `enabled = false,
		paused_at    = CASE WHEN before.enabled THEN pg_catalog.now() ELSE s.paused_at END,
		pause_reason = CASE WHEN before.enabled THEN nullif($2, '') ELSE s.pause_reason END`, "before.enabled::text", reason)
	return enabled == "true", err
}

// Resume takes a pause back, and tells whether there was one.
func (s *Store) Resume(ctx context.Context) (changed bool, err error) {
	enabled, err := s.command(ctx, "resume", `enabled = true, paused_at = NULL, pause_reason = NULL`, "before.enabled::text")
	return enabled == "false", err
}

// SetSkip makes the runner leave out the one transaction that ends at the
// position; 0 takes that back. It returns the position that was set before.
func (s *Store) SetSkip(ctx context.Context, position lsn.LSN) (before lsn.LSN, err error) {
	text, err := s.command(ctx, "set the transaction to skip", `skip_lsn = nullif($2::text, '0/0')::pg_lsn`,
		"coalesce(before.skip_lsn, '0/0')::text", position.String())
	if err != nil {
		return 0, err
	}
	return lsn.Parse(text)
}

// ClearSkip takes the position to skip back once everything up to done was applied
// or skipped. A later one, which somebody has set meanwhile, stays.
func (s *Store) ClearSkip(ctx context.Context, done lsn.LSN) error {
	_, err := s.exec(ctx, "clear the transaction to skip", `UPDATE pgapply.subscription
		SET skip_lsn = NULL, updated_at = pg_catalog.now() WHERE name = $1 AND skip_lsn <= $2::text::pg_lsn`, done.String())
	return err
}

// command changes the subscription's row, notifies the runner, and returns what was
// there before it.
func (s *Store) command(ctx context.Context, doing, set, was string, arguments ...any) (string, error) {
	found, err := rows(ctx, s, doing, pgx.RowTo[string], `
		WITH changed AS (
			UPDATE pgapply.subscription AS s SET `+set+`, updated_at = pg_catalog.now()
			FROM (SELECT * FROM pgapply.subscription WHERE name = $1 FOR UPDATE) AS before
			WHERE s.name = before.name
			RETURNING s.name, `+was+` AS was)
		SELECT was FROM changed, LATERAL pg_catalog.pg_notify('`+Channel+`', name)`, arguments...)
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", fmt.Errorf("%s: subscription %q: %w", doing, s.name, ErrNoSubscription)
	}
	return found[0], nil
}
