package apply

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"pgapply/apply/state"
	"pgapply/conflict"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
)

// oldestTarget is the first major on which a plain role can be granted what
// origins need, and with an idle_session_timeout to turn off.
const oldestTarget = 14_00_00

const (
	// oldestTwoPhase is the first publisher whose pgoutput sends transactions at PREPARE.
	oldestTwoPhase = 15_00_00
	// oldestFailover is the first publisher whose standbys can keep a slot.
	oldestFailover = 17_00_00
	// oldestAlter is the first publisher that makes a slot a two-phase one no more.
	oldestAlter = 18_00_00
)

// Ends are the two servers of a subscription as a start finds them. Its methods say
// whether the start is refused, and why: the error is an *Error. They look at
// nothing and change nothing, so that a check can ask them without a start.
type Ends struct {
	Options          *Options
	Publisher        source.Identity
	PublisherVersion int // server_version_num
	Target           state.Target
}

// CheckTarget refuses a target that cannot be written to, or cannot do what the
// options ask of it.
func (e *Ends) CheckTarget() error {
	if e.Target.InRecovery {
		return refused("connect to its primary, or give target_session_attrs=read-write with all hosts",
			"the target database %q is on a server in recovery, which cannot be written to", e.Target.Database)
	}
	if e.Target.Pooled {
		return refused("connect to the server itself",
			"the target is behind a connection pooler: locks, prepared statements and the replication origin belong to one session with the server, which a pooler may give to somebody else")
	}
	if e.Target.Version < oldestTarget {
		return refused("upgrade the target first", "the target is PostgreSQL %d: 14 is the oldest major that can be applied to", e.Target.Version/10000)
	}
	if e.Options.OnConflict.Uses(conflict.LastUpdateWins) && !e.Target.TracksCommits {
		return refused("set track_commit_timestamp = on on the target and restart it, or choose another policy",
			"the policy last_update_wins compares commit times, and the target does not track them")
	}
	return nil
}

// CheckPair refuses ends that do not go together.
func (e *Ends) CheckPair() error {
	if e.Publisher.SystemID == e.Target.SystemID && e.Publisher.Database == e.Target.Database {
		return refused("give two different databases", "source and target are the same database, %q of the same server", e.Target.Database)
	}
	if e.Options.Origin == "none" && e.PublisherVersion < 16_00_00 {
		return refused("use --origin any, and make sure that the changes do not come back",
			"the publisher is PostgreSQL %d: leaving out changes that have an origin needs 16 or later", e.PublisherVersion/10000)
	}
	if e.Options.TwoPhase && e.PublisherVersion < oldestTwoPhase {
		return refused("start without --two-phase: prepared transactions are then applied at their COMMIT PREPARED",
			"the publisher is PostgreSQL %d: its pgoutput sends prepared transactions from 15 on", e.PublisherVersion/10000)
	}
	if e.Options.Failover && e.PublisherVersion < oldestFailover {
		return refused("start without --failover", "the publisher is PostgreSQL %d: its standbys can keep a slot from 17 on", e.PublisherVersion/10000)
	}
	if e.Options.Failover && e.Publisher.InRecovery {
		return refused("connect --source to its primary, with target_session_attrs=read-write and all hosts, or start without --failover",
			"the publisher is a standby: other standbys do not keep its slots")
	}
	if e.Options.MessageHandler != nil && e.PublisherVersion < 14_00_00 {
		return refused("upgrade the publisher, or do without the handler",
			"the publisher is PostgreSQL %d: logical messages need 14 or later, and there is a handler that waits for them", e.PublisherVersion/10000)
	}
	return nil
}

// MayBegin refuses a slot that a new subscription must not take, or misses; slot is
// nil where there is none. ours says that the slot is what an interrupted start of
// this subscription left.
func (e *Ends) MayBegin(slot *source.Slot, ours bool) error {
	switch {
	case slot == nil && !e.Options.CreateSlot:
		return refused("create it first, or run with --create-slot",
			"replication slot %q does not exist on the publisher, and --create-slot=false was given", e.Options.SlotName())
	case slot == nil:
		return nil
	case e.Options.CreateSlot && !ours:
		return refused("give another name with --slot, drop the slot on the publisher, or adopt it at its confirmed position with --create-slot=false",
			"replication slot %q exists on the publisher and the state of subscription %q does not know it", slot.Name, e.Options.Name)
	}
	return e.usable(slot)
}

// MayResume refuses to go on with a subscription whose slot or ends are not the
// recorded ones any more.
func (e *Ends) MayResume(subscription *state.Subscription, slot *source.Slot) error {
	switch {
	case subscription.SlotName != e.Options.SlotName():
		return refused("start with that slot, or use another --name",
			"subscription %q uses slot %q, not %q", e.Options.Name, subscription.SlotName, e.Options.SlotName())
	case subscription.TargetSystemID != e.Target.SystemID || subscription.TargetDatabaseOID != e.Target.DatabaseOID:
		return foreign("a copy must not go on beside its original: run `pgapply cleanup --keep-slot` on the copy",
			"the state was written in another database, of which this one is a copy")
	}
	if err := e.MayFollow(subscription.Source); err != nil {
		return err
	}
	if _, err := fork(subscription.Source, e.Publisher); err != nil {
		return e.strayed(subscription, err)
	}
	switch {
	case slot == nil && e.Publisher.InRecovery:
		return refused("connect --source to the server that has the slot: the primary, with target_session_attrs=read-write and all hosts, or the standby that the subscription began on",
			"slot %q is not on this server, which is a standby", subscription.SlotName)
	case slot == nil:
		return lost("slot %q is gone from the publisher%s", subscription.SlotName, e.whyGone(subscription))
	case slot.Type != "logical" || slot.Plugin != "pgoutput" || slot.Database != e.Publisher.Database:
		return lost("slot %q is gone from the publisher, and another one has its name, which is not a logical slot of pgoutput in database %q", slot.Name, e.Publisher.Database)
	}
	return e.usable(slot)
}

// MayFollow refuses another publisher than the one that was followed.
func (e *Ends) MayFollow(followed state.Source) error {
	if followed.SystemID == e.Publisher.SystemID && followed.Database == e.Publisher.Database {
		return nil
	}
	return foreign("connect to the publisher that the subscription began with, or run `pgapply cleanup` and start anew",
		"subscription %q follows database %q of system %s, and --source is database %q of system %s", e.Options.Name,
		followed.Database, followed.SystemID, e.Publisher.Database, e.Publisher.SystemID)
}

// strayed explains a publisher whose log does not come from the one that was followed.
func (e *Ends) strayed(subscription *state.Subscription, err error) error {
	if errors.Is(err, errOldTimeline) && e.Publisher.InRecovery {
		return &Error{
			Class: Source, Retryable: true, Hint: seeStandby,
			Err: fmt.Errorf("the publisher, a standby, is on timeline %d still, and subscription %q has followed its primary to timeline %d",
				e.Publisher.Timeline, e.Options.Name, subscription.Source.Timeline),
		}
	}
	if errors.Is(err, errOldTimeline) {
		return refused("stop the old primary, and connect --source to the server that was promoted: who goes on with the old one loses what was written on the new one",
			"the publisher is on timeline %d, and subscription %q has followed the server that was promoted from it to timeline %d: the old primary is back",
			e.Publisher.Timeline, e.Options.Name, subscription.Source.Timeline)
	}
	return refused(fmt.Sprintf("put %08X.history into the publisher's pg_wal, from its archive or another server of its cluster; or run `pgapply cleanup` and start anew", e.Publisher.Timeline),
		"%w", err)
}

const seeStandby = "see that the standby receives and replays the log of its primary"

// whyGone says what may have become of a slot.
func (e *Ends) whyGone(subscription *state.Subscription) string {
	switch {
	case subscription.Source.Timeline == e.Publisher.Timeline:
		return ""
	case e.PublisherVersion < oldestFailover:
		return ": a standby was promoted, or a backup restored, and before 17 slots are on one server alone"
	}
	return ": a standby was promoted, or a backup restored, that did not have it. Start with --failover, and synchronize slots on the standby (sync_replication_slots), before the next time"
}

// LostState is the refusal where a subscription that has streamed is not known any more.
func (e *Ends) LostState() error {
	return foreign("connect to the target that the subscription is on; where it was taken away, start anew",
		"the state of subscription %q is gone from the target, or --target leads to another database than before", e.Options.Name)
}

// Known returns the newest position that the target can prove: everything that committed
// before it is applied. It refuses a publisher that does not have what is applied, and a
// slot that has gone beyond. progress is the end of the last transaction that is applied,
// and held up to where the target has any rows of the publisher: copies may be ahead.
func (e *Ends) Known(subscription *state.Subscription, slot *source.Slot, progress, held lsn.LSN) (lsn.LSN, error) {
	shared, err := fork(subscription.Source, e.Publisher)
	if err != nil {
		return 0, e.strayed(subscription, err)
	}
	if subscription.Source.InRecovery && slot.ConfirmedFlush > shared {
		// It was a standby that we streamed from while it was promoted, or followed a
		// promotion: its log went on, and its slot shows that we were told so.
		shared = endless
	}
	progress = max(progress, subscription.ConsistentPoint)
	if held = max(held, progress); held > shared {
		return 0, diverged("the publisher's timeline %d has left timeline %d, which was followed, at %s, and the target has what committed up to %s: what lies between was never on this publisher",
			e.Publisher.Timeline, subscription.Source.Timeline, shared, held)
	}
	// What was acknowledged beyond the fork had no rows for us.
	known := min(max(progress, subscription.AckLSN), shared)
	switch {
	case known > e.Publisher.Position && e.Publisher.InRecovery:
		return 0, &Error{
			Class: Source, Retryable: true, Hint: seeStandby,
			Err: fmt.Errorf("the publisher, a standby, has replayed up to %s, and the target has what committed before %s", e.Publisher.Position, known),
		}
	case known > e.Publisher.Position:
		return 0, diverged("the publisher's log ends at %s, and what committed before %s is applied or was acknowledged: the publisher was set back, by a backup or a copy of its files",
			e.Publisher.Position, known)
	}
	return known, e.MayStream(slot, known)
}

// MayStream refuses a slot that has gone beyond what the target can prove.
func (e *Ends) MayStream(slot *source.Slot, known lsn.LSN) error {
	if slot.ConfirmedFlush <= known {
		return nil
	}
	return lost("slot %q is confirmed up to %s, and the target can prove only what committed before %s: %s",
		slot.Name, slot.ConfirmedFlush, known, whyAhead)
}

// whyAhead names what moves a slot past its target.
const whyAhead = "the slot was moved or made anew, somebody else used it, such as another copy of the target, or the target was set back, by a backup or by a failover to a standby that did not have everything"

// LostOrigin is the refusal where the origin that held the progress is not there.
func (e *Ends) LostOrigin(origin string) error {
	return lost("replication origin %q, which held the position of subscription %q, is gone from the target", origin, e.Options.Name)
}

// TwoPhase tells whether the publisher sends at PREPARE what it prepares; slot is nil
// where there is none yet.
func (e *Ends) TwoPhase(slot *source.Slot) bool {
	if e.PublisherVersion < oldestTwoPhase {
		return false
	}
	return e.Options.TwoPhase || slot != nil && slot.TwoPhase && e.PublisherVersion < oldestAlter
}

// MayPrepare refuses to begin beside prepared transactions that an earlier subscription
// of the name has left on the target: nothing would ever end them, and they hold locks.
func (e *Ends) MayPrepare(left []state.Prepared) error {
	if len(left) == 0 {
		return nil
	}
	return refused("see on the publisher what became of each, then run `pgapply cleanup --prepared=commit` or `pgapply cleanup --prepared=rollback`",
		"an earlier subscription %q has left prepared transactions on the target: %s", e.Options.Name, Names(left))
}

// MayTurnOff refuses to make a two-phase slot an ordinary one while the target holds a
// part of a transaction that would then come as a whole at its COMMIT PREPARED. decided
// are the names of those that somebody has committed on the target.
func (e *Ends) MayTurnOff(prepared []state.Prepared, decided []string) error {
	const hint = "start with --two-phase until the publisher has ended them, then without"
	switch {
	case len(prepared) > 0:
		return refused(hint, "two-phase cannot be turned off while the target holds prepared transactions of subscription %q: %s",
			e.Options.Name, Names(prepared))
	case len(decided) > 0:
		return refused(hint, "two-phase cannot be turned off before the publisher's COMMIT PREPARED has come for what is committed on the target: %s",
			strings.Join(decided, ", "))
	}
	return nil
}

// MayTurnOn refuses to make an ordinary slot a two-phase one while the target holds a part
// of what that slot would send as a whole in the end: it is not the slot which sent the part.
func (e *Ends) MayTurnOn(slot *source.Slot, prepared []state.Prepared) error {
	if len(prepared) == 0 {
		return nil
	}
	return lost("slot %q is no two-phase one, and the target holds prepared transactions that came from it: the slot was made anew. They are %s",
		slot.Name, Names(prepared))
}

// Names lists prepared transactions in words.
func Names(prepared []state.Prepared) string {
	var names []string
	for _, p := range prepared {
		names = append(names, fmt.Sprintf("%s (transaction %d, finished at %s, since %s)", p.Name, p.XID, p.Finish, p.Since.UTC().Format(time.RFC3339)))
	}
	return strings.Join(names, ", ")
}

// usable refuses a slot that this subscription could not stream from.
func (e *Ends) usable(slot *source.Slot) error {
	switch {
	case slot.Type != "logical" || slot.Plugin != "pgoutput":
		return refused("name another slot with --slot", "slot %q is not a logical slot of pgoutput", slot.Name)
	case slot.Database != e.Publisher.Database:
		return refused("connect --source to that database, or name another slot with --slot",
			"slot %q belongs to database %q of the publisher, not to %q", slot.Name, slot.Database, e.Publisher.Database)
	case slot.TwoPhase && e.Options.MessageHandler != nil && oldestTwoPhase <= e.PublisherVersion && e.PublisherVersion < oldestAlter:
		return refused("name another slot with --slot, or do without the handler",
			"slot %q is a two-phase one for good: %s", slot.Name, whyNoHandler)
	}
	if slot.Synced && e.Publisher.InRecovery {
		return refused("connect --source to the primary, with target_session_attrs=read-write and all hosts",
			"slot %q is the copy that a standby keeps: it can be used once the standby is promoted", slot.Name)
	}
	if reason := slot.Lost(); reason != "" {
		return lost("slot %q cannot be used any more: %s%s", slot.Name, reason, whyLost(reason))
	}
	return nil
}

// whyLost says what a reason of the publisher's means, and how to keep it from happening
// again.
func whyLost(reason string) string {
	switch reason {
	case "rows_removed":
		return ": the primary removed rows of its catalogs that the slot of a standby needs. hot_standby_feedback = on and a primary_slot_name on the standby prevent that"
	case "wal_level_insufficient":
		return ": wal_level was lowered on the primary"
	case "conflict with recovery":
		return ": the primary removed rows that the slot of a standby needs, which hot_standby_feedback = on and a primary_slot_name on the standby prevent, or its wal_level was lowered"
	case "wal_removed":
		return ": the slot kept more WAL than max_slot_wal_keep_size allows"
	case "idle_timeout":
		return ": the slot was idle for longer than idle_replication_slot_timeout"
	}
	return ""
}

// foreign refuses another server or database than the subscription's. No time cures that,
// nor does it matter that everything was in order before.
func foreign(hint, format string, arguments ...any) *Error {
	typed := refused(hint, format, arguments...)
	typed.Final = true
	return typed
}

// diverged is lost where the target has what the publisher does not.
func diverged(format string, arguments ...any) *Error {
	typed := lost(format, arguments...)
	typed.Hint = "rows differ on the two ends: `pgapply verify` lists them. Then run `pgapply cleanup`, bring the tables to the publisher's state, and start again"
	return typed
}

func lost(format string, arguments ...any) *Error {
	return &Error{
		Class: SlotLost, Err: fmt.Errorf(format, arguments...),
		Hint: "changes may be missing on the target: run `pgapply cleanup`, bring the tables to the publisher's state, and start again",
	}
}
