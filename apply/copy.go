package apply

import (
	"context"
	"errors"
	"sync"
	"time"

	"pgapply/apply/state"
	"pgapply/apply/tablesync"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
	"pgapply/origin"
)

// snapshot shows the publisher's tables as of where a slot begins. The connection that
// made the slot holds it, as long as nothing else is asked of it.
type snapshot struct {
	conn  *source.Conn
	name  string
	point lsn.LSN
}

func (s *snapshot) close() {
	if s != nil {
		_ = s.conn.Close() // it is of no further use either way
	}
}

// entering is a table that enters the subscription.
func (o *Options) entering(table state.Member, known lsn.LSN) state.Table {
	if !o.CopyData {
		return state.Table{Member: table, State: state.TableReady, StateLSN: known}
	}
	entering := state.Table{Member: table, State: state.TableInit, Existing: state.ExistingRefused}
	switch {
	case o.IfNotEmpty == "append":
		entering.Existing = state.ExistingKept
	case o.IfNotEmpty == "truncate" && o.Confirmed:
		entering.Existing = state.ExistingRemoved
	}
	return entering
}

// copiesFirst tells whether the tables are copied on the snapshot of the subscription's
// own slot. Publishers of 14 cannot make a two-phase one together with a snapshot: there
// the tables follow as those do that are added later.
func (a *attempt) copiesFirst() bool {
	return a.options.CopyData && (!a.options.TwoPhase || a.publisher.Version() >= 15_00_00)
}

// copyFirst copies the tables with which a subscription begins, before its stream. What
// cannot be copied follows later.
func (a *attempt) copyFirst(ctx context.Context) error {
	if a.snapshot == nil {
		return nil
	}
	defer func() {
		a.snapshot.close()
		a.snapshot = nil
	}()
	tables, err := a.readMembers(ctx)
	if err != nil {
		return err
	}
	a.engine.phase(state.Copying, "")
	defer a.engine.phase(state.Starting, "")
	// Again: the slot may have taken hours, and somebody has written meanwhile.
	if tables, err = a.mayCopy(ctx, a.session, tables); err != nil {
		return err
	}
	_, err = a.copyTables(ctx, tables, a.snapshot, state.TableReady)
	return err
}

// copyTables copies tables on a snapshot, each into the given state, and tells how many
// it has copied. What keeps single ones from it is recorded with them.
func (a *attempt) copyTables(ctx context.Context, tables []state.Table, on *snapshot, becomes state.TableState) (copied int, err error) {
	if len(tables) == 0 {
		return 0, nil
	}
	progress := &tablesync.Progress{}
	a.engine.copying(progress)
	defer a.engine.copying(nil)
	ended := a.showCopy(len(tables), progress)
	options := a.copyOptions()
	options.Snapshot = on.name
	options.State = &copyRecorder{store: a.control.store, becomes: becomes, point: on.point}
	summary, err := tablesync.Copy(ctx, options, a.toCopy(tables), progress)
	ended()
	var first error
	for _, table := range summary.Tables {
		if table.Copied {
			copied++
		} else if first == nil {
			first = table.Err
		}
	}
	if err != nil {
		return copied, copyError(err)
	}
	if err := a.makeIndexes(ctx); err != nil {
		return copied, err
	}
	if first != nil && a.options.OnError != "retry" {
		return copied, &Error{Class: Conflict, Err: first, Hint: copyHint(first)}
	}
	return copied, nil
}

// copyOptions are what copies of tables have in common.
func (a *attempt) copyOptions() tablesync.Options {
	options := tablesync.Options{
		Source: a.options.Source, SourcePassfile: a.options.SourcePassfile,
		Target: a.options.Target, TargetPassfile: a.options.TargetPassfile,
		ApplicationName: a.options.Name + ":copy",
		Publications:    a.options.Publications,
		Jobs:            a.options.TableJobs, SplitLargerThan: a.options.SplitLargerThan,
		Binary: true, Analyze: a.options.Analyze,
		Subscription: a.options.Name,
		Fires:        a.control.terms.Fires,
		Fence:        a.writerFence(),
		Log:          a.log,
	}
	if a.stamped() {
		options.Origin = func(job int) string {
			return origin.CopyName(a.options.Name, a.control.target.DatabaseOID, job)
		}
	}
	if a.options.DeferIndexes {
		options.Indexes = indexRecorder{a.control.store}
	}
	return options
}

// toCopy says how to begin with each of the tables.
func (a *attempt) toCopy(tables []state.Table) []tablesync.Table {
	list := make([]tablesync.Table, len(tables))
	for i, table := range tables {
		list[i] = tablesync.Table{Schema: table.Schema, Name: table.Name}
		switch table.Existing {
		case state.ExistingRemoved:
			list[i].Clean = tablesync.Truncate
		case state.ExistingKept:
			list[i].Whole = true
		case state.ExistingRefused, state.ExistingMixed:
		}
	}
	return list
}

// copyError classifies what ended a copy of tables as a whole.
func copyError(err error) error {
	if recorder, ok := errors.AsType[*tablesync.RecorderError](err); ok {
		return TargetError(recorder.Err)
	}
	if errors.Is(err, tablesync.ErrSnapshotLost) {
		return &Error{Class: Source, Err: err, Retryable: true, Hint: "the tables that are not copied yet follow on another snapshot"}
	}
	if full, ok := errors.AsType[*origin.LimitError](err); ok {
		return refused("raise max_active_replication_origins (18 and later) or max_replication_slots on the target and restart it, or run with fewer --table-jobs", "%s", full.Error())
	}
	if source.ClassOf(err) != source.Other {
		return SourceError(err)
	}
	return TargetError(err)
}

// copyHint is the remedy for a table that could not be copied, or an index not made.
func copyHint(err error) string {
	if failed, ok := errors.AsType[*tablesync.TableError](err); ok {
		return failed.Hint
	}
	if failed, ok := errors.AsType[*tablesync.IndexError](err); ok {
		return failed.Hint
	}
	return ""
}

// copyRecorder keeps what becomes of tables in the state.
type copyRecorder struct {
	store   *state.Store
	becomes state.TableState
	point   lsn.LSN

	began sync.Map // tablesync.Table to time.Time
}

func (r *copyRecorder) Starting(ctx context.Context, table tablesync.Table, parts int) error {
	r.began.Store(table, time.Now())
	return r.store.CopyStarting(ctx, member(table), parts > 1)
}

func (r *copyRecorder) Copied(_ context.Context, table tablesync.Table, rows, bytes int64, exec tablesync.Exec) error {
	began, _ := r.began.Load(table)
	seconds := time.Since(began.(time.Time)).Seconds() //nolint:forcetypeassert // Starting has stored it
	return exec(r.store.CopiedSQL(state.Copied{
		Table: member(table), Rows: rows, Bytes: bytes, Seconds: seconds, State: r.becomes, Position: r.point,
	}))
}

func (r *copyRecorder) Failed(ctx context.Context, table tablesync.Table, err error) error {
	return r.store.CopyFailed(ctx, member(table), err.Error())
}

func member(table tablesync.Table) state.Member {
	return state.Member{Schema: table.Schema, Name: table.Name}
}
