package operate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"pgapply/apply/state"
	"pgapply/internal/source"
)

// waits are what the creation of a slot would wait for, on the whole server and not only
// in the database: all that write must end.
type waits struct {
	// where they were looked for: on the publisher, or on its primary.
	where string
	// running are those that run for longer than longRunning, or nobody may see how long;
	// prepared those that are prepared. The oldest come first.
	running, prepared []source.Transaction
}

// longRunning is what one that writes may take without a word.
const longRunning = 10 * time.Second

func gatherWaits(ctx context.Context, where string, conn *source.Conn) (waits, error) {
	w := waits{where: where}
	all, err := conn.Transactions(ctx, 0)
	if err != nil {
		return w, err
	}
	for _, transaction := range all {
		switch {
		case transaction.PID == 0:
			w.prepared = append(w.prepared, transaction)
		case transaction.Age >= longRunning || transaction.Age < 0:
			w.running = append(w.running, transaction)
		}
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
	if f.publisher.identity.InRecovery && f.options.Primary == "" {
		findings = append(findings, warning(subject, "give --primary, or call pg_log_standby_snapshot() there once the start waits",
			"creating it on a standby waits until its primary records which transactions run: up to 15 s, and for ever where nothing is written there")...)
	}
	w := f.publisher.waits
	if len(w.running) > 0 {
		findings = append(findings, warning(subject, "end it there, SELECT pg_terminate_backend(PID), or let the start wait",
			"creating it waits for what writes on the %s: %s", w.where, names(w.running))...)
	}
	if len(w.prepared) > 0 {
		findings = append(findings, warning(subject, "COMMIT PREPARED or ROLLBACK PREPARED, each in its database, or let the start wait",
			"creating it waits for what is prepared on the %s: %s", w.where, names(w.prepared))...)
	}
	return findings
}

// names lists the oldest transactions.
func names(transactions []source.Transaction) string {
	const most = 5
	var list []string
	for _, transaction := range transactions[:min(most, len(transactions))] {
		list = append(list, transaction.String())
	}
	if more := len(transactions) - most; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}
