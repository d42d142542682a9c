package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/apply"
)

// publishBack makes the publication of the way back on the target, while there is time.
// Nothing is sent before a slot is there.
func (c *cutover) publishBack(ctx context.Context) error {
	if !c.options.Reverse {
		return nil
	}
	tables, err := c.publishable(ctx)
	if err != nil {
		return err
	}
	name := quoteIdentifier(c.options.ReverseName)
	var there bool
	if err := c.target.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = $1)`, c.options.ReverseName).Scan(&there); err != nil {
		return apply.TargetError(err)
	}
	sql, done := "CREATE PUBLICATION "+name+" FOR TABLE "+strings.Join(tables, ", ")+" WITH (publish_via_partition_root = true)", "created"
	if there {
		sql, done = "ALTER PUBLICATION "+name+" SET TABLE "+strings.Join(tables, ", "), "was there, and publishes what it should now"
	}
	if _, err := c.target.conn.Exec(ctx, sql); err != nil {
		return apply.TargetError(fmt.Errorf("make publication %q on the target: %w", c.options.ReverseName, err))
	}
	c.step("reverse", "publication %q on the target %s: %s", c.options.ReverseName, done, counted(int64(len(tables)), "table"))
	return nil
}

// publishable are the subscription's tables, quoted.
func (c *cutover) publishable(ctx context.Context) ([]string, error) {
	tables, err := c.store.Tables(ctx)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	list := make([]string, len(tables))
	for i, table := range tables {
		list[i] = table.Text // as SQL wants it
	}
	return list, nil
}

// openBack makes the slot of the way back, when the last change of the publisher is
// applied and before an application writes: it sends just what applications write. One
// of an earlier try has seen changes of the publisher since, and is made anew.
func (c *cutover) openBack(ctx context.Context) error {
	if !c.options.Reverse {
		return nil
	}
	if trouble, err := c.reverseSlot(ctx); err != nil {
		return err
	} else if trouble != "" {
		return refused("stop what uses it, or choose another --reverse-name", "%s", trouble)
	}
	bounded, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	var dropped int
	var position string
	err := c.target.conn.QueryRow(bounded, `SELECT pg_catalog.count(pg_catalog.pg_drop_replication_slot(slot_name)) FROM pg_catalog.pg_replication_slots WHERE slot_name = $1`,
		c.options.ReverseName).Scan(&dropped)
	if err == nil {
		err = c.target.conn.QueryRow(bounded, `SELECT lsn::pg_catalog.text FROM pg_catalog.pg_create_logical_replication_slot($1, 'pgoutput')`, c.options.ReverseName).Scan(&position)
	}
	switch {
	case errors.Is(bounded.Err(), context.DeadlineExceeded) && ctx.Err() == nil:
		return refused("end the oldest transaction on the target, and repeat this", "slot %q on the target waited for %s for transactions that are open there", c.options.ReverseName, c.options.Timeout)
	case err != nil:
		return apply.TargetError(fmt.Errorf("make slot %q on the target: %w", c.options.ReverseName, err))
	}
	c.step("reverse", "slot %q on the target keeps what applications write, from %s on", c.options.ReverseName, position)
	return nil
}

// reverseSlot says what is wrong with a slot of the name that is there, or nothing.
func (c *cutover) reverseSlot(ctx context.Context) (trouble string, err error) {
	var plugin, database string
	var active bool
	err = c.target.conn.QueryRow(ctx, `SELECT coalesce(plugin, ''), coalesce(database, ''), active FROM pg_catalog.pg_replication_slots WHERE slot_name = $1`,
		c.options.ReverseName).Scan(&plugin, &database, &active)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", nil
	case err != nil:
		return "", apply.TargetError(err)
	case plugin != "pgoutput" || database != c.target.server.Database:
		return fmt.Sprintf("the target has another slot %q: plugin %q, database %q", c.options.ReverseName, plugin, database), nil
	case active:
		return fmt.Sprintf("slot %q on the target is in use", c.options.ReverseName), nil
	}
	return "", nil
}
