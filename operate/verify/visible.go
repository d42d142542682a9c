package verify

import (
	"context"
	"fmt"
	"time"
)

// What the target has may not be visible on the publisher yet. A backend that commits writes
// that to the log, from where it is sent, waits perhaps for a standby
// (synchronous_standby_names), and shows it to others only then; after that it gives its
// locks back (xact.c, CommitTransaction). So whoever holds a writer's lock of a table just
// after the target was read may have written what the publisher does not show.

// visible waits until all those have ended who may have written to the table before now. It
// says who has not, when the deadline has passed.
func (c *comparison) visible(ctx context.Context, t *table, deadline time.Time) (behind string, err error) {
	writers, err := c.writers(ctx, t)
	if err != nil {
		return "", err
	}
	for len(writers) > 0 {
		if time.Now().After(deadline) {
			for _, pid := range writers {
				return fmt.Sprintf("the transaction of process %s on the publisher, which writes to the table, has not ended within %s", pid, c.options.Patience), nil
			}
		}
		if err := Pause(ctx, lookAgain); err != nil {
			return "", err
		}
		now, err := c.writers(ctx, t)
		if err != nil {
			return "", err
		}
		for transaction := range writers {
			if now[transaction] == "" {
				delete(writers, transaction)
			}
		}
	}
	return "", nil
}

// writers are the transactions on the publisher that hold a writer's lock of the table or a
// partition of it, each with its process. Prepared ones have none, and take their time.
func (c *comparison) writers(ctx context.Context, t *table) (map[string]string, error) {
	rows, err := c.ask(ctx, `
		WITH RECURSIVE tree(oid) AS (
			SELECT `+t.ends[sourceEnd].oid+`::pg_catalog.oid
			UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid)
		SELECT DISTINCT l.virtualtransaction, l.pid FROM pg_catalog.pg_locks l
		WHERE l.locktype = 'relation' AND l.granted AND l.pid IS NOT NULL AND l.relation IN (SELECT oid FROM tree)
			AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
			AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')`)
	if err != nil {
		return nil, err
	}
	writers := make(map[string]string, len(rows))
	for _, row := range rows {
		writers[row[0]] = row[1]
	}
	return writers, nil
}
