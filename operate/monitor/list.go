package monitor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pgapply/apply/state"
	"pgapply/conflict"
	"pgapply/operate"
)

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// phases and tableStates are closed lists, in the order in which they come about.
func phases() []state.Phase {
	return []state.Phase{
		state.Starting, state.Waiting, state.Copying, state.Streaming, state.Retrying, state.Paused, state.Stopped,
	}
}

func tableStates() []state.TableState {
	return []state.TableState{
		state.TableInit, state.TableDataSync, state.TableFinishedCopy, state.TableSyncDone, state.TableReady,
	}
}

// workerStates are those of state.Worker.
func workerStates() []string {
	return []string{"idle", "applying", "waiting", "finishing", "rolling back"}
}

// texts are the values of a label.
func texts[T any](list []T, text func(T) string) []string {
	out := make([]string, len(list))
	for i, item := range list {
		out[i] = text(item)
	}
	return out
}

// one is for a metric that always has one value.
func one(value func(*seen) float64) func(*seen, func(string, float64)) {
	return func(s *seen, set func(string, float64)) { set("", value(s)) }
}

// some is for a metric whose value is there only while it is known.
func some(value func(*seen) (float64, bool)) func(*seen, func(string, float64)) {
	return func(s *seen, set func(string, float64)) {
		if v, known := value(s); known {
			set("", v)
		}
	}
}

// each is for one value for each of a closed list.
func each[T any](list []T, text func(T) string, value func(*seen, T) float64) func(*seen, func(string, float64)) {
	return func(s *seen, set func(string, float64)) {
		for _, item := range list {
			set(text(item), value(s, item))
		}
	}
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// stamp is a time in seconds since 1970.
func stamp(t *time.Time) (float64, bool) {
	if t == nil || t.IsZero() {
		return 0, false
	}
	return float64(t.UnixMilli()) / 1000, true
}

// slot is the publisher's view of the slot, where there is one.
func (s *seen) slot() *operate.SlotView {
	if s.report.Publisher == nil || !s.report.Publisher.Reachable {
		return nil
	}
	return s.report.Publisher.Slot
}

// slotValue is some for what is known of the slot.
func slotValue(value func(*operate.SlotView) float64) func(*seen, func(string, float64)) {
	return some(func(s *seen) (float64, bool) {
		if slot := s.slot(); slot != nil {
			return value(slot), true
		}
		return 0, false
	})
}

// copyValue is some for what is known of a copy that goes on.
func copyValue(value func(*state.Copy) float64) func(*seen, func(string, float64)) {
	return some(func(s *seen) (float64, bool) {
		if s.status.Copy == nil {
			return 0, false
		}
		return value(s.status.Copy), true
	})
}

// buildName is the one metric that is not about the subscription.
const (
	buildName = "pgapply_build_info"
	buildHelp = "Always 1: version and commit of this program, and the version of Go that it was built with."
)

// list is everything that is measured, in the order of docs/metrics.md.
func list() []metric {
	var all []metric
	for _, section := range sections() {
		all = append(all, section.metrics...)
	}
	return all
}

// section is a heading of docs/metrics.md.
type section struct {
	title   string
	metrics []metric
}

func sections() []section {
	return []section{
		{"How it is doing", condition()},
		{"Where it is", positions()},
		{"What it has applied", work()},
		{"Conflicts and errors", trouble()},
		{"Tables and copies", tables()},
		{"What it uses", resources()},
		{"The slot on the publisher", slots()},
	}
}

func condition() []metric {
	phase := func(p state.Phase) string { return string(p) }
	return []metric{
		{
			name: "pgapply_ready", kind: gauge, help: "1 while /readyz says so: it streams, all tables are ready, and the lag is below --ready-lag.",
			read: one(func(s *seen) float64 { return truth(s.ready) }),
		},
		{
			name: "pgapply_state", kind: gauge, label: "state", values: texts(phases(), phase), help: "1 for what the runner is doing, 0 for the others.",
			read: each(phases(), phase, func(s *seen, p state.Phase) float64 { return truth(s.status.Phase == p) }),
		},
		{
			name: "pgapply_state_since_timestamp_seconds", kind: gauge, help: "When it began to do that, in seconds since 1970.",
			read: some(func(s *seen) (float64, bool) { return stamp(&s.status.Since) }),
		},
		{
			name: "pgapply_enabled", kind: gauge, help: "0 while somebody, or --on-error pause, has paused the subscription.",
			read: one(func(s *seen) float64 { return truth(s.report.Enabled) }),
		},
		{
			name: "pgapply_pulse_timestamp_seconds", kind: gauge, help: "When the engine's own loops have last shown that they turn. /healthz fails when that is three minutes ago.",
			read: some(func(s *seen) (float64, bool) { return stamp(&s.pulse) }),
		},
		{
			name: "pgapply_records_timestamp_seconds", kind: gauge, help: "When tables, recorded conflicts and prepared transactions were last read from the target: seconds ago while it streams.",
			read: some(func(s *seen) (float64, bool) { return stamp(&s.read) }),
		},
	}
}

func positions() []metric {
	kinds := []string{"received", "applied", "flushed", "acknowledged"}
	name := func(k string) string { return k }
	return []metric{
		{
			name: "pgapply_lag_bytes", kind: gauge, help: "Bytes of the publisher's WAL that were received and are not applied. While it does not stream: what lies between the publisher's end and what is applied, where the publisher could be asked.",
			read: some(func(s *seen) (float64, bool) { return float64(s.report.Lag.Bytes), s.report.Lag.Known }),
		},
		{
			name: "pgapply_lag_seconds", kind: gauge, help: "How old the oldest committed transaction is that was received and is not applied; 0 while there is none. Only while it streams.",
			read: some(func(s *seen) (float64, bool) {
				return s.report.Lag.Seconds, s.report.Lag.Known && s.report.Lag.Streaming
			}),
		},
		{
			name: "pgapply_last_commit_timestamp_seconds", kind: gauge, help: "When the last applied transaction committed on the publisher, by its clock.",
			read: some(func(s *seen) (float64, bool) { return stamp(s.status.LastCommitTime) }),
		},
		{
			name: "pgapply_position_bytes", kind: gauge, label: "position", values: kinds,
			help: "Positions in the publisher's WAL, as bytes since its beginning: read from the socket, committed on the target, durable there, told to the publisher.",
			read: each(kinds, name, func(s *seen, kind string) float64 {
				switch kind {
				case "received":
					return float64(s.status.Received)
				case "applied":
					return float64(s.status.Applied)
				case "flushed":
					return float64(s.status.Flushed)
				}
				return float64(s.status.Acknowledged)
			}),
		},
	}
}

func work() []metric {
	operations := []string{"insert", "update", "delete", "truncate"}
	name := func(o string) string { return o }
	return []metric{
		{
			name: "pgapply_transactions_total", kind: counter, help: "Transactions of the publisher that were applied and committed.",
			read: one(func(s *seen) float64 { return float64(s.status.Transactions) }),
		},
		{
			name: "pgapply_rows_total", kind: counter, label: "operation", values: operations, help: "Rows that were applied and committed, and truncated tables.",
			read: each(operations, name, func(s *seen, operation string) float64 {
				switch operation {
				case "insert":
					return float64(s.status.Rows.Inserted)
				case "update":
					return float64(s.status.Rows.Updated)
				case "delete":
					return float64(s.status.Rows.Deleted)
				}
				return float64(s.status.Rows.Truncated)
			}),
		},
		{
			name: "pgapply_messages_total", kind: counter, help: "Logical messages, where --messages asks for them.",
			read: one(func(s *seen) float64 { return float64(s.status.Messages) }),
		},
		{
			name: "pgapply_groups_total", kind: counter, help: "Transactions on the target that hold one or more of the publisher's.",
			read: one(func(s *seen) float64 { return float64(s.status.Groups) }),
		},
		{
			name: "pgapply_replays_total", kind: counter, help: "Groups that did not go as expected, and were applied again in smaller ones.",
			read: one(func(s *seen) float64 { return float64(s.status.Replays) }),
		},
		{
			name: "pgapply_parallel_groups_total", kind: counter, help: "Groups that a worker applied beside those before them.",
			read: one(func(s *seen) float64 { return float64(s.status.ParallelGroups) }),
		},
		{
			name: "pgapply_parallel_replays_total", kind: counter, help: "Groups that a worker could not apply beside those before them, and that were applied at their turn.",
			read: one(func(s *seen) float64 { return float64(s.status.ParallelReplays) }),
		},
		{
			name: "pgapply_row_by_row_tables", kind: gauge, help: "Tables that had changes and whose changes are applied one by one, as `status` explains.",
			read: one(func(s *seen) float64 { return float64(len(s.status.RowByRow)) }),
		},
	}
}

func trouble() []metric {
	kind := func(t conflict.Type) string { return string(t) }
	return []metric{
		{
			name: "pgapply_conflicts_total", kind: counter, label: "type", values: texts(conflict.Types(), kind), help: "Conflicts that this runner has met, resolved or not.",
			read: each(conflict.Types(), kind, func(s *seen, t conflict.Type) float64 { return float64(s.status.Conflicts[t]) }),
		},
		{
			name: "pgapply_conflicts_recorded", kind: gauge, help: "Records in table pgapply.conflict, with the rows of skipped transactions, until they are cleared or too old.",
			read: some(func(s *seen) (float64, bool) { return float64(s.report.Conflicts.Total), !s.read.IsZero() }),
		},
		{
			name: "pgapply_retries_total", kind: counter, help: "How often the subscription was started over after an error.",
			read: one(func(s *seen) float64 { return float64(s.status.Retries) }),
		},
		{
			name: "pgapply_last_error", kind: gauge, help: "1 while the last error is not known to be over; /status says which one it is.",
			read: one(func(s *seen) float64 { return truth(s.report.LastError != "") }),
		},
		{
			name: "pgapply_last_error_timestamp_seconds", kind: gauge, help: "When it was.",
			read: some(func(s *seen) (float64, bool) { return stamp(s.report.LastErrorAt) }),
		},
		{
			name: "pgapply_prepared_transactions", kind: gauge, help: "Transactions that are prepared on the target and whose end the publisher has not told yet.",
			read: some(func(s *seen) (float64, bool) { return float64(s.report.Prepared), !s.read.IsZero() }),
		},
		{
			name: "pgapply_oldest_prepared_timestamp_seconds", kind: gauge, help: "When the oldest of them was prepared.",
			read: some(func(s *seen) (float64, bool) { return stamp(s.report.OldestPreparedAt) }),
		},
	}
}

func tables() []metric {
	word := func(t state.TableState) string { return t.String() }
	return []metric{
		{
			name: "pgapply_tables", kind: gauge, label: "state", values: texts(tableStates(), word), help: "Tables of the subscription by their state. Those that are ready take part in the stream.",
			read: func(s *seen, set func(string, float64)) {
				if s.read.IsZero() {
					return
				}
				for _, t := range tableStates() {
					set(t.String(), float64(s.report.Tables[string(rune(t))]))
				}
			},
		},
		{
			name: "pgapply_failed_tables", kind: gauge, help: "Tables whose last copy has failed; each is tried again.",
			read: some(func(s *seen) (float64, bool) {
				failed := 0
				for _, table := range s.report.TablesNotReady {
					if table.LastError != "" {
						failed++
					}
				}
				return float64(failed), !s.read.IsZero()
			}),
		},
		{
			name: "pgapply_copy_tables", kind: gauge, help: "Tables of the copy that goes on. This one and those below are there only while one does.",
			read: copyValue(func(c *state.Copy) float64 { return float64(c.Tables) }),
		},
		{
			name: "pgapply_copy_tables_done", kind: gauge, help: "How many of them are copied.",
			read: copyValue(func(c *state.Copy) float64 { return float64(c.Done) }),
		},
		{
			name: "pgapply_copy_rows", kind: gauge, help: "Rows copied so far.",
			read: copyValue(func(c *state.Copy) float64 { return float64(c.Rows) }),
		},
		{
			name: "pgapply_copy_estimated_rows", kind: gauge, help: "Rows that there are to copy, by the publisher's statistics.",
			read: copyValue(func(c *state.Copy) float64 { return float64(c.EstimatedRows) }),
		},
		{
			name: "pgapply_copy_bytes", kind: gauge, help: "Bytes copied so far.",
			read: copyValue(func(c *state.Copy) float64 { return float64(c.Bytes) }),
		},
		{
			name: "pgapply_copy_ratio", kind: gauge, help: "How much of the copy is done, from 0 to 1; an estimate.",
			read: copyValue(func(c *state.Copy) float64 { return c.Share }),
		},
		{
			name: "pgapply_deferred_indexes", kind: gauge, help: "Indexes that --defer-indexes has dropped and that are not made again yet.",
			read: some(func(s *seen) (float64, bool) { return float64(len(s.report.DeferredIndexes)), !s.read.IsZero() }),
		},
	}
}

func resources() []metric {
	return []metric{
		{
			name: "pgapply_workers", kind: gauge, label: "state", values: workerStates(), help: "Sessions that apply, by what they are doing.",
			read: each(workerStates(), func(w string) string { return w }, func(s *seen, doing string) float64 {
				count := 0
				for _, worker := range s.status.Workers {
					if worker.State == doing {
						count++
					}
				}
				return float64(count)
			}),
		},
		{
			name: "pgapply_target_silent_seconds", kind: gauge, help: "For how long the target has left a question without an answer, once that is longer than usual; 0 else. At --target-timeout it is given up, unless it works on it.",
			read: one(func(s *seen) float64 {
				if s.status.TargetSilentSince == nil {
					return 0
				}
				return s.status.UpdatedAt.Sub(*s.status.TargetSilentSince).Seconds()
			}),
		},
		{
			name: "pgapply_memory_bytes", kind: gauge, help: "Changes that are held in memory.",
			read: one(func(s *seen) float64 { return float64(s.status.MemoryBytes) }),
		},
		{
			name: "pgapply_memory_limit_bytes", kind: gauge, help: "--memory-limit.",
			read: one(func(s *seen) float64 { return float64(s.status.MemoryLimit) }),
		},
		{
			name: "pgapply_spool_bytes", kind: gauge, help: "Changes that are held in files.",
			read: one(func(s *seen) float64 { return float64(s.status.SpoolBytes) }),
		},
		{
			name: "pgapply_spool_limit_bytes", kind: gauge, help: "--spool-limit.",
			read: one(func(s *seen) float64 { return float64(s.status.SpoolLimit) }),
		},
		{
			name: "pgapply_open_streams", kind: gauge, help: "Transactions that have arrived in part, since they are still running on the publisher.",
			read: one(func(s *seen) float64 { return float64(s.status.OpenStreams) }),
		},
	}
}

func slots() []metric {
	return []metric{
		{
			name: "pgapply_publisher_reachable", kind: gauge, help: "1 if the publisher answered when it was last asked about the slot, which happens twice a minute.",
			read: some(func(s *seen) (float64, bool) {
				return truth(s.report.Publisher != nil && s.report.Publisher.Reachable), !s.asked.IsZero()
			}),
		},
		{
			name: "pgapply_publisher_asked_timestamp_seconds", kind: gauge, help: "When that was.",
			read: some(func(s *seen) (float64, bool) { return stamp(&s.asked) }),
		},
		{
			name: "pgapply_slot_retained_bytes", kind: gauge, help: "WAL that the slot keeps on the publisher. A disk that fills up there stops the publisher.",
			read: slotValue(func(v *operate.SlotView) float64 { return float64(v.RetainedBytes) }),
		},
		{
			name: "pgapply_slot_safe_bytes", kind: gauge, help: "WAL that may still come until the publisher gives the slot up for max_slot_wal_keep_size; not there without such a limit.",
			read: some(func(s *seen) (float64, bool) {
				if slot := s.slot(); slot != nil && slot.SafeBytes != nil {
					return float64(*slot.SafeBytes), true
				}
				return 0, false
			}),
		},
		{
			name: "pgapply_slot_lag_bytes", kind: gauge, help: "WAL between the publisher's end and what it was told is durable on the target, published or not.",
			read: some(func(s *seen) (float64, bool) {
				if s.slot() == nil {
					return 0, false
				}
				return float64(s.report.Publisher.LagBytes), true
			}),
		},
		{
			name: "pgapply_slot_active", kind: gauge, help: "1 while somebody receives from the slot.",
			read: slotValue(func(v *operate.SlotView) float64 { return truth(v.Active) }),
		},
		{
			name: "pgapply_slot_lost", kind: gauge, help: "1 when the slot can never be used again: the tables need a new copy.",
			read: slotValue(func(v *operate.SlotView) float64 { return truth(v.Lost != "") }),
		},
	}
}
