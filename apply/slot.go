package apply

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"

	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
)

// settleSlot makes slot, origin and state agree, or refuses. Afterwards the origin
// is held and known says where to start.
//
// The order of creation is what makes it safe to be killed anywhere: the state
// names the slot before it exists, and only a slot that the state calls "creating"
// is ever dropped and made again.
func (a *attempt) settleSlot(ctx context.Context) error {
	subscription, slot := a.subscription, a.seen.slot
	a.identity = a.seen.identity
	switch {
	case subscription == nil && a.engine.streamed:
		return a.ends().LostState()
	case subscription == nil:
		return a.begin(ctx, slot, false)
	case subscription.SlotState == state.SlotCreating:
		a.subscription = nil
		if err := a.dropInterrupted(ctx, subscription.SlotName); err != nil {
			return err
		}
		return a.begin(ctx, slot, subscription.SlotName == a.options.SlotName())
	}
	return a.resume(ctx, subscription, slot)
}

// resumes tells whether the subscription has its slot already.
func (a *attempt) resumes() bool {
	return a.subscription != nil && a.subscription.SlotState != state.SlotCreating
}

// readState reads what the state and the target have of a subscription that goes on.
func (a *attempt) readState(ctx context.Context) error {
	if _, err := a.readMembers(ctx); err != nil || !a.resumes() {
		return err
	}
	if err := a.findOrigins(ctx); err != nil {
		return err
	}
	var err error
	a.prepared, err = a.control.store.Prepared(ctx, a.preparedPrefix())
	return targetErrorOrNil(err)
}

// askPublisher asks once more where the publisher is: an earlier runner may have
// acknowledged what it has written since.
func (a *attempt) askPublisher(ctx context.Context) (err error) {
	if a.seen.identity, err = a.publisher.Identify(ctx); err == nil {
		a.seen.slot, err = a.publisher.Slot(ctx, a.options.SlotName())
	}
	if err != nil {
		return SourceError(err)
	}
	return nil
}

// refuseSlot looks at the slot of a subscription that nothing is known of before
// anything is created for it.
func (a *attempt) refuseSlot(ctx context.Context) error {
	if a.found == nil || a.found.Exists {
		return nil // settleSlot sees the state, or an earlier attempt has looked
	}
	if a.engine.streamed {
		return a.ends().LostState()
	}
	slot, err := a.publisher.Slot(ctx, a.options.SlotName())
	if err != nil {
		return SourceError(err)
	}
	if err := a.ends().MayBegin(slot, false); err != nil {
		return err
	}
	if a.options.CreateSlot && a.identity.InRecovery && a.options.Primary != "" {
		primary, err := OpenPrimary(ctx, a.options, a.identity, a.log)
		if err != nil {
			return err
		}
		_ = primary.Close() // it has answered
	}
	left, err := state.ListPrepared(ctx, a.control.conn, a.preparedPrefix())
	if err != nil {
		return TargetError(err)
	}
	return a.ends().MayPrepare(left)
}

// dropInterrupted drops the slot that an interrupted start under another --slot left.
func (a *attempt) dropInterrupted(ctx context.Context, name string) error {
	if name == a.options.SlotName() {
		return nil // begin makes it anew
	}
	slot, err := a.publisher.Slot(ctx, name)
	if err != nil {
		return SourceError(err)
	}
	if slot == nil {
		return nil
	}
	if err := a.ends().usable(slot); err != nil {
		return err
	}
	return a.dropLeft(ctx, name)
}

// dropLeft drops the slot that an interrupted start left behind. The publisher's process
// that was making it may still wait for transactions, without noticing that nobody wants
// the slot any more; this waits for it, and the slot may vanish with it.
func (a *attempt) dropLeft(ctx context.Context, name string) error {
	a.log.Info("drop the slot that an interrupted start left behind", zap.String("slot", name))
	err := a.publisher.DropSlot(ctx, name)
	if _, missing := errors.AsType[*source.SlotMissingError](err); err == nil || missing {
		return nil
	}
	return SourceError(err)
}

// begin starts a subscription that has applied nothing yet.
func (a *attempt) begin(ctx context.Context, slot *source.Slot, ours bool) error {
	if err := a.ends().MayBegin(slot, ours); err != nil {
		return err
	}
	left, err := a.control.store.Prepared(ctx, a.preparedPrefix())
	if err != nil {
		return TargetError(err)
	}
	if err := a.ends().MayPrepare(left); err != nil {
		return err
	}
	var tables []state.Table
	if a.options.CreateSlot && a.copiesFirst() {
		// Those that are published before the slot begins: a change of one that is
		// published later may be missing both in its stream and in the snapshot.
		if tables, err = a.wantedTables(ctx); err != nil {
			return SourceError(err)
		}
	}
	if err := a.newOrigin(ctx); err != nil {
		return err
	}
	settings, err := json.Marshal(a.settings())
	if err != nil {
		return err
	}
	subscription := &state.Subscription{
		Source:         recorded(a.identity),
		TargetSystemID: a.control.target.SystemID, TargetDatabaseOID: a.control.target.DatabaseOID,
		SlotName: a.options.SlotName(), Publications: a.options.Publications, Settings: settings, ProgressIn: a.control.terms.Progress,
	}
	if !a.options.CreateSlot {
		if err := a.control.store.AdoptSlot(ctx, subscription, slot.ConfirmedFlush); err != nil {
			return TargetError(err)
		}
		a.known = slot.ConfirmedFlush
		a.log.Info("adopted the slot", zap.String("slot", slot.Name), zap.Stringer("at", a.known))
		if err := a.acquireFirst(ctx); err != nil {
			return err
		}
		if err := a.settleTwoPhase(ctx, slot); err != nil {
			return err
		}
		return a.settleFailover(ctx, slot)
	}
	a.engine.phase(state.Waiting, "the slot is created once all transactions have ended that run or are prepared on the publisher, in any database: `pgapply check` names them")
	waits := func(text string) { a.engine.phase(state.Waiting, text) }
	if slot != nil {
		err := a.watched(ctx, slot.Name, a.publisher, waits, func() error { return a.dropLeft(ctx, slot.Name) })
		if err != nil {
			return err
		}
	}
	if err := a.control.store.BeginSlot(ctx, subscription); err != nil {
		return TargetError(err)
	}
	if err := a.control.store.ForgetTables(ctx); err != nil {
		return TargetError(err)
	}
	if err := a.control.store.RegisterTables(ctx, tables); err != nil {
		return TargetError(err)
	}
	publisher, kind := a.publisher, source.SnapshotNothing
	if len(tables) > 0 {
		if publisher, err = a.dial(ctx, a.options.Name+":sync"); err != nil {
			return err
		}
		a.snapshot, kind = &snapshot{conn: publisher}, source.SnapshotExport
	}
	a.log.Info("create the slot; this waits for the transactions that run or are prepared on the publisher now, in any database", zap.String("slot", a.options.SlotName()))
	created, err := a.createSlot(ctx, publisher, source.SlotOptions{
		Name: a.options.SlotName(), TwoPhase: a.options.TwoPhase, Failover: a.options.Failover, Snapshot: kind,
	}, waits)
	if err != nil {
		return err
	}
	if err := a.control.store.SlotCreated(ctx, created.ConsistentPoint); err != nil {
		return TargetError(err)
	}
	if a.snapshot != nil {
		a.snapshot.name, a.snapshot.point = created.SnapshotName, created.ConsistentPoint
	}
	a.engine.phase(state.Starting, "")
	a.known = created.ConsistentPoint
	return a.acquireFirst(ctx)
}

// createSlot makes a slot, and tells what that waits for.
func (a *attempt) createSlot(ctx context.Context, publisher *source.Conn, options source.SlotOptions, tell func(string)) (created source.CreatedSlot, err error) {
	err = a.watched(ctx, options.Name, publisher, tell, func() error {
		if created, err = publisher.CreateSlot(ctx, options); err != nil {
			return SourceError(err)
		}
		return nil
	})
	return created, err
}

// resume goes on with a subscription that has a slot. Whatever makes it doubtful
// that the slot continues where the target stands is refused.
func (a *attempt) resume(ctx context.Context, subscription *state.Subscription, slot *source.Slot) error {
	if err := a.ends().MayResume(subscription, slot); err != nil {
		return err
	}
	if err := a.settleProgress(ctx, subscription); err != nil {
		return err
	}
	a.known = max(subscription.AckLSN, subscription.ConsistentPoint)
	if err := a.acquireFirst(ctx); err != nil {
		return err
	}
	known, err := a.ends().Known(subscription, slot, a.progress, a.held())
	if err != nil {
		return err
	}
	a.known = known
	if err := a.settleTwoPhase(ctx, slot); err != nil {
		return err
	}
	if err := a.settleFailover(ctx, slot); err != nil {
		return err
	}
	return a.takeOver(ctx, subscription)
}

// held is up to where the target has rows of the publisher beside what is applied: of
// prepared transactions and of copies.
func (a *attempt) held() lsn.LSN {
	held := a.subscription.SyncLSN
	for i := range a.tables {
		held = max(held, a.tables[i].StateLSN)
	}
	for _, p := range a.prepared {
		held = max(held, p.Finish)
	}
	return held
}

// recorded is a publisher as the state keeps it.
func recorded(identity source.Identity) state.Source {
	return state.Source{
		SystemID: identity.SystemID, Timeline: identity.Timeline, History: identity.History.String(),
		Database: identity.Database, InRecovery: identity.InRecovery,
	}
}

// takeOver records settings that differ from the last start's.
func (a *attempt) takeOver(ctx context.Context, subscription *state.Subscription) error {
	before, now := subscription.Source, recorded(a.identity)
	if before.Timeline != now.Timeline {
		a.log.Warn("the publisher is on another timeline: a standby was promoted, or a backup restored",
			zap.Int32("before", before.Timeline), zap.Int32("now", now.Timeline), zap.Stringer("from", a.known))
	}
	if before != now {
		if err := a.control.store.SetSource(ctx, now, a.known); err != nil {
			return TargetError(err)
		}
	}
	settings, err := json.Marshal(a.settings())
	if err != nil {
		return err
	}
	if slices.Equal(subscription.Publications, a.options.Publications) && sameJSON(subscription.Settings, settings) {
		return nil
	}
	return targetErrorOrNil(a.control.store.SetSettings(ctx, a.options.Publications, settings))
}

// settings are the options that people may want to look up; no secrets.
func (a *attempt) settings() map[string]any {
	return map[string]any{
		"streaming": a.options.Streaming, "binary": a.options.Binary, "origin": a.options.Origin,
		"two_phase": a.options.TwoPhase, "failover": a.options.Failover, "synchronous_commit": a.options.SynchronousCommit,
		"include_tables": a.options.Tables.Include, "exclude_tables": a.options.Tables.Exclude,
		"progress": a.options.Progress, "fire_triggers": a.options.FireTriggers,
		"on_error": a.options.OnError, "max_group_transactions": a.options.MaxGroup.Transactions,
	}
}

// sameJSON tells whether two texts say the same: the target has its own way to write them.
func sameJSON(a, b []byte) bool {
	var first, second any
	return json.Unmarshal(a, &first) == nil && json.Unmarshal(b, &second) == nil && reflect.DeepEqual(first, second)
}
