package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/apply/stream"
	"pgapply/apply/tablesync"
	"pgapply/apply/target"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
)

// Tables that come later: published later, wanted again, or not copied at the first
// start. They are copied beside the stream, as a set with a slot of its own, and then
// follow the publisher on that slot:
//
//	stream     ──────────── without them ───────────────┤stops at K      ├── with them ──►
//	set   slot at P ── copy ── catch up ──► Q ──────────┘ catch up to K ─┘
//
// Everything that committed before K came to the other tables by the stream, and to these
// ones by the copy and the catching up. So no change has to be held against the position
// of its table. While a transaction of ours is prepared on the target, its changes of
// these tables were left out of it, and its commit is still to come: then K waits.

// setPause is how long a table that could not be copied rests, at first and at most.
const (
	setPause        = 2 * time.Second
	longestSetPause = time.Minute
)

// far is how many bytes they may be behind when the stream starts, which waits for them.
const far = 4 * near

// syncSlotName is the slot of the copy set.
func (o *Options) syncSlotName() string {
	const suffix, longest = "_sync", 63
	name := o.SlotName()
	return name[:min(len(name), longest-len(suffix))] + suffix
}

// settleSet looks at what an earlier attempt has left of a copy set: copied tables are
// handed over to the stream, and others begin again. Whatever keeps it from that does not
// hold up the stream: syncTables goes on with the set.
func (a *attempt) settleSet(ctx context.Context) error {
	if a.subscription == nil {
		var err error
		if a.subscription, err = a.control.store.Subscription(ctx); err != nil {
			return TargetError(err)
		}
		// After the row: whoever changes them tells us by that.
		if _, err := a.readMembers(ctx); err != nil {
			return err
		}
	}
	subscription, tables := a.subscription, a.tables
	a.tablesVersion = subscription.TablesVersion
	if a.member.ready() {
		a.engine.whole.Clear()
	}
	copied := inState(tables, state.TableFinishedCopy, state.TableSyncDone)
	if len(copied) == 0 && len(inState(tables, state.TableDataSync)) == 0 && subscription.SyncSlot == "" {
		return nil // nothing is left of one
	}
	if len(copied) == 0 {
		return a.abandonSet(ctx, subscription.SyncSlot)
	}
	slot, err := a.publisher.Slot(ctx, subscription.SyncSlot)
	if err != nil {
		return SourceError(err)
	}
	if subscription.SyncLSN == 0 || slot == nil || slot.Lost() != "" {
		a.log.Warn("the slot of the copied tables is gone: they are copied again", zap.String("slot", subscription.SyncSlot))
		return a.abandonSet(ctx, subscription.SyncSlot)
	}
	halved, err := a.halved(ctx)
	if err != nil {
		return err
	}
	if halved != "" || subscription.SyncLSN > a.known || a.known > subscription.SyncLSN+far {
		return nil
	}
	reached, err := a.catchUp(ctx, subscription.SyncSlot, subscription.SyncLSN, a.known)
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case lostSet(err):
		a.log.Warn("the copied tables cannot catch up: they are copied again", zap.Error(err))
		return a.abandonSet(ctx, subscription.SyncSlot)
	case err != nil:
		a.log.Warn("the copied tables cannot catch up now: the stream goes on without them", zap.Error(err))
		return nil
	case reached > a.known:
		return nil
	}
	if err := a.control.store.SetReady(ctx, a.known); err != nil {
		return TargetError(err)
	}
	for _, table := range copied {
		a.log.Info("the table is ready", zap.String("table", table.Text), zap.Int64("rows", table.RowsCopied))
	}
	if err := a.endSet(ctx, a.publisher, subscription.SyncSlot); err != nil {
		return err
	}
	return a.abandonSet(ctx, "") // of a set that was cut short
}

func lostSet(err error) bool { return err != nil && ClassOf(err) == SlotLost }

// abandonSet begins anew with all tables that are not ready. A slot that is in use stays
// for syncTables: the publisher's process that was making it for a runner that is gone may
// wait for old transactions, which must not hold up the stream.
func (a *attempt) abandonSet(ctx context.Context, slot string) error {
	if err := a.control.store.AbandonSet(ctx); err != nil {
		return TargetError(err)
	}
	if _, err := a.readMembers(ctx); err != nil || slot == "" {
		return err
	}
	found, err := a.publisher.Slot(ctx, slot)
	if err != nil {
		return SourceError(err)
	}
	if found != nil && found.Active && a.end() == 0 {
		return nil
	}
	return a.endSet(ctx, a.publisher, slot)
}

// endSet drops the slot of a set, and forgets it.
func (a *attempt) endSet(ctx context.Context, publisher *source.Conn, slot string) error {
	if slot == "" {
		return nil
	}
	if err := dropAny(ctx, publisher, slot); err != nil {
		return err
	}
	return targetErrorOrNil(a.control.store.EndSet(ctx))
}

// dropAny drops a slot if it is there, once nobody uses it any more.
func dropAny(ctx context.Context, publisher *source.Conn, slot string) error {
	err := publisher.DropSlot(ctx, slot)
	if _, missing := errors.AsType[*source.SlotMissingError](err); err == nil || missing {
		return nil
	}
	return SourceError(err)
}

// syncTables copies, beside the stream, the tables that are not ready, and returns
// errNews once the stream is to start over with them. An error that has to do with the
// set alone is tried again, so that it does not hold up the others.
func (a *attempt) syncTables(ctx context.Context, s *stream.Stream) error {
	pause := backoff{first: setPause, longest: longestSetPause}
	for ctx.Err() == nil {
		done, err := a.syncOnce(ctx, s)
		switch {
		case ctx.Err() != nil, err == nil && !done:
			<-ctx.Done()
			return nil
		case err == nil:
			a.log.Info("the copied tables take part from now on")
			return errNews
		case lostSet(err):
			return errNews // another attempt begins anew with the set
		}
		trouble := classify(err)
		a.blame(ctx, trouble)
		if trouble.Class == Conflict && !trouble.Retryable && a.options.OnError != "retry" {
			return trouble
		}
		wait := pause.next()
		a.log.Warn("copy tables: "+trouble.Error(), zap.String("hint", trouble.Hint), zap.Duration("retry_in", wait))
		if !sleep(ctx, wait) {
			return nil
		}
	}
	return nil
}

// blame records a change that a copied table did not take when it was to catch up, with
// that table. Others of its set need not wait for it: it is copied again after them. By
// itself it keeps its rows, and tries the change again, for somebody may mend it.
func (a *attempt) blame(ctx context.Context, trouble *Error) {
	failed, ok := errors.AsType[*target.TransactionError](trouble)
	if !ok || trouble.Retryable {
		return
	}
	if failed.Conflict != nil {
		id, _, err := a.control.store.RecordConflict(ctx, *failed.Conflict)
		if err != nil {
			a.log.Warn("record the conflict", zap.Error(err))
		} else if id != 0 {
			trouble.Hint = fmt.Sprintf("see `pgapply conflicts show %d`, then %s", id, trouble.Hint)
		}
	}
	tables, err := a.control.store.Tables(ctx)
	if err != nil {
		return // that will be noticed elsewhere
	}
	copied := inState(tables, state.TableFinishedCopy, state.TableSyncDone)
	for _, table := range copied {
		if table.Schema+"."+table.Name != failed.Relation {
			continue
		}
		if err := a.control.store.CatchUpFailed(ctx, table.Member, trouble.Error(), len(copied) > 1); err != nil {
			a.log.Warn("record the table's error", zap.Error(err))
		}
		return
	}
}

// errNotCopied says that tables are still wanted; why is recorded with them.
var errNotCopied = errors.New("tables could not be copied")

// syncOnce brings one set as far as it can: done tells that its tables can take part in
// the stream. With neither there is nothing to copy.
func (a *attempt) syncOnce(ctx context.Context, s *stream.Stream) (done bool, err error) {
	subscription, err := a.control.store.Subscription(ctx)
	if err != nil {
		return false, TargetError(err)
	}
	tables, err := a.control.store.Tables(ctx)
	if err != nil {
		return false, TargetError(err)
	}
	slot, reached := subscription.SyncSlot, subscription.SyncLSN
	if len(inState(tables, state.TableFinishedCopy, state.TableSyncDone)) == 0 {
		// One that somebody wants copied again may still take part in the stream, which
		// starts over without it first.
		wanted := slices.DeleteFunc(inState(tables, state.TableInit, state.TableDataSync), a.member.takesPart)
		if len(wanted) == 0 {
			if slot != "" {
				return false, a.endSetAlone(ctx, slot)
			}
			return false, nil
		}
		if err := a.unstuck(ctx, s, wanted); err != nil {
			return false, err
		}
		if reached, err = a.copySet(ctx, slot, wanted); err != nil {
			return false, err
		}
		slot = a.options.syncSlotName()
	}
	return true, a.follow(ctx, s, slot, reached)
}

// unstuck waits until the stream has applied the transaction at which it stopped the last
// time. Each time that it does, it takes the copy beside it along, whose tables would begin
// anew for ever and could not join it anyway.
func (a *attempt) unstuck(ctx context.Context, s *stream.Stream, tables []state.Table) error {
	if s.Progress().Applied >= a.engine.stuck {
		return nil
	}
	reason := fmt.Sprintf("not copied before the stream has applied the transaction that is finished at %s: see `pgapply status`", a.engine.stuck)
	for _, table := range tables {
		if err := a.leaveOut(ctx, table, reason); err != nil {
			return err
		}
	}
	if _, ok := a.passed(ctx, s, a.engine.stuck); !ok {
		return ctx.Err()
	}
	return nil
}

// copySet makes a slot and copies tables on its snapshot; left is the slot of an earlier
// set. It returns where the slot begins, or errNotCopied if none of the tables was copied.
func (a *attempt) copySet(ctx context.Context, left string, tables []state.Table) (lsn.LSN, error) {
	publisher, err := a.dial(ctx, a.options.Name+":sync")
	if err != nil {
		return 0, err
	}
	on := &snapshot{conn: publisher}
	defer on.close()
	if err := a.endSet(ctx, publisher, left); err != nil {
		return 0, err
	}
	if tables, err = a.stillPublished(ctx, publisher, tables); err != nil {
		return 0, err
	}
	session, release, err := a.openSync(ctx, "copy", nil)
	if err != nil {
		return 0, err
	}
	tables, err = a.mayCopy(ctx, session, tables)
	release()
	if err != nil {
		return 0, err
	}
	if len(tables) == 0 {
		return 0, errNotCopied
	}
	slot := a.options.syncSlotName()
	if stranger, err := publisher.Slot(ctx, slot); err != nil {
		return 0, SourceError(err)
	} else if stranger != nil {
		return 0, refused("drop it on the publisher if nobody needs it, or use another --name or --slot",
			"tables are to be copied on a replication slot %q, and the publisher has another one of that name", slot)
	}
	if err := a.control.store.BeginSet(ctx, slot); err != nil {
		return 0, TargetError(err)
	}
	a.log.Info("create a slot to copy tables on; this waits for the transactions that run or are prepared on the publisher now, in any database",
		zap.String("slot", slot), zap.Int("tables", len(tables)))
	// It lives for a while, and no standby is to keep it.
	created, err := a.createSlot(ctx, publisher, source.SlotOptions{Name: slot, Snapshot: source.SnapshotExport}, a.engine.waitsFor)
	a.engine.waitsFor("")
	if err != nil {
		return 0, err
	}
	if err := a.control.store.SetReached(ctx, created.ConsistentPoint); err != nil {
		return 0, TargetError(err)
	}
	on.name, on.point = created.SnapshotName, created.ConsistentPoint
	copied, err := a.copyTables(ctx, tables, on, state.TableFinishedCopy)
	if copied > 0 && ctx.Err() == nil {
		return on.point, nil // those that were not copied follow with another set
	}
	if err == nil {
		err = errNotCopied
	}
	if ctx.Err() != nil {
		return 0, err
	}
	on.close()
	return 0, errors.Join(err, a.endSetAlone(ctx, slot))
}

// endSetAlone is endSet on a connection of its own.
func (a *attempt) endSetAlone(ctx context.Context, slot string) error {
	publisher, err := a.dial(ctx, a.options.Name+":sync")
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	return a.endSet(ctx, publisher, slot)
}

// stillPublished leaves out, and says so, the tables that are not published any more.
func (a *attempt) stillPublished(ctx context.Context, publisher *source.Conn, tables []state.Table) ([]state.Table, error) {
	published, err := publisher.Tables(ctx, a.options.Publications)
	if err != nil {
		return nil, SourceError(err)
	}
	var still []state.Table
	for _, table := range tables {
		if slices.ContainsFunc(published, func(p source.Table) bool { return state.Member(p) == table.Member }) {
			still = append(still, table)
			continue
		}
		if err := a.leaveOut(ctx, table, "it is not published any more: `pgapply refresh` takes it out of the subscription"); err != nil {
			return nil, err
		}
	}
	return still, nil
}

// leaveOut says why a table is not copied.
func (a *attempt) leaveOut(ctx context.Context, table state.Table, reason string) error {
	if reason != table.LastError {
		a.log.Warn("a table cannot be copied", zap.String("table", table.Text), zap.String("reason", reason))
	}
	return targetErrorOrNil(a.control.store.CopyFailed(ctx, table.Member, reason))
}

// mayCopy leaves out, and says why, the tables that the target does not have, and those
// whose rows on the target nobody has decided about.
func (a *attempt) mayCopy(ctx context.Context, session *target.Session, tables []state.Table) ([]state.Table, error) {
	undecided := func(table state.Table) bool {
		return table.Existing == state.ExistingRefused && table.State == state.TableInit
	}
	var ask []state.Table
	for _, table := range tables {
		if undecided(table) {
			ask = append(ask, table)
		}
	}
	filled, err := tablesync.NotEmpty(session, a.toCopy(ask))
	if err != nil {
		return nil, TargetError(err)
	}
	missing, err := tablesync.Missing(session, a.toCopy(tables))
	if err != nil {
		return nil, TargetError(err)
	}
	reasons := make(map[state.Member]string)
	for _, table := range missing {
		reasons[member(table)] = fmt.Sprintf(`the target has no table "%s": create it there, or start with --copy-schema`, table)
	}
	for _, f := range filled {
		reasons[member(f.Table)] = fmt.Sprintf("the target's table is not empty, it has %s: empty it, or `pgapply resync` it, which removes them", f.Estimate())
	}
	var may []state.Table
	for _, table := range tables {
		reason := reasons[table.Member]
		if table.Existing == state.ExistingMixed {
			reason = "its rows were appended to those of the target and cannot be told from them any more: `pgapply resync` it, which removes all"
		}
		if reason == "" {
			may = append(may, table)
			continue
		}
		if err := a.leaveOut(ctx, table, reason); err != nil {
			return nil, err
		}
	}
	return may, nil
}

// openSync opens a session for a copy set, which ends with release, or with ctx: its
// calls take no context, and a target that makes it wait must not hold us.
func (a *attempt) openSync(ctx context.Context, role string, member *members) (session *target.Session, release func(), err error) {
	options := a.sessionOptions()
	options.ApplicationName = a.options.Name + ":" + role
	options.Progress = a.options.Name + ".sync"
	options.KeepMessages = false
	options.Member, options.Apart = member.has, member.apart
	session, err = target.Open(ctx, options)
	if err != nil {
		return nil, nil, TargetError(err)
	}
	stop := context.AfterFunc(ctx, session.Close)
	return session, func() {
		stop()
		session.Close()
	}, nil
}

func inState(tables []state.Table, states ...state.TableState) []state.Table {
	var found []state.Table
	for _, table := range tables {
		if slices.Contains(states, table.State) {
			found = append(found, table)
		}
	}
	return found
}
