package state

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

func TestPauseAndResume(t *testing.T) {
	ctx := t.Context()
	store := open(t, pgtest.Database(t, pgtest.SharedServer(t)), "orders")
	require.NoError(t, store.AdoptSlot(ctx, example(), 77))
	paused := func(change func(context.Context, string) (bool, error), reason string) *Subscription {
		_, err := change(ctx, reason)
		require.NoError(t, err)
		sub, err := store.Subscription(ctx)
		require.NoError(t, err)
		return sub
	}

	changed, err := store.Resume(ctx)
	require.NoError(t, err)
	require.False(t, changed, "it was not paused")
	first := paused(store.Pause, "maintenance")
	require.False(t, first.Enabled)
	require.NotNil(t, first.PausedAt)
	require.Equal(t, "maintenance", first.PauseReason)

	changed, err = store.Pause(ctx, "another reason")
	require.NoError(t, err)
	require.False(t, changed)
	again, err := store.Subscription(ctx)
	require.NoError(t, err)
	require.Equal(t, first.PauseReason, again.PauseReason)
	require.Equal(t, first.PausedAt, again.PausedAt)

	changed, err = store.Resume(ctx)
	require.NoError(t, err)
	require.True(t, changed)
	sub, err := store.Subscription(ctx)
	require.NoError(t, err)
	require.True(t, sub.Enabled)
	require.Nil(t, sub.PausedAt)
	require.Empty(t, sub.PauseReason)

	require.Empty(t, paused(store.Pause, "").PauseReason)
}

func TestSkip(t *testing.T) {
	ctx := t.Context()
	store := open(t, pgtest.Database(t, pgtest.SharedServer(t)), "orders")
	require.NoError(t, store.AdoptSlot(ctx, example(), 77))
	requireSkip := func(want lsn.LSN) {
		t.Helper()
		sub, err := store.Subscription(ctx)
		require.NoError(t, err)
		require.Equal(t, want, sub.SkipLSN)
	}
	for _, step := range []struct{ set, before lsn.LSN }{{100, 0}, {1 << 63, 100}, {0, 1 << 63}, {200, 0}} {
		before, err := store.SetSkip(ctx, step.set)
		require.NoError(t, err)
		require.Equal(t, step.before, before)
		requireSkip(step.set)
	}
	require.NoError(t, store.ClearSkip(ctx, 199))
	requireSkip(200)
	require.NoError(t, store.ClearSkip(ctx, 200))
	requireSkip(0)
	require.NoError(t, store.ClearSkip(ctx, 200), "nothing to clear")
}

func TestCommandsNotifyTheRunner(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store := open(t, uri, "orders")
	require.NoError(t, store.AdoptSlot(ctx, example(), 77))
	listener := connect(t, uri, "orders")
	_, err := listener.Exec(ctx, `LISTEN `+Channel)
	require.NoError(t, err)
	for _, command := range []func() error{
		func() error { _, err := store.Pause(ctx, ""); return err },
		func() error { _, err := store.Resume(ctx); return err },
		func() error { _, err := store.SetSkip(ctx, 100); return err },
	} {
		require.NoError(t, command())
		notification, err := listener.WaitForNotification(ctx)
		require.NoError(t, err)
		require.Equal(t, "orders", notification.Payload)
	}
}
