package state

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

// hear starts to listen. The returned function waits for the end, which cancel brings.
func hear(t *testing.T, store *Store, told func()) (cancel func(), ended func() error) {
	t.Helper()
	require.NoError(t, store.StartRunner(t.Context(), Runner{PID: 1, Host: "here"}))
	ctx, cancel := context.WithCancel(t.Context())
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = store.Notified(ctx, told)
	}()
	ended = func() error { <-done; return err }
	t.Cleanup(func() { cancel(); _ = ended() })
	return cancel, ended
}

// TestNotifiedBesideStatements: commands are heard while the session is used for other
// things and while it is not, those for other subscriptions are not, and the session
// outlives the listening.
func TestNotifiedBesideStatements(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store, person, other := open(t, uri, "orders"), open(t, uri, "orders"), open(t, uri, "others")
	require.NoError(t, store.AdoptSlot(ctx, example(), 77))
	require.NoError(t, other.AdoptSlot(ctx, example(), 77))
	told := make(chan struct{}, 1000)
	cancel, ended := hear(t, store, func() { told <- struct{}{} })

	for i := range 10 { // nobody else uses the session
		_, err := person.SetSkip(ctx, lsn.LSN(100+i))
		require.NoError(t, err)
		<-told
	}
	var users sync.WaitGroup
	for user := range 3 {
		users.Go(func() {
			for i := range 200 {
				if err := store.SetError(ctx, fmt.Sprint(user, i), ""); err != nil {
					t.Error(err)
				}
				if sub, err := store.Subscription(ctx); err != nil || sub.SlotName != "orders" {
					t.Error(sub, err)
				}
			}
		})
	}
	for i := range 50 {
		_, err := other.SetSkip(ctx, lsn.LSN(100+i))
		require.NoError(t, err)
		_, err = person.SetSkip(ctx, lsn.LSN(200+i))
		require.NoError(t, err)
		<-told
	}
	users.Wait()
	cancel()
	require.NoError(t, ended())
	require.Empty(t, told, "none for others, none twice")
	sub, err := store.Subscription(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 249, sub.SkipLSN)
}

// TestNotifiedOfALostSession: the end of the session is noticed without a statement.
func TestNotifiedOfALostSession(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store := open(t, uri, "orders")
	_, ended := hear(t, store, func() {})
	pgtest.Exec(t, uri, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgapply:orders:control' AND datname = current_database()`)
	require.ErrorContains(t, ended(), `listen for commands (subscription "orders")`)
}

// TestNotifiedLetsStatementsBeCancelled: a statement beside the listening ends with its
// context, and neither the session nor the listening does.
func TestNotifiedLetsStatementsBeCancelled(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store, person := open(t, uri, "orders"), open(t, uri, "orders")
	require.NoError(t, store.AdoptSlot(ctx, example(), 77))
	told := make(chan struct{}, 10)
	hear(t, store, func() { told <- struct{}{} })
	blocker := connect(t, uri, "blocker")
	_, err := blocker.Exec(ctx, `BEGIN; LOCK TABLE pgapply.subscription`)
	require.NoError(t, err)
	short, cancel := context.WithCancel(ctx)
	failed := make(chan error)
	go func() { failed <- store.SetError(short, "waits", "") }()
	pgtest.WaitFor(t, uri, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`, "1")
	cancel()
	require.ErrorContains(t, <-failed, "57014")
	_, err = blocker.Exec(ctx, `ROLLBACK`)
	require.NoError(t, err)
	_, err = person.Pause(ctx, "")
	require.NoError(t, err)
	<-told
	require.NoError(t, store.SetError(ctx, "", ""))
}
