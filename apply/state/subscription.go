package state

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/lsn"
)

// SlotState is how far the creation of the slot got.
type SlotState string

// The states of a slot. Only a slot in SlotCreating may be dropped and made
// again; in the other two its absence means lost changes.
const (
	SlotCreating SlotState = "creating"
	SlotCreated  SlotState = "created"
	SlotAdopted  SlotState = "adopted"
)

// ProgressIn is where a subscription keeps how far it is applied.
type ProgressIn string

// The places. Either way each transaction writes its position into table progress; with
// origins it is stamped with it, too.
const (
	InOrigins ProgressIn = "origin"
	InTable   ProgressIn = "table"
)

// CutOverAt begins the reason of the pause that ends a cutover.
const CutOverAt = "cut over at "

// Subscription is the row of one subscription.
type Subscription struct {
	Name string
	// Enabled is false while the subscription is paused, since PausedAt and for
	// PauseReason, which may be empty.
	Enabled     bool
	PausedAt    *time.Time
	PauseReason string
	Source      Source
	// TargetSystemID and TargetDatabaseOID say where the row was written: a
	// restored copy of the target finds other values on its own server.
	TargetSystemID    string
	TargetDatabaseOID uint32

	SlotName  string
	SlotState SlotState
	// ConsistentPoint is where the slot began: its first changes committed at or
	// above it. 0 while SlotCreating; of an adopted slot, where it was adopted.
	ConsistentPoint lsn.LSN
	Publications    []string
	// AckLSN is the highest position acknowledged to the publisher, or about to
	// be. 0 when none was.
	AckLSN lsn.LSN
	// SkipLSN is where the transaction ends that is to be skipped; 0 for none.
	SkipLSN lsn.LSN
	// ProgressIn says where the progress is kept. UnstampedUntil is when it came into
	// origins, nil where it was never in the table.
	ProgressIn     ProgressIn
	UnstampedUntil *time.Time
	// Epoch counts the runners; see [Store.RaiseEpoch].
	Epoch int64
	// TablesVersion counts what was decided about the tables outside of the runner.
	TablesVersion int64
	// SyncSlot is the slot of the copy set in work; empty where there is none, or it is
	// the subscription's own. SyncLSN is up to where the set's tables have the changes;
	// 0 before the slot is there.
	SyncSlot string
	SyncLSN  lsn.LSN
	// Settings are the options of the last start, for people to read.
	Settings json.RawMessage

	LastError, LastErrorHint string
	LastErrorAt              *time.Time
	CreatedAt, UpdatedAt     time.Time
}

// CutOver tells whether the target has taken the publisher's place: it is the one that
// writes, and what the publisher may still write is not meant to be applied.
func (s *Subscription) CutOver() bool {
	return !s.Enabled && strings.HasPrefix(s.PauseReason, CutOverAt)
}

// Source identifies a publisher.
type Source struct {
	SystemID string
	Timeline int32
	// History is where its earlier timelines ended, in the form of source.History.
	History  string
	Database string
	// InRecovery: it was a standby, whose timeline may change while it streams.
	InRecovery bool
}

// Subscription returns the row, or nil where the state does not know the subscription.
func (s *Store) Subscription(ctx context.Context) (*Subscription, error) {
	found, err := rows(ctx, s, "read the subscription", scanSubscription, `
		SELECT name, enabled, paused_at, coalesce(pause_reason, ''), source_system_id, source_timeline, source_history, source_database, source_in_recovery,
		       target_system_id, target_database_oid,
		       slot_name, slot_state, coalesce(consistent_point, '0/0')::text, publications, coalesce(ack_lsn, '0/0')::text,
		       coalesce(skip_lsn, '0/0')::text, progress_in, unstamped_until, epoch, tables_version, coalesce(sync_slot, ''), coalesce(sync_lsn, '0/0')::text,
		       settings::text, coalesce(last_error, ''), coalesce(last_error_hint, ''), last_error_at, created_at, updated_at
		FROM pgapply.subscription WHERE name = $1`)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

func scanSubscription(row pgx.CollectableRow) (*Subscription, error) {
	var sub Subscription
	var consistent, acknowledged, skip, sync, settings string
	err := row.Scan(&sub.Name, &sub.Enabled, &sub.PausedAt, &sub.PauseReason, &sub.Source.SystemID, &sub.Source.Timeline, &sub.Source.History, &sub.Source.Database, &sub.Source.InRecovery,
		&sub.TargetSystemID, &sub.TargetDatabaseOID, &sub.SlotName, &sub.SlotState, &consistent, &sub.Publications, &acknowledged,
		&skip, &sub.ProgressIn, &sub.UnstampedUntil, &sub.Epoch, &sub.TablesVersion, &sub.SyncSlot, &sync, &settings, &sub.LastError, &sub.LastErrorHint, &sub.LastErrorAt, &sub.CreatedAt, &sub.UpdatedAt)
	if err != nil {
		return nil, err
	}
	sub.Settings = json.RawMessage(settings)
	if sub.ConsistentPoint, err = lsn.Parse(consistent); err != nil {
		return nil, err
	}
	if sub.AckLSN, err = lsn.Parse(acknowledged); err != nil {
		return nil, err
	}
	if sub.SyncLSN, err = lsn.Parse(sync); err != nil {
		return nil, err
	}
	sub.SkipLSN, err = lsn.Parse(skip)
	return &sub, err
}

// Names lists every subscription that the state knows, this one or not.
func (s *Store) Names(ctx context.Context) ([]string, error) {
	return rows(ctx, s, "list the subscriptions", pgx.RowTo[string],
		`SELECT name FROM pgapply.subscription WHERE $1::text IS NOT NULL ORDER BY name`)
}

// BeginSlot records that a slot is about to be created: the step before the
// publisher is asked. From sub it takes Source, target, SlotName, Publications
// and Settings. A row that is in SlotCreating already is replaced; the caller
// has dropped the slot that it named, if that was left behind. Otherwise the
// error is [ErrSlotRecorded].
func (s *Store) BeginSlot(ctx context.Context, sub *Subscription) error {
	return s.insert(ctx, "record the slot to be created", sub, SlotCreating, 0)
}

// SlotCreated records that the slot of [Store.BeginSlot] exists and where it begins.
func (s *Store) SlotCreated(ctx context.Context, consistentPoint lsn.LSN) error {
	const doing = "record the created slot"
	touched, err := s.exec(ctx, doing, `UPDATE pgapply.subscription
		SET slot_state = 'created', consistent_point = $2::text::pg_lsn, updated_at = pg_catalog.now()
		WHERE name = $1 AND slot_state = 'creating'`, consistentPoint.String())
	if err == nil && touched == 0 {
		return fmt.Errorf("%s: subscription %q has no slot that is being created", doing, s.name)
	}
	return err
}

// AdoptSlot records an existing slot, to be used from its confirmed position on.
// It takes from sub what [Store.BeginSlot] takes.
func (s *Store) AdoptSlot(ctx context.Context, sub *Subscription, confirmed lsn.LSN) error {
	return s.insert(ctx, "record the adopted slot", sub, SlotAdopted, confirmed)
}

func (s *Store) insert(ctx context.Context, doing string, sub *Subscription, slot SlotState, point lsn.LSN) error {
	touched, err := s.exec(ctx, doing, `
		INSERT INTO pgapply.subscription AS s (name, source_system_id, source_timeline, source_database,
			target_system_id, target_database_oid, slot_name, slot_state, consistent_point, publications, settings, progress_in,
			source_history, source_in_recovery)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, nullif($9::text, '0/0')::pg_lsn, $10, $11::text::jsonb, $12, $13, $14)
		ON CONFLICT (name) DO UPDATE SET (source_system_id, source_timeline, source_database,
			target_system_id, target_database_oid, slot_name, slot_state, consistent_point, publications, settings, progress_in, unstamped_until,
			source_history, source_in_recovery, updated_at)
			= ROW (EXCLUDED.source_system_id, EXCLUDED.source_timeline, EXCLUDED.source_database,
			EXCLUDED.target_system_id, EXCLUDED.target_database_oid, EXCLUDED.slot_name, EXCLUDED.slot_state,
			EXCLUDED.consistent_point, EXCLUDED.publications, EXCLUDED.settings, EXCLUDED.progress_in, NULL,
			EXCLUDED.source_history, EXCLUDED.source_in_recovery, pg_catalog.now())
		WHERE s.slot_state = 'creating'`,
		sub.Source.SystemID, sub.Source.Timeline, sub.Source.Database, sub.TargetSystemID, sub.TargetDatabaseOID,
		sub.SlotName, string(slot), point.String(), nonNil(sub.Publications), settingsText(sub.Settings),
		string(cmp.Or(sub.ProgressIn, InOrigins)), sub.Source.History, sub.Source.InRecovery)
	if err == nil && touched == 0 {
		return fmt.Errorf("%s: subscription %q: %w", doing, s.name, ErrSlotRecorded)
	}
	return err
}

// SetSettings records the publications and options of a start.
func (s *Store) SetSettings(ctx context.Context, publications []string, settings json.RawMessage) error {
	return s.execOne(ctx, "record the settings", `UPDATE pgapply.subscription
		SET publications = $2, settings = $3::text::jsonb, updated_at = pg_catalog.now()
		WHERE name = $1`,
		nonNil(publications), settingsText(settings))
}

// SetProgressIn records that the progress is kept elsewhere from now on. No session of an
// earlier runner writes any more.
func (s *Store) SetProgressIn(ctx context.Context, place ProgressIn) error {
	return s.execOne(ctx, "record where the progress is kept", `UPDATE pgapply.subscription
		SET unstamped_until = CASE WHEN progress_in = 'table' AND $2 = 'origin' THEN pg_catalog.clock_timestamp() ELSE unstamped_until END,
		    progress_in = $2, updated_at = pg_catalog.now() WHERE name = $1`, string(place))
}

// SetSource records what the publisher is now, such as its timeline after a failover, and
// that nothing beyond known is acknowledged there. Whether that is acceptable is decided by
// the caller.
func (s *Store) SetSource(ctx context.Context, source Source, known lsn.LSN) error {
	return s.execOne(ctx, "record the publisher", `UPDATE pgapply.subscription
		SET source_system_id = $2, source_timeline = $3, source_history = $4, source_database = $5, source_in_recovery = $6,
		    ack_lsn = CASE WHEN ack_lsn > $7::text::pg_lsn THEN $7::text::pg_lsn ELSE ack_lsn END, updated_at = pg_catalog.now() WHERE name = $1`,
		source.SystemID, source.Timeline, source.History, source.Database, source.InRecovery, known.String())
}

// SetError records what stopped the subscription, for those who look when no
// runner lives. Empty strings take it back.
func (s *Store) SetError(ctx context.Context, message, hint string) error {
	return s.execOne(ctx, "record an error", `UPDATE pgapply.subscription
		SET last_error = nullif($2, ''), last_error_hint = nullif($3, ''),
		    last_error_at = CASE WHEN $2 <> '' THEN pg_catalog.now() END, updated_at = pg_catalog.now()
		WHERE name = $1`, message, hint)
}

// Acknowledge makes durable that the position is about to be acknowledged to
// the publisher, beyond what the origins show; the acknowledgement is sent only
// after Acknowledge has returned. It never goes back: a lower position changes nothing.
func (s *Store) Acknowledge(ctx context.Context, position lsn.LSN) error {
	return s.execOne(ctx, "record the acknowledged position", `UPDATE pgapply.subscription
		SET ack_lsn = greatest(ack_lsn, $2::text::pg_lsn), updated_at = pg_catalog.now() WHERE name = $1`, position.String())
}

// Forget deletes every row of the subscription. It succeeds when there is none.
func (s *Store) Forget(ctx context.Context) error {
	return s.transaction(ctx, "delete the state", func(tx pgx.Tx) error {
		for _, sql := range []string{
			`DELETE FROM pgapply.subscription_table WHERE subscription = $1`,
			`DELETE FROM pgapply.origin WHERE subscription = $1`,
			`DELETE FROM pgapply.progress WHERE subscription IN ($1, $1 || '.sync')`,
			`DELETE FROM pgapply.runner WHERE subscription = $1`,
			`DELETE FROM pgapply.conflict WHERE subscription = $1`,
			`DELETE FROM pgapply.message WHERE subscription = $1`,
			`DELETE FROM pgapply.subscription WHERE name = $1`,
		} {
			if _, err := tx.Exec(ctx, sql, s.name); err != nil {
				return err
			}
		}
		return nil
	})
}

// nonNil keeps an empty list from becoming NULL or null.
func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func settingsText(settings json.RawMessage) string {
	if len(settings) == 0 {
		return "{}"
	}
	return string(settings)
}
