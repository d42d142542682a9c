package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// DropSchema drops schema pgapply once no subscription is left in it. It
// returns why something of it stays, or the empty string when all is gone.
// Objects in it that are not ours are never dropped.
func (s *Store) DropSchema(ctx context.Context) (kept string, err error) {
	err = s.transaction(ctx, "drop schema pgapply", func(tx pgx.Tx) error {
		kept, err = s.dropSchema(ctx, tx)
		return err
	})
	if errors.Is(err, ErrNoSchema) {
		return "", nil
	}
	return kept, err
}

func (s *Store) dropSchema(ctx context.Context, tx pgx.Tx) (kept string, err error) {
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_advisory_xact_lock($1)`, migrationLock); err != nil {
		return "", fmt.Errorf("wait for others who set up schema pgapply: %w", err)
	}
	if _, err := tx.Exec(ctx, `LOCK TABLE pgapply.version IN ACCESS EXCLUSIVE MODE`); err != nil {
		return "", err
	}
	// A runner that is starting has its lock before it has a row.
	var subscriptions, runners int
	err = tx.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM pgapply.subscription),
		       (SELECT count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 2
		         AND classid = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'pgapply')
		         AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
		         AND pid <> pg_catalog.pg_backend_pid())`).Scan(&subscriptions, &runners)
	if err != nil {
		return "", err
	}
	if subscriptions > 0 {
		return fmt.Sprintf("other subscriptions use it (%d)", subscriptions), nil
	}
	if runners > 0 {
		return "a runner of another subscription is starting", nil
	}
	var deferred int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM pgapply.deferred_index`).Scan(&deferred); err != nil {
		return "", err
	}
	if deferred > 0 {
		return fmt.Sprintf("table pgapply.deferred_index holds the definitions of indexes that a copy has dropped (%d): make them again, then delete them there", deferred), nil
	}
	kept, err = attempt(ctx, tx, `DROP TABLE pgapply.message, pgapply.progress, pgapply.conflict, pgapply.runner, pgapply.origin,
		pgapply.deferred_index, pgapply.subscription_table, pgapply.subscription, pgapply.version`)
	if err != nil || kept != "" {
		return kept, err
	}
	return attempt(ctx, tx, `DROP SCHEMA pgapply`)
}

// attempt runs a statement in a savepoint of its own and returns the reason
// when the server refuses it for somebody else's objects or rights.
func attempt(ctx context.Context, tx pgx.Tx, sql string) (refusal string, err error) {
	err = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		_, err := savepoint.Exec(ctx, sql)
		return err
	})
	if hasCode(err, dependentObjectsExist, insufficientPrivilege) {
		return err.Error(), nil
	}
	return "", err
}
