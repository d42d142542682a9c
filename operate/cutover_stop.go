package operate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"pgapply/apply"
	"pgapply/operate/verify"
)

// stopWrites makes sure that nobody writes on the publisher any more.
func (c *cutover) stopWrites(ctx context.Context) error {
	if c.options.SetReadOnly {
		return c.setReadOnly(ctx)
	}
	question := Question{Text: "Stop everything that writes to the publisher now.", Word: "stopped"}
	if !c.options.Confirm(question) {
		return refused("stop them, and repeat this", "that writes have stopped is not confirmed")
	}
	c.stopped = time.Now()
	if err := c.untilGone(ctx, "backend_xid IS NOT NULL", "end these transactions on the publisher, and repeat this"); err != nil {
		return err
	}
	c.step("stopped", "writes to the publisher have stopped, by the operator's word; no transaction is open that has written")
	return nil
}

// setReadOnly makes the database read-only for sessions to come, and ends those that
// there are: for them it is not. A session that says SET TRANSACTION READ WRITE still
// writes, which is for those who do so on purpose; what is found at the end.
func (c *cutover) setReadOnly(ctx context.Context) error {
	// After an earlier try ours is a session that came later.
	if _, err := c.publisher.Query(ctx, "SET default_transaction_read_only = off"); err != nil {
		return apply.SourceError(err)
	}
	if _, err := c.publisher.Query(ctx, c.readOnlySQL()); err != nil {
		return apply.SourceError(fmt.Errorf("make the publisher's database read-only: %w", err))
	}
	c.stopped = time.Now()
	rows, err := c.publisher.Query(ctx, "SELECT pg_catalog.clock_timestamp()::pg_catalog.text")
	if err != nil {
		return apply.SourceError(err)
	}
	// Who connects from now on has read the setting.
	earlier := "backend_start <= '" + string(rows[0][0]) + "'::pg_catalog.timestamptz"
	ended, err := c.publisher.Query(ctx, "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE "+others+" AND "+earlier)
	if err != nil {
		return apply.SourceError(fmt.Errorf("end the sessions of the publisher's database: %w", err))
	}
	if err := c.untilGone(ctx, earlier, "end these sessions on the publisher by hand, and repeat this"); err != nil {
		return err
	}
	c.step("stopped", "database %q of the publisher is read-only, and %s ended", c.database, counted(int64(len(ended)), "session"))
	return nil
}

// others are the sessions of clients, walsenders not among them.
const others = "datname = pg_catalog.current_database() AND backend_type = 'client backend' AND pid <> pg_catalog.pg_backend_pid()"

// untilGone waits until no session meets the condition.
func (c *cutover) untilGone(ctx context.Context, condition, remedy string) error {
	deadline := time.Now().Add(c.options.Timeout)
	for {
		rows, err := c.publisher.Query(ctx, "SELECT pid, usename, application_name FROM pg_catalog.pg_stat_activity WHERE "+others+" AND "+condition+" ORDER BY backend_start")
		if err != nil {
			return apply.SourceError(err)
		}
		if len(rows) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			names := make([]string, len(rows))
			for i, row := range rows {
				names[i] = fmt.Sprintf("process %s of role %s%s", row[0], row[1], after(", ", strings.ToValidUTF8(string(row[2]), "?")))
			}
			return refused(remedy, "writes to the publisher have not ended within %s: %s", c.options.Timeout, firstOf(names))
		}
		if err := verify.Pause(ctx, lookAgain); err != nil {
			return err
		}
	}
}
