package operate

import (
	"context"
	"fmt"
	"time"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/source"
)

// publisherPatience bounds how long a status waits for the publisher.
const publisherPatience = 10 * time.Second

// Report is what there is to know about a subscription at one moment. The JSON
// names are stable: fields are added, never renamed.
type Report struct {
	Subscription string `json:"subscription"`
	// Enabled is false while the subscription is paused, since PausedAt and for
	// PauseReason, which may be empty.
	Enabled     bool       `json:"enabled"`
	PausedAt    *time.Time `json:"paused_at,omitempty"`
	PauseReason string     `json:"pause_reason,omitempty"`
	// SkipLSN is where the transaction ends that is to be skipped; nil for none.
	SkipLSN *state.Position `json:"skip_lsn,omitempty"`
	Target  TargetView      `json:"target"`
	Runner  RunnerView      `json:"runner"`
	Slot    SlotRecord      `json:"slot"`
	// Publisher is nil when no --source was given.
	Publisher *PublisherView `json:"publisher,omitempty"`
	Lag       Lag            `json:"lag"`
	// Status is the runner's last word, which may be old: see Runner. It is nil
	// when none was recorded, as after an orderly stop.
	Status *state.Status `json:"status,omitempty"`
	// Tables counts tables by the letter of their state.
	Tables map[string]int `json:"tables"`
	// TablesNotReady are the tables that do not take part in the stream yet.
	TablesNotReady []TableView `json:"not_ready"`
	// AllTables are all of them, where --tables asked for them: see ListTables.
	AllTables []TableView `json:"all_tables,omitempty"`
	tables    []state.Table
	// cutOver: the pause is the end of a cutover.
	cutOver bool
	// DeferredIndexes are those that were dropped for a copy and are not made again yet,
	// as index and table.
	DeferredIndexes []string `json:"deferred_indexes,omitempty"`
	// Conflicts are those that are recorded on the target.
	Conflicts state.ConflictStats `json:"conflicts"`
	// Prepared counts the prepared transactions on the target whose end the publisher
	// has not told yet; the oldest is there since OldestPreparedAt.
	Prepared         int        `json:"prepared_transactions"`
	OldestPreparedAt *time.Time `json:"oldest_prepared_at,omitempty"`
	// LastError is the runner's, or the one that stopped the subscription.
	LastError     string     `json:"last_error,omitempty"`
	LastErrorHint string     `json:"last_error_hint,omitempty"`
	LastErrorAt   *time.Time `json:"last_error_at,omitempty"`
	// Problems are what an operator should look at, most important first.
	Problems []string `json:"problems"`
}

// TargetView is the database that the subscription writes to.
type TargetView struct {
	Version  int    `json:"server_version"`
	SystemID string `json:"system_id"`
	Database string `json:"database"`
}

// RunnerView is the process that runs the subscription.
type RunnerView struct {
	// Alive: a session holds the runner lock, and the heartbeat is not old.
	Alive bool `json:"alive"`
	// Lock describes the session that holds the runner lock; empty for none.
	Lock string `json:"lock,omitempty"`
	// PID to Uptime come from the runner row and are empty without one.
	PID          int        `json:"pid,omitempty"`
	Host         string     `json:"host,omitempty"`
	Version      string     `json:"version,omitempty"`
	StartedAt    *time.Time `json:"started_at,omitempty"`
	HeartbeatAge float64    `json:"heartbeat_age_seconds,omitempty"`
	// Uptime is how long the process lives, up to now for one that does, by the target's clock.
	Uptime float64 `json:"uptime_seconds,omitempty"`
}

// SlotRecord is what the state says about the slot. It is empty before the
// first slot was recorded.
type SlotRecord struct {
	Name            string          `json:"name,omitempty"`
	State           state.SlotState `json:"state,omitempty"`
	ConsistentPoint state.Position  `json:"consistent_point"`
	Acknowledged    state.Position  `json:"acknowledged_lsn"`
}

// PublisherView is what the publisher itself says.
type PublisherView struct {
	Reachable bool `json:"reachable"`
	// Error is why it could not be asked.
	Error    string         `json:"error,omitempty"`
	Version  int            `json:"server_version,omitempty"`
	SystemID string         `json:"system_id,omitempty"`
	Database string         `json:"database,omitempty"`
	Current  state.Position `json:"current_lsn"`
	// Slot is nil when the publisher has no slot of the recorded name.
	Slot *SlotView `json:"slot,omitempty"`
	// LagBytes is how much WAL lies between the publisher's end and the position
	// that it was told is durable on the target.
	LagBytes int64 `json:"lag_bytes"`
}

// SlotView is the publisher's view of the slot.
type SlotView struct {
	Active         bool           `json:"active"`
	ActivePID      int            `json:"active_pid,omitempty"`
	ConfirmedFlush state.Position `json:"confirmed_flush_lsn"`
	Restart        state.Position `json:"restart_lsn"`
	WALStatus      string         `json:"wal_status,omitempty"`
	// Lost is why the slot can never be used again; empty while it can.
	Lost string `json:"lost,omitempty"`
	// RetainedBytes is how much WAL the slot keeps on the publisher, SafeBytes how much may
	// come until it is in danger: nil where there is no limit, as before 13, and may be
	// negative.
	RetainedBytes int64  `json:"retained_bytes"`
	SafeBytes     *int64 `json:"safe_wal_size,omitempty"`
}

// ReadStatus asks the target, and the publisher where Source is given. A
// publisher that cannot be reached and a runner that does not live are findings
// and not errors; they are among the Problems.
func ReadStatus(ctx context.Context, ends Endpoints) (*Report, error) {
	target, store, err := ends.openState(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	seen, err := observe(ctx, target, store)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	if seen.subscription == nil && seen.runner == nil && seen.holder == nil {
		return nil, target.unknown(ctx, store)
	}
	report := newReport(ends.Name, target.server, seen)
	if ends.Source != "" {
		report.addPublisher(ctx, ends, seen.subscription)
	}
	return report, nil
}

// observation is everything that the state on the target says.
type observation struct {
	subscription *state.Subscription
	runner       *state.Runner
	holder       *state.Holder
	tables       []state.Table
	indexes      []string
	conflicts    state.ConflictStats
	prepared     []state.Prepared // the oldest first
}

func observe(ctx context.Context, session *targetSession, store *state.Store) (seen observation, err error) {
	if seen, err = glance(ctx, store); err != nil {
		return seen, err
	}
	if seen.indexes, err = store.WaitingIndexes(ctx); err != nil {
		return seen, err
	}
	if seen.conflicts, err = store.ConflictStats(ctx); err != nil {
		return seen, err
	}
	seen.prepared, err = store.Prepared(ctx, session.preparedPrefix(store.Name()))
	return seen, err
}

// glance is what of it costs nothing, for those who look again and again.
func glance(ctx context.Context, store *state.Store) (seen observation, err error) {
	if seen.subscription, err = store.Subscription(ctx); err != nil {
		return seen, err
	}
	if seen.tables, err = store.Tables(ctx); err != nil {
		return seen, err
	}
	// The holder first: a runner takes the lock before it writes its row.
	if seen.holder, err = store.LockHolder(ctx); err != nil {
		return seen, err
	}
	seen.runner, err = store.Runner(ctx)
	return seen, err
}

// newReport is ReadStatus without the publisher and without any connection.
func newReport(name string, server state.Target, seen observation) *Report {
	report := &Report{
		Subscription:   name,
		Enabled:        true,
		Target:         TargetView{Version: server.Version, SystemID: server.SystemID, Database: server.Database},
		Tables:         state.CountTables(seen.tables),
		TablesNotReady: tablesNotReady(seen.tables, name), DeferredIndexes: seen.indexes, tables: seen.tables,
		Conflicts: seen.conflicts,
		Prepared:  len(seen.prepared),
		Problems:  []string{},
	}
	if len(seen.prepared) > 0 {
		report.OldestPreparedAt = &seen.prepared[0].Since
	}
	if sub := seen.subscription; sub != nil {
		report.addPause(sub)
		if sub.SkipLSN != 0 {
			skip := state.Position(sub.SkipLSN)
			report.SkipLSN = &skip
		}
		report.Slot = SlotRecord{
			Name: sub.SlotName, State: sub.SlotState,
			ConsistentPoint: state.Position(sub.ConsistentPoint), Acknowledged: state.Position(sub.AckLSN),
		}
		report.LastError, report.LastErrorHint, report.LastErrorAt = sub.LastError, sub.LastErrorHint, sub.LastErrorAt
	}
	report.addRunner(seen.holder, seen.runner)
	report.LastError, report.LastErrorHint = Named(report.LastError, name), Named(report.LastErrorHint, name)
	report.measureLag()
	if !report.Enabled {
		report.problem("the subscription is %s: %s", report.paused(), report.goOn())
	}
	if report.Runner.Alive {
		report.addStandstill()
	}
	report.addCopying()
	if sub := seen.subscription; sub != nil && (sub.TargetSystemID != server.SystemID || sub.TargetDatabaseOID != server.DatabaseOID) {
		report.problem("the state was written on another server or database: this is a copy of the target, which must not run as the original")
	}
	return report
}

func (r *Report) problem(format string, arguments ...any) {
	r.Problems = append(r.Problems, Named(fmt.Sprintf(format, arguments...), r.Subscription))
}

func (r *Report) addPause(sub *state.Subscription) {
	r.Enabled, r.PausedAt, r.PauseReason, r.cutOver = sub.Enabled, sub.PausedAt, sub.PauseReason, sub.CutOver()
}

// paused says since when and why.
func (r *Report) paused() string {
	if r.cutOver {
		return r.PauseReason + ", " + moment(*r.PausedAt)
	}
	text := "paused"
	if r.PausedAt != nil {
		text += " since " + moment(*r.PausedAt)
	}
	if r.PauseReason != "" {
		text += ": " + r.PauseReason
	}
	return text
}

// goOn says what a pause waits for.
func (r *Report) goOn() string {
	if r.cutOver {
		return "the new server is the one that writes; `pgapply cleanup` when there is no way back any more"
	}
	return "`pgapply resume` lets it go on"
}

// addStandstill says why a runner that lives applies nothing.
func (r *Report) addStandstill() {
	if r.Status == nil {
		return
	}
	switch r.Status.Phase {
	case state.Waiting:
		r.problem("the runner waits%s", after(": ", r.Status.WaitingFor))
	case state.Paused:
		if r.Enabled {
			r.problem("the runner is still paused: the subscription was resumed, which it has not noticed yet")
		}
	case state.Retrying, state.Starting, state.Copying, state.Streaming, state.Stopped:
		// A try that has just begun has not shown yet that the error is gone.
		if r.LastError != "" {
			r.problem("the runner tries again after an error: %s", r.LastError)
		}
	}
}

// addRunner decides whether a runner lives. Lock and row are read one after the
// other, so a runner that is just starting or ending may show only one of them.
func (r *Report) addRunner(holder *state.Holder, runner *state.Runner) {
	if holder != nil {
		r.Runner.Lock = holder.String()
	}
	if runner == nil {
		switch {
		case holder != nil:
		case r.LastError != "":
			r.problem("no runner lives; the last error was: %s%s", r.LastError, after("; remedy: ", r.LastErrorHint))
			return
		default:
			r.problem("no runner lives: the last one ended in order, or none was started here")
			return
		}
		r.Runner.Alive = true
		r.problem("a runner is starting: it holds the runner lock and has not reported yet")
		return
	}
	r.Runner.PID, r.Runner.Host, r.Runner.Version = runner.PID, runner.Host, runner.Version
	r.Runner.StartedAt = &runner.StartedAt
	r.Runner.HeartbeatAge = runner.HeartbeatAge.Seconds()
	r.Runner.Uptime = (runner.Heartbeat.Sub(runner.StartedAt) + runner.HeartbeatAge).Seconds()
	if runner.Status != nil {
		status := *runner.Status
		status.LastError, status.LastErrorHint = Named(status.LastError, r.Subscription), Named(status.LastErrorHint, r.Subscription)
		status.WaitingFor = Named(status.WaitingFor, r.Subscription)
		r.Status = &status
	}
	if runner.LastError != "" {
		r.LastError, r.LastErrorHint, r.LastErrorAt = runner.LastError, runner.LastErrorHint, nil
		if runner.Status != nil {
			r.LastErrorAt = runner.Status.LastErrorAt
		}
	}
	age := duration(runner.HeartbeatAge)
	switch {
	case holder == nil:
		r.problem("no runner lives: process %d on %s ended without order, its last sign of life was %s ago", runner.PID, runner.Host, age)
	case runner.HeartbeatAge > state.Silence:
		r.problem("the runner hangs: process %d on %s gave no sign of life for %s, and the runner lock is held by %s",
			runner.PID, runner.Host, age, holder)
	default:
		r.Runner.Alive = true
	}
}

func (r *Report) addPublisher(ctx context.Context, ends Endpoints, sub *state.Subscription) {
	r.judgePublisher(ReadPublisher(ctx, ends, r.Slot.Name), sub)
}

// judgePublisher adds what the publisher said.
func (r *Report) judgePublisher(view *PublisherView, sub *state.Subscription) {
	r.Publisher = view
	if !view.Reachable {
		r.problem("the publisher cannot be asked: %s", view.Error)
		return
	}
	if sub == nil {
		return
	}
	if sub.Source.SystemID != view.SystemID || sub.Source.Database != view.Database {
		r.problem("--source is not the publisher of this subscription: it is database %q of system %s, the state has %q of system %s",
			view.Database, view.SystemID, sub.Source.Database, sub.Source.SystemID)
		return
	}
	r.measureLag()
	switch slot := view.Slot; {
	case slot == nil && sub.SlotState != state.SlotCreating:
		r.problem("slot %q is gone from the publisher: the tables need a new copy", sub.SlotName)
	case slot == nil:
	case slot.Lost != "":
		r.problem("slot %q is lost (%s): the tables need a new copy", sub.SlotName, slot.Lost)
	case slot.WALStatus == "unreserved":
		r.problem("slot %q is about to be lost, at the publisher's next checkpoint: more WAL than max_slot_wal_keep_size is needed; let a runner catch up, or raise that", sub.SlotName)
	case slot.Active && r.Runner.Lock == "":
		r.problem("slot %q is in use by process %d on the publisher, and no runner lives here", sub.SlotName, slot.ActivePID)
	}
}

// ReadPublisher asks the publisher, over a connection of its own, about itself and one
// of its slots. That it cannot be asked is in the view, too.
func ReadPublisher(ctx context.Context, ends Endpoints, slotName string) *PublisherView {
	ctx, cancel := context.WithTimeout(ctx, publisherPatience)
	defer cancel()
	view, err := readPublisher(ctx, ends, slotName)
	if err != nil {
		view.Reachable, view.Error = false, err.Error()
	}
	return view
}

// readPublisher always returns a view, an empty one beside an error.
func readPublisher(ctx context.Context, ends Endpoints, slotName string) (*PublisherView, error) {
	conn, identity, err := ends.openSource(ctx)
	if err != nil {
		return &PublisherView{}, err
	}
	defer closeSource(conn)
	view := &PublisherView{
		Reachable: true, Version: conn.Version(), SystemID: identity.SystemID, Database: identity.Database,
		Current: state.Position(identity.Position),
	}
	if slotName == "" {
		return view, nil
	}
	slot, err := conn.Slot(ctx, slotName)
	if err != nil {
		return view, apply.SourceError(err)
	}
	if slot != nil {
		view.addSlot(slot)
	}
	return view, nil
}

func (v *PublisherView) addSlot(slot *source.Slot) {
	v.Slot = &SlotView{
		Active: slot.Active, ActivePID: slot.ActivePID,
		ConfirmedFlush: state.Position(slot.ConfirmedFlush), Restart: state.Position(slot.Restart),
		WALStatus: slot.WALStatus, Lost: slot.Lost(), SafeBytes: slot.SafeWALSize,
	}
	v.LagBytes = behind(v.Slot.ConfirmedFlush, v.Current)
	v.Slot.RetainedBytes = behind(v.Slot.Restart, v.Current)
}

// behind is how many bytes position is short of end; 0 for no position.
func behind(position, end state.Position) int64 {
	if position == 0 || position >= end {
		return 0
	}
	return int64(end - position)
}
