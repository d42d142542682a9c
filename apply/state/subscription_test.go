package state

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

func TestSlotIsCreatedInSteps(t *testing.T) {
	ctx := t.Context()
	store := open(t, pgtest.Database(t, pgtest.SharedServer(t)), "orders")
	sub, err := store.Subscription(ctx)
	require.NoError(t, err)
	require.Nil(t, sub)

	want := example()
	require.NoError(t, store.BeginSlot(ctx, want))
	want.Name, want.Enabled, want.SlotState = "orders", true, SlotCreating
	requireSubscription(t, store, want)

	// A run that was killed here begins again, perhaps with another slot.
	want.SlotName, want.Source.Timeline, want.Publications = "orders2", 4, nil
	require.NoError(t, store.BeginSlot(ctx, want))
	want.Publications = []string{}
	requireSubscription(t, store, want)

	require.NoError(t, store.SlotCreated(ctx, 0x16_B374D848))
	want.SlotState, want.ConsistentPoint = SlotCreated, 0x16_B374D848
	requireSubscription(t, store, want)

	// From here on the slot is never made again.
	require.ErrorIs(t, store.BeginSlot(ctx, example()), ErrSlotRecorded)
	require.ErrorIs(t, store.AdoptSlot(ctx, example(), 1), ErrSlotRecorded)
	require.EqualError(t, store.SlotCreated(ctx, 1), `record the created slot: subscription "orders" has no slot that is being created`)
	requireSubscription(t, store, want)
}

func TestSlotIsAdopted(t *testing.T) {
	store := open(t, pgtest.Database(t, pgtest.SharedServer(t)), "orders")
	want := example()
	require.NoError(t, store.AdoptSlot(t.Context(), want, 77))
	want.Name, want.Enabled, want.SlotState, want.ConsistentPoint = "orders", true, SlotAdopted, 77
	requireSubscription(t, store, want)
	require.ErrorIs(t, store.BeginSlot(t.Context(), example()), ErrSlotRecorded)
}

func TestUpdatesOfASubscription(t *testing.T) {
	ctx := t.Context()
	store := open(t, pgtest.Database(t, pgtest.SharedServer(t)), "orders")
	want := example()
	require.NoError(t, store.AdoptSlot(ctx, want, 77))
	want.Name, want.SlotState, want.ConsistentPoint = "orders", SlotAdopted, 77

	want.Enabled = true
	want.Source = Source{SystemID: "1", Timeline: 9, History: "8 0/1", Database: "x", InRecovery: true}
	require.NoError(t, store.SetSource(ctx, want.Source, 1000))
	want.Publications, want.Settings = []string{"only"}, []byte(`{"binary": true}`)
	require.NoError(t, store.SetSettings(ctx, want.Publications, want.Settings))
	requireSubscription(t, store, want)

	require.NoError(t, store.SetError(ctx, "broken", "mend it"))
	sub, err := store.Subscription(ctx)
	require.NoError(t, err)
	require.Equal(t, "broken", sub.LastError)
	require.Equal(t, "mend it", sub.LastErrorHint)
	require.NotNil(t, sub.LastErrorAt)
	require.NoError(t, store.SetError(ctx, "", ""))
	requireSubscription(t, store, want)
}

func TestAcknowledgedPositionNeverGoesBack(t *testing.T) {
	ctx := t.Context()
	store := open(t, pgtest.Database(t, pgtest.SharedServer(t)), "orders")
	require.NoError(t, store.AdoptSlot(ctx, example(), 1))
	for _, step := range []struct{ give, want lsn.LSN }{{100, 100}, {50, 100}, {0, 100}, {1 << 63, 1 << 63}, {101, 1 << 63}} {
		require.NoError(t, store.Acknowledge(ctx, step.give))
		sub, err := store.Subscription(ctx)
		require.NoError(t, err)
		require.Equal(t, step.want, sub.AckLSN)
	}
	// But where another log begins.
	for _, step := range []struct{ give, want lsn.LSN }{{200, 200}, {150, 150}, {1000, 150}} {
		require.NoError(t, store.SetSource(ctx, example().Source, step.give))
		sub, err := store.Subscription(ctx)
		require.NoError(t, err)
		require.Equal(t, step.want, sub.AckLSN)
	}
}

func TestUnknownSubscription(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	require.NoError(t, open(t, uri, "other").AdoptSlot(ctx, example(), 1))
	store := open(t, uri, "orders")
	for name, err := range map[string]error{
		"Acknowledge": store.Acknowledge(ctx, 1),
		"SetError":    store.SetError(ctx, "", ""),
		"SetSettings": store.SetSettings(ctx, nil, nil),
		"SetSource":   store.SetSource(ctx, Source{}, 0),
	} {
		require.ErrorIs(t, err, ErrNoSubscription, name)
		require.ErrorContains(t, err, `"orders"`, name)
	}
	_, err := store.RaiseEpoch(ctx)
	require.ErrorIs(t, err, ErrNoSubscription)
	_, err = store.Pause(ctx, "")
	require.ErrorIs(t, err, ErrNoSubscription)
	_, err = store.SetSkip(ctx, 1)
	require.ErrorIs(t, err, ErrNoSubscription)
	names, err := store.Names(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"other"}, names)
}

func TestForgetLeavesOthersAlone(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	for _, name := range []string{"orders", "other"} {
		store := open(t, uri, name)
		require.NoError(t, store.AdoptSlot(ctx, example(), 1))
		require.NoError(t, store.RegisterTables(ctx, []Table{{Member: Member{Schema: "s", Name: "t"}, State: TableReady}}))
		require.NoError(t, store.RegisterOrigin(ctx, Origin{Name: name}))
		require.NoError(t, store.StartRunner(ctx, Runner{PID: 1, Host: "h", Version: "v"}))
		_, _, err := store.RecordConflict(ctx, failing())
		require.NoError(t, err)
		pgtest.Query(t, uri, `insert into pgapply.message (subscription, prefix, content, transactional, remote_lsn) values ($1, 'p', 'c', true, '0/1')`, name)
	}
	count := func() string {
		return pgtest.Query(t, uri, `select (select string_agg(name, ',') from pgapply.subscription), (select string_agg(subscription, ',') from pgapply.subscription_table),
			(select string_agg(subscription, ',') from pgapply.origin), (select string_agg(subscription, ',') from pgapply.runner),
			(select string_agg(subscription, ',') from pgapply.conflict), (select string_agg(subscription, ',') from pgapply.message)`)
	}
	for range 2 {
		require.NoError(t, open(t, uri, "orders").Forget(ctx))
		require.Equal(t, "other|other|other|other|other|other", count())
	}
}

// A role that has this by default cannot take it back.
func TestStateUnderReplicaRole(t *testing.T) {
	server := pgtest.SharedServer(t)
	role(t, server, "replica", "superuser")
	uri := pgtest.Database(t, server)
	pgtest.Exec(t, uri, `alter role replica set session_replication_role = replica`)
	live(t, open(t, as(t, uri, "replica"), "orders"))
}

func requireSubscription(t *testing.T, store *Store, want *Subscription) {
	t.Helper()
	got, err := store.Subscription(t.Context())
	require.NoError(t, err)
	if want.ProgressIn == "" {
		want.ProgressIn = InOrigins
	}
	require.Empty(t, cmp.Diff(want, got, cmpopts.IgnoreTypes(time.Time{})))
	require.False(t, got.CreatedAt.IsZero())
	require.False(t, got.UpdatedAt.Before(got.CreatedAt))
}
