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
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
	"pgapply/origin"
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

// near is how many bytes of the publisher's WAL the copied tables may be behind the
// stream when it stops for them.
const near = 16 << 20

// syncSlotName is the slot of the copy set.
func (o *Options) syncSlotName() string {
	const suffix, longest = "_sync", 63
	name := o.SlotName()
	return name[:min(len(name), longest-len(suffix))] + suffix
}

// settleSet looks at what an earlier attempt has left of a copy set: copied tables are
// handed over to the stream, and others begin again.
func (a *attempt) settleSet(ctx context.Context) error {
	subscription, err := a.control.store.Subscription(ctx)
	if err != nil {
		return TargetError(err)
	}
	a.tablesVersion = subscription.TablesVersion
	tables, err := a.readMembers(ctx)
	if err != nil {
		return err
	}
	copied := inState(tables, state.TableFinishedCopy, state.TableSyncDone)
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
	prepared, err := a.control.store.Prepared(ctx, a.preparedPrefix())
	if err != nil {
		return TargetError(err)
	}
	if len(prepared) > 0 || subscription.SyncLSN > a.known {
		return nil // syncTables goes on with them
	}
	if err := a.catchUp(ctx, subscription.SyncSlot, subscription.SyncLSN, a.known); err != nil {
		if lostSet(err) {
			a.log.Warn("the copied tables cannot catch up: they are copied again", zap.Error(err))
			return a.abandonSet(ctx, subscription.SyncSlot)
		}
		return err
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
	_, err = a.readMembers(ctx)
	return err
}

func lostSet(err error) bool { return ClassOf(err) == SlotLost }

// abandonSet begins anew with all tables that are not ready.
func (a *attempt) abandonSet(ctx context.Context, slot string) error {
	if err := a.control.store.AbandonSet(ctx); err != nil {
		return TargetError(err)
	}
	if err := a.endSet(ctx, a.publisher, slot); err != nil {
		return err
	}
	_, err := a.readMembers(ctx)
	return err
}

// endSet drops the slot of a set, and forgets it.
func (a *attempt) endSet(ctx context.Context, publisher *source.Conn, slot string) error {
	if slot == "" {
		return nil
	}
	err := publisher.DropSlot(ctx, slot)
	if _, missing := errors.AsType[*source.SlotMissingError](err); err != nil && !missing {
		return SourceError(err)
	}
	return targetErrorOrNil(a.control.store.EndSet(ctx))
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
			return false, nil
		}
		slot = a.options.syncSlotName()
		if reached, err = a.copySet(ctx, slot, wanted); err != nil {
			return false, err
		}
	}
	return true, a.follow(ctx, s, slot, reached)
}

// copySet makes a slot and copies tables on its snapshot. It returns where the slot
// begins, or errNotCopied if none of the tables was copied.
func (a *attempt) copySet(ctx context.Context, slot string, tables []state.Table) (lsn.LSN, error) {
	session, err := a.openSync(ctx, "copy", nil)
	if err != nil {
		return 0, err
	}
	tables, err = a.mayCopy(ctx, session, tables)
	session.Close()
	if err != nil {
		return 0, err
	}
	if len(tables) == 0 {
		return 0, errNotCopied
	}
	publisher, err := a.connectSync(ctx)
	if err != nil {
		return 0, err
	}
	on := &snapshot{conn: publisher}
	defer on.close()
	if err := a.control.store.BeginSet(ctx, slot); err != nil {
		return 0, TargetError(err)
	}
	if err := publisher.DropSlot(ctx, slot); err != nil {
		if _, missing := errors.AsType[*source.SlotMissingError](err); !missing {
			return 0, SourceError(err)
		}
	}
	a.log.Info("create a slot to copy tables on; this waits for the transactions that run or are prepared on the publisher now, in any database",
		zap.String("slot", slot), zap.Int("tables", len(tables)))
	created, err := publisher.CreateSlot(ctx, source.SlotOptions{Name: slot, Snapshot: source.SnapshotExport})
	if err != nil {
		return 0, SourceError(err)
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
	publisher, err := a.connectSync(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	return a.endSet(ctx, publisher, slot)
}

// mayCopy leaves out, and says why, the tables whose rows on the target nobody has
// decided about.
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
	reasons := make(map[state.Member]string)
	for _, f := range filled {
		reasons[member(f.Table)] = fmt.Sprintf("the target's table is not empty, it has about %d rows: empty it, or `pgapply resync` it, which removes them", f.Rows)
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
		if reason != table.LastError {
			a.log.Warn("a table cannot be copied", zap.String("table", table.Text), zap.String("reason", reason))
		}
		if err := a.control.store.CopyFailed(ctx, table.Member, reason); err != nil {
			return nil, TargetError(err)
		}
	}
	return may, nil
}

// follow lets the copied tables catch up with the stream, until it can go on with them.
func (a *attempt) follow(ctx context.Context, s *stream.Stream, slot string, reached lsn.LSN) error {
	for {
		goal, ok := a.passed(ctx, s, reached)
		if !ok {
			return ctx.Err()
		}
		if err := a.catchUp(ctx, slot, reached, goal); err != nil {
			return err
		}
		if err := a.control.store.SetSynchronized(ctx, goal); err != nil {
			return TargetError(err)
		}
		reached = goal
		prepared, err := a.control.store.Prepared(ctx, a.preparedPrefix())
		if err != nil {
			return TargetError(err)
		}
		if len(prepared) == 0 && s.Progress().Applied < reached+near {
			return nil
		}
		if len(prepared) > 0 && !sleep(ctx, waitPause) {
			return ctx.Err()
		}
	}
}

// passed waits until the stream has applied everything before the position, and more
// than that, or stands there, and returns where it is.
func (a *attempt) passed(ctx context.Context, s *stream.Stream, position lsn.LSN) (lsn.LSN, bool) {
	for {
		if applied := s.Progress().Applied; applied >= position {
			return applied, true
		}
		if !sleep(ctx, waitPause) {
			return 0, false
		}
	}
}

// catchUp applies to the copied tables what committed on the publisher from one position
// on up to the other.
func (a *attempt) catchUp(ctx context.Context, slot string, from, to lsn.LSN) error {
	if to <= from {
		return nil
	}
	tables, err := a.control.store.Tables(ctx)
	if err != nil {
		return TargetError(err)
	}
	member := newMembers(a.log)
	member.set(theirs(tables))
	session, err := a.openSync(ctx, "sync", member)
	if err != nil {
		return err
	}
	defer session.Close()
	if err := a.makeCopyOrigins(ctx); err != nil {
		return err
	}
	progress, err := a.acquireFrom(ctx, session, origin.CopyName(a.options.Name, a.control.target.DatabaseOID, 0), from, a.waitBeside)
	if err != nil {
		return err
	}
	publisher, err := a.connectSync(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	start := max(progress, from)
	var feed *source.Stream
	err = a.waitBeside(ctx, func() (string, error) {
		var err error
		feed, err = publisher.StartStream(ctx, source.StreamOptions{
			Slot: slot, Start: start, Publications: a.options.Publications, Streaming: "on", Binary: a.options.Binary, Origin: a.options.Origin,
		})
		if busy, ok := errors.AsType[*source.SlotBusyError](err); ok {
			return busy.Error(), nil
		}
		return "", err
	})
	if err != nil {
		return sourceErrorOrRefused(err)
	}
	feed.Ask() // the end may lie behind everything that the publisher will ever send
	caughtUp := stream.New(stream.Options{
		Source: feed, Target: session,
		Budget:      txn.NewBudget(a.options.MemoryLimit / 4),
		CreateSpool: func() (txn.SpoolFile, error) { return a.files.Create() },
		Limits:      a.limits(),
		Resume:      start, Recorded: from, End: to, Skip: a.skip,
		Synchronous: a.options.SynchronousCommit != "off",
		State:       setRecorder{recorder{a.control.store}},
		Log:         a.log,
	})
	if err := streamError(caughtUp.Run(ctx)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return targetErrorOrNil(a.control.store.SetReached(ctx, to))
}

// theirs lets only the copied tables take part in a stream.
func theirs(tables []state.Table) []state.Table {
	list := slices.Clone(tables)
	for i, table := range list {
		switch table.State {
		case state.TableFinishedCopy, state.TableSyncDone:
			list[i].State = state.TableReady
		case state.TableInit, state.TableDataSync, state.TableReady:
			list[i].State = state.TableInit
		}
	}
	return list
}

// setRecorder keeps how far a copy set is.
type setRecorder struct{ recorder }

func (r setRecorder) Acknowledge(ctx context.Context, position lsn.LSN) error {
	return targetErrorOrNil(r.Store.SetReached(ctx, position))
}

// ClearSkip leaves that to the subscription's own stream.
func (setRecorder) ClearSkip(context.Context, lsn.LSN) error { return nil }

// openSync opens a session for a copy set.
func (a *attempt) openSync(ctx context.Context, role string, member *members) (*target.Session, error) {
	options := a.sessionOptions()
	options.ApplicationName = a.options.Name + ":" + role
	options.Progress = a.options.Name + ".sync"
	options.KeepMessages = false
	options.Member = member.has
	session, err := target.Open(ctx, options)
	if err != nil {
		return nil, TargetError(err)
	}
	return session, nil
}

// connectSync opens a session on the publisher for a copy set.
func (a *attempt) connectSync(ctx context.Context) (*source.Conn, error) {
	conn, err := source.Connect(ctx, source.Options{
		URI: a.options.Source, Passfile: a.options.SourcePassfile,
		ApplicationName: a.options.Name + ":sync", ClientEncoding: a.control.target.Encoding, Log: a.log,
	})
	if err != nil {
		return nil, SourceError(err)
	}
	return conn, nil
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
