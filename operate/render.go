package operate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pgapply/apply/state"
	"pgapply/conflict"
	"pgapply/internal/plain"
)

// Text writes the report for a person: one line for each thing, the name of the
// thing in the first column, problems last.
func (r *Report) Text() string {
	var page page
	enabled := "enabled"
	if !r.Enabled {
		enabled = r.paused()
	}
	page.line("subscription", "%s (%s)", r.Subscription, enabled)
	r.runnerLines(&page)
	page.line("target", "PostgreSQL %s, database %s", version(r.Target.Version), r.Target.Database)
	r.publisherLines(&page)
	if r.Slot.Name != "" {
		page.line("slot", "%s", r.slotLine())
	}
	if r.Status != nil {
		statusLines(&page, r.Status, r.sinceSnapshot(), r.lagText(r.sinceSnapshot()))
	} else {
		page.line("acknowledged", "%s", r.Slot.Acknowledged)
		page.line("lag", "%s", r.lagText(0))
	}
	if r.SkipLSN != nil {
		page.line("to skip", "the transaction that finishes at %s", r.SkipLSN)
	}
	page.line("tables", "%s", tablesLine(r.Tables))
	if len(r.DeferredIndexes) > 0 {
		page.line("indexes", "%d to be made again after the copy", len(r.DeferredIndexes))
	}
	page.line("conflicts", "%s", conflictsLine(r.Conflicts))
	if r.OldestPreparedAt != nil {
		page.line("prepared", "%s, the oldest since %s", counted(int64(r.Prepared), "transaction"), moment(*r.OldestPreparedAt))
	}
	if r.LastError != "" {
		when := ""
		if r.LastErrorAt != nil {
			when = " (" + moment(*r.LastErrorAt) + ")"
		}
		page.line("last error", "%s%s", r.LastError, when)
		if r.LastErrorHint != "" {
			page.line("  remedy", "%s", r.LastErrorHint)
		}
	}
	for _, problem := range r.Problems {
		page.line("attention", "%s", problem)
	}
	return page.text.String()
}

// page is a text of lines with a label each.
type page struct{ text strings.Builder }

func (p *page) line(label, format string, arguments ...any) {
	fmt.Fprintf(&p.text, "%-14s%s\n", label, plain.Line(fmt.Sprintf(format, arguments...)))
}

func (r *Report) runnerLines(page *page) {
	switch {
	case r.Runner.Lock == "":
		page.line("runner", "none")
	case !r.Runner.Alive:
		page.line("runner", "silent for %s; lock held by %s", seconds(r.Runner.HeartbeatAge), r.Runner.Lock)
	case r.Runner.PID == 0:
		page.line("runner", "starting; lock held by %s", r.Runner.Lock)
	default:
		phase := "starting"
		if r.Status != nil {
			phase = fmt.Sprintf("%s for %s", r.Status.Phase, duration(r.Status.UpdatedAt.Sub(r.Status.Since)+r.sinceSnapshot()))
			if r.Status.WaitingFor != "" {
				phase += ": " + r.Status.WaitingFor
			}
		}
		page.line("runner", "%s; process %d on %s, pgapply %s, up %s, heartbeat %s ago",
			phase, r.Runner.PID, r.Runner.Host, r.Runner.Version, seconds(r.Runner.Uptime), seconds(r.Runner.HeartbeatAge))
	}
}

// sinceSnapshot is how old the runner's last word is, by the target's clock. What
// the runner says of times is by its own, which may differ: only differences of one
// clock count.
func (r *Report) sinceSnapshot() time.Duration {
	return time.Duration(r.Runner.HeartbeatAge * float64(time.Second))
}

func (r *Report) publisherLines(page *page) {
	switch publisher := r.Publisher; {
	case publisher != nil && publisher.Reachable:
		page.line("publisher", "PostgreSQL %s, database %s, at %s", version(publisher.Version), publisher.Database, publisher.Current)
	case publisher != nil:
		page.line("publisher", "not reachable")
	case r.Status != nil && r.Status.Publisher.Version > 0:
		page.line("publisher", "PostgreSQL %s, database %s (not asked)", version(r.Status.Publisher.Version), r.Status.Publisher.Database)
	default:
		page.line("publisher", "not asked")
	}
}

func (r *Report) slotLine() string {
	line := fmt.Sprintf("%s (%s)", r.Slot.Name, r.Slot.State)
	if r.Publisher == nil || !r.Publisher.Reachable {
		return line
	}
	slot := r.Publisher.Slot
	if slot == nil {
		return line + ", not there"
	}
	if slot.Lost != "" {
		return line + ", lost: " + slot.Lost
	}
	if slot.Active {
		line += fmt.Sprintf(", in use by process %d", slot.ActivePID)
	} else {
		line += ", not in use"
	}
	return fmt.Sprintf("%s; confirmed %s, %s behind, keeps %s of WAL%s", line, slot.ConfirmedFlush, size(r.Publisher.LagBytes), size(slot.RetainedBytes), slot.headroom())
}

// headroom says how the publisher sees what the slot keeps.
func (s *SlotView) headroom() string {
	switch {
	case s.WALStatus == "":
		return ""
	case s.SafeBytes == nil:
		return fmt.Sprintf(" (%s, without a limit)", s.WALStatus)
	}
	return fmt.Sprintf(" (%s, and may keep %s more)", s.WALStatus, size(max(0, *s.SafeBytes)))
}

// statusLines shows a snapshot of that age, with the lag in words.
func statusLines(page *page, status *state.Status, age time.Duration, lag string) {
	stream := status.Stream
	if stream.Protocol > 0 {
		format := "text"
		if stream.Binary {
			format = "binary"
		}
		twoPhase := ""
		if stream.TwoPhase {
			twoPhase = ", two-phase"
		}
		page.line("stream", "publications %s; protocol %d, streaming %s%s, %s, origin %s",
			strings.Join(stream.Publications, ", "), stream.Protocol, stream.Streaming, twoPhase, format, stream.Origin)
	}
	if stream.Progress == state.InTable {
		page.line("progress", "in a table, without replication origins")
	}
	if stream.Fires {
		page.line("triggers", "fire for what is applied, as rules and foreign keys do")
	}
	if status.Copy != nil {
		copyLines(page, status.Copy, status.UpdatedAt)
	}
	page.line("received", "%s", status.Received)
	page.line("applied", "%s", status.Applied)
	page.line("flushed", "%s", status.Flushed)
	page.line("acknowledged", "%s", status.Acknowledged)
	page.line("lag", "%s", lag)
	page.line("done", "%s in %s; rows: %s inserted, %s updated, %s deleted; %s", counted(status.Transactions, "transaction"),
		counted(status.Groups, "group"), count(status.Rows.Inserted), count(status.Rows.Updated), count(status.Rows.Deleted),
		counted(status.Rows.Truncated, "truncation"))
	if status.ParallelGroups+status.ParallelReplays > 0 {
		page.line("in parallel", "%s; %s at their turn instead", counted(status.ParallelGroups, "group"), count(status.ParallelReplays))
	}
	if status.Misses != (state.Misses{}) {
		page.line("missing rows", "%s, %s", counted(status.Misses.Update, "update"), counted(status.Misses.Delete, "delete"))
	}
	if status.Messages > 0 {
		page.line("messages", "%s", count(status.Messages))
	}
	for _, table := range status.RowByRow {
		page.line("row by row", "%s: %s", table.Table, table.Reason)
	}
	for _, worker := range status.Workers {
		workerLine(page, worker, status.UpdatedAt, age)
	}
	page.line("memory", "%s; spool %s; %s", part(status.MemoryBytes, status.MemoryLimit), part(status.SpoolBytes, status.SpoolLimit),
		counted(int64(status.OpenStreams), "open stream"))
	if status.Retries > 0 {
		page.line("retries", "%s", count(status.Retries))
	}
}

func copyLines(page *page, c *state.Copy, at time.Time) {
	page.line("copied", "%s", CopyLine(c, at))
	for i := range c.Running {
		page.line("  copying", "%s: %s", c.Running[i].Table, CopyTableLine(&c.Running[i]))
	}
}

// workerLine shows a session that applies, unless it is idle.
func workerLine(page *page, worker state.Worker, at time.Time, age time.Duration) {
	if worker.State == "idle" {
		return
	}
	line := fmt.Sprintf("%s for %s", worker.State, duration(at.Sub(worker.Since)+age))
	if worker.XID != 0 {
		line += fmt.Sprintf("; transaction %d, %s so far", worker.XID, counted(worker.Changes, "change"))
	}
	if worker.Transactions > 0 {
		line += "; group of " + counted(int64(worker.Transactions), "transaction")
	}
	if worker.WaitingFor != "" {
		line += "; waits for " + worker.WaitingFor
	}
	page.line(fmt.Sprintf("worker %d", worker.Number), "%s (server process %d)", line, worker.PID)
}

// part writes an amount with its limit, where there is one.
func part(amount, limit int64) string {
	if limit <= 0 {
		return size(amount)
	}
	return size(amount) + " of " + size(limit)
}

// tablesLine names the states in the order in which a table passes them.
func tablesLine(tables map[string]int) string {
	var parts []string
	for _, letter := range []state.TableState{state.TableInit, state.TableDataSync, state.TableFinishedCopy, state.TableSyncDone, state.TableReady} {
		if n := tables[string(rune(letter))]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, letter))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// conflictsLine names the types in their own order, and then those that are not of a
// conflict, or of a later version.
func conflictsLine(stats state.ConflictStats) string {
	if stats.Total == 0 {
		return "none recorded"
	}
	names := slices.Sorted(maps.Keys(stats.Types))
	order := func(name string) int {
		if place := slices.Index(conflict.Types(), conflict.Type(name)); place >= 0 {
			return place
		}
		return len(conflict.Types())
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	var parts []string
	for _, name := range names {
		parts = append(parts, count(stats.Types[name])+" "+name)
	}
	line := strings.Join(parts, ", ")
	if stats.Last != nil {
		line += "; the last at " + moment(*stats.Last)
	}
	return line + "; the table takes " + size(stats.Bytes)
}
