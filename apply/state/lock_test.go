package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

func TestOneRunnerAtATime(t *testing.T) {
	onMajors(t, func(t *testing.T, server *cluster.Cluster) {
		ctx := t.Context()
		role(t, server, "nobody", "")
		uri, elsewhere := pgtest.Database(t, server), pgtest.Database(t, server)
		first := connect(t, uri, "orders")
		store, err := Open(ctx, first, "orders")
		require.NoError(t, err)
		second := open(t, uri, "orders")

		none, err := second.LockHolder(ctx)
		require.NoError(t, err)
		require.Nil(t, none)
		for range 2 { // the second time changes nothing
			holder, err := store.TryLock(ctx)
			require.NoError(t, err)
			require.Nil(t, holder)
		}
		holder, err := second.TryLock(ctx)
		require.NoError(t, err)
		require.Equal(t, int(first.PgConn().PID()), holder.PID)
		require.Equal(t, "pgapply:orders:control", holder.ApplicationName)
		require.Equal(t, "127.0.0.1", holder.ClientAddress)
		require.Equal(t, fmt.Sprintf("server process %d (pgapply:orders:control) from 127.0.0.1, connected since %s",
			holder.PID, holder.ConnectedAt.UTC().Format(time.RFC3339)), holder.String())
		require.Equal(t, "1", pgtest.Query(t, uri, `select count(*) from pg_locks where locktype = 'advisory' and classid = 'pgapply'::regnamespace`))

		// Other subscriptions and databases are not concerned.
		for _, free := range []*Store{open(t, uri, "other"), open(t, elsewhere, "orders")} {
			holder, err := free.TryLock(ctx)
			require.NoError(t, err)
			require.Nil(t, holder)
		}

		// One who may not see the session learns its process and name at least.
		pgtest.Exec(t, uri, `grant usage on schema pgapply to nobody; grant select on all tables in schema pgapply to nobody`)
		onlooker, err := OpenExisting(ctx, connect(t, as(t, uri, "nobody"), "orders"), "orders")
		require.NoError(t, err)
		seen, err := onlooker.LockHolder(ctx)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("server process %d (pgapply:orders:control)", holder.PID), seen.String())

		require.NoError(t, store.Unlock(ctx))
		require.NoError(t, store.Unlock(ctx))
		holder, err = second.TryLock(ctx)
		require.NoError(t, err)
		require.Nil(t, holder)
	})
}

func TestLockDiesWithItsSession(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	conn, err := ConnectControl(ctx, uri, "", "orders")
	require.NoError(t, err)
	store, err := Open(ctx, conn, "orders")
	require.NoError(t, err)
	_, err = store.TryLock(ctx)
	require.NoError(t, err)
	second := open(t, uri, "orders")
	holder, err := second.TryLock(ctx)
	require.NoError(t, err)
	require.NotNil(t, holder)

	pgtest.Exec(t, uri, fmt.Sprintf(`select pg_terminate_backend(%d)`, holder.PID))
	pgtest.WaitFor(t, uri, `select count(*) from pg_stat_activity where pid = $1`, "0", holder.PID)
	holder, err = second.TryLock(ctx)
	require.NoError(t, err)
	require.Nil(t, holder)
	require.Error(t, store.Acknowledge(ctx, 1), "with the lock goes the power to write")
	disconnect(t, conn)
}

// TestHolderIsEnded: only one that holds the lock and waits for its client.
func TestHolderIsEnded(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	first, second := open(t, uri, "orders"), open(t, uri, "orders")
	holder, err := first.TryLock(ctx)
	require.NoError(t, err)
	require.Nil(t, holder)
	holder, err = second.TryLock(ctx)
	require.NoError(t, err)
	end := func(store *Store, want bool) {
		t.Helper()
		ended, err := second.EndHolder(ctx, int(store.mu.conn.PgConn().PID()))
		require.NoError(t, err)
		require.Equal(t, want, ended)
	}
	end(second, false)
	blocker := pgtest.Open(t, uri)
	blocker.Exec(`begin; lock table pgapply.subscription`)
	busy := make(chan error, 1)
	go func() {
		_, err := first.Names(ctx)
		busy <- err
	}()
	pgtest.WaitFor(t, uri, `select wait_event_type from pg_stat_activity where pid = $1`, "Lock", holder.PID)
	end(first, false)
	blocker.Exec(`commit`)
	require.NoError(t, <-busy)
	pgtest.WaitFor(t, uri, `select state from pg_stat_activity where pid = $1`, "idle", holder.PID)
	end(first, true)
	pgtest.WaitFor(t, uri, `select count(*) from pg_locks where pid = $1`, "0", holder.PID)
}

func TestFenceWaitsForEarlierWriters(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store := open(t, uri, "orders")
	require.NoError(t, store.AdoptSlot(ctx, example(), 1))
	for want := range int64(3) {
		epoch, err := store.RaiseEpoch(ctx)
		require.NoError(t, err)
		require.Equal(t, want+1, epoch)
	}
	writer := connect(t, uri, "orders")
	key := store.WriterLock()
	_, err := writer.Exec(ctx, `SELECT pg_catalog.pg_advisory_lock_shared($1, $2)`, key.Class, key.Object)
	require.NoError(t, err)
	holders, err := store.TryFence(ctx)
	require.NoError(t, err)
	require.Len(t, holders, 1)
	require.Equal(t, int(writer.PgConn().PID()), holders[0].PID)

	_, err = writer.Exec(ctx, `SELECT pg_catalog.pg_advisory_unlock_shared($1, $2)`, key.Class, key.Object)
	require.NoError(t, err)
	holders, err = store.TryFence(ctx)
	require.NoError(t, err)
	require.Empty(t, holders)
	_, err = writer.Exec(ctx, `SELECT pg_catalog.pg_advisory_lock_shared($1, $2)`, key.Class, key.Object)
	require.NoError(t, err, "the fence itself is gone again")
}

// Programs of different versions must keep each other out.
func TestLockKeysAreForEver(t *testing.T) {
	store := newStore(nil, "orders")
	store.schema = 4_000_000_000
	class := int32(4_000_000_000 - 1<<32)
	require.Equal(t, LockKey{Class: class, Object: 1528615109}, store.RunnerLock())
	require.Equal(t, LockKey{Class: class, Object: 1735353638}, store.WriterLock())
}
