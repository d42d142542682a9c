package operate

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"pgapply/apply/state"
	"pgapply/internal/source"
)

// waits are what the creation of a slot would wait for, on the whole publisher and not
// only in the database: every transaction that has a number must end.
type waits struct {
	// running is the oldest one that writes, age how old it is; empty where none is
	// older than longRunning. Of other roles' a role without pg_read_all_stats sees none.
	running string
	age     time.Duration
	// prepared are those that are prepared, in words, the oldest first.
	prepared []string
}

// longRunning is what one that writes may take without a word.
const longRunning = 10 * time.Second

func gatherWaits(ctx context.Context, conn *source.Conn) (w waits, err error) {
	rows, err := conn.Query(ctx, fmt.Sprintf(`
		SELECT pg_catalog.format('process %%s (%%s, role %%s, database %%s)', pid, coalesce(nullif(application_name, ''), 'without a name'), usename, datname),
			extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::bigint
		FROM pg_catalog.pg_stat_activity
		WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
			AND xact_start < pg_catalog.clock_timestamp() - interval '%d seconds'
		ORDER BY xact_start LIMIT 1`, int(longRunning.Seconds())))
	if err != nil {
		return w, fmt.Errorf("look for transactions that run on the publisher: %w", err)
	}
	if len(rows) > 0 {
		w.running = string(rows[0][0])
		age, err := strconv.ParseInt(string(rows[0][1]), 10, 64)
		if err != nil {
			return w, fmt.Errorf("read the age of a transaction on the publisher: %w", err)
		}
		w.age = time.Duration(age) * time.Second
	}
	rows, err = conn.Query(ctx, `
		SELECT pg_catalog.format('%L in database %s since %s', gid, database, pg_catalog.date_trunc('second', prepared))
		FROM pg_catalog.pg_prepared_xacts ORDER BY prepared, gid`)
	if err != nil {
		return w, fmt.Errorf("look for prepared transactions on the publisher: %w", err)
	}
	for _, row := range rows {
		w.prepared = append(w.prepared, string(row[0]))
	}
	return w, nil
}

// checkWaits names what a start would wait for before it streams.
func checkWaits(f *facts) []Finding {
	const subject = "slot"
	sub, slot := f.target.subscription, f.publisher.slot
	begins := sub == nil || sub.SlotState == state.SlotCreating
	if !begins || !f.options.CreateSlot || f.target.stateErr != nil || sub == nil && slot != nil {
		return nil
	}
	var findings []Finding
	w := f.publisher.waits
	if w.running != "" {
		findings = append(findings, warning(subject, "end it, or let the start wait",
			"creating it waits for the transactions that write on the publisher: the oldest is that of %s, for %s now", w.running, duration(w.age))...)
	}
	if len(w.prepared) > 0 {
		findings = append(findings, warning(subject, "COMMIT PREPARED or ROLLBACK PREPARED, each in its database, or let the start wait",
			"creating it waits for what is prepared on the publisher: %s", strings.Join(w.prepared, ", "))...)
	}
	return findings
}
