package source

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"pgapply/internal/lsn"
)

// Transaction is one that writes on the server, or is prepared there, in any of its
// databases. A slot is made once those have ended that were there before.
type Transaction struct {
	// PID of its process, 0 where it is prepared. GID is then its name.
	PID int
	GID string
	// User is empty for a process of the server's own, State where our role may not see it
	// (pg_read_all_stats).
	User, Database, Application, State string
	// Age is how long it has run, or was prepared, by the server's clock; negative where
	// our role may not see it.
	Age time.Duration
	// Blocks: somebody waits for it.
	Blocks bool
}

// String names the transaction in a sentence.
func (t Transaction) String() string {
	var known []string
	add := func(format, value string) {
		if value != "" {
			known = append(known, fmt.Sprintf(format, value))
		}
	}
	add("application %q", t.Application)
	add("role %s", t.User)
	add("database %s", t.Database)
	add("%s", t.State)
	if t.Age >= time.Second {
		add("for %s", ageText(t.Age))
	}
	what := fmt.Sprintf("process %d", t.PID)
	if t.PID == 0 {
		what = fmt.Sprintf("prepared transaction %q", t.GID)
	}
	if len(known) == 0 {
		return what
	}
	return what + " (" + strings.Join(known, ", ") + ")"
}

// ageText leaves out what nobody needs to know: 45s, 12m, 3h12m.
func ageText(age time.Duration) string {
	if age < time.Minute {
		return age.Truncate(time.Second).String()
	}
	return strings.TrimSuffix(age.Truncate(time.Minute).String(), "0s")
}

// Transactions returns those that write or are prepared, the oldest first, but for our
// own. Blocks is true of those that the process waiter waits for; 0 is for nobody. On a
// standby there are none: its primary has them.
func (c *Conn) Transactions(ctx context.Context, waiter uint32) ([]Transaction, error) {
	// Everyone may see the locks, of which each transaction with a number holds one on
	// that, and not everyone pg_stat_activity.backend_xid.
	rows, err := c.Query(ctx, fmt.Sprintf(`
		WITH blocking (pid) AS (SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids(%d)))
		SELECT a.pid, NULL, a.usename, a.datname, nullif(a.application_name, ''), a.state,
			pg_catalog.floor(EXTRACT(epoch FROM pg_catalog.clock_timestamp() - a.xact_start) * 1000) AS age, a.pid IN (SELECT pid FROM blocking)
		FROM pg_catalog.pg_stat_activity a
		WHERE a.pid <> pg_catalog.pg_backend_pid() AND a.pid IN (
			SELECT pid FROM pg_catalog.pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted)
		UNION ALL
		SELECT 0, gid, owner, database, NULL, NULL,
			pg_catalog.floor(EXTRACT(epoch FROM pg_catalog.clock_timestamp() - prepared) * 1000), 0 IN (SELECT pid FROM blocking)
		FROM pg_catalog.pg_prepared_xacts
		ORDER BY age DESC NULLS FIRST, 1, 2`, waiter))
	if err != nil {
		return nil, fmt.Errorf("look for transactions that write: %w", err)
	}
	list := make([]Transaction, len(rows))
	for row := range rows {
		field := func(column int) string { return text(rows, row, column) }
		t := &list[row]
		*t = Transaction{GID: field(1), User: field(2), Database: field(3), Application: field(4), State: field(5), Age: -1, Blocks: field(7) == "t"}
		if t.PID, err = strconv.Atoi(field(0)); err != nil {
			return nil, fmt.Errorf("look for transactions that write: %w", err)
		}
		if milliseconds, err := strconv.ParseInt(field(6), 10, 64); err == nil { // NULL where it is hidden
			t.Age = time.Duration(milliseconds) * time.Millisecond
		}
	}
	return list, nil
}

// MayLogSnapshot tells whether the role may call LogSnapshot.
func (c *Conn) MayLogSnapshot(ctx context.Context) (bool, error) {
	rows, err := c.Query(ctx, "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_log_standby_snapshot()', 'EXECUTE')")
	if err != nil {
		return false, fmt.Errorf("look for pg_log_standby_snapshot: %w", err)
	}
	return text(rows, 0, 0) == "t", nil
}

// LogSnapshot writes into the log of a primary, of 16 or later, which transactions run,
// and returns where. A slot that is made on a standby waits for such a record.
func (c *Conn) LogSnapshot(ctx context.Context) (lsn.LSN, error) {
	rows, err := c.Query(ctx, "SELECT pg_catalog.pg_log_standby_snapshot()")
	if err != nil {
		return 0, fmt.Errorf("log a standby snapshot: %w", err)
	}
	position, err := lsn.Parse(text(rows, 0, 0))
	if err != nil {
		return 0, fmt.Errorf("log a standby snapshot: %w", err)
	}
	return position, nil
}

// RolledBack tells whether a transaction of a publisher from 13 on is known to have been
// rolled back.
func (c *Conn) RolledBack(ctx context.Context, xid uint32) (bool, error) {
	// The newest whole number that ends in these 32 bits.
	rows, err := c.Query(ctx, fmt.Sprintf(`SELECT pg_catalog.pg_xact_status((next - ((next - %d) & 4294967295))::pg_catalog.text::pg_catalog.xid8) = 'aborted'
		FROM (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text::pg_catalog.int8) AS s (next)`, xid))
	if err != nil {
		return false, fmt.Errorf("ask what became of transaction %d: %w", xid, err)
	}
	return string(rows[0][0]) == "t", nil
}
