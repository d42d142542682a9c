package state

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

func TestTables(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store := open(t, uri, "orders")
	require.NoError(t, store.RegisterTables(ctx, nil))
	first := []Table{
		{
			Member: Member{Schema: `a "b", {c}\`, Name: `'; drop table x; --`}, Text: `"a ""b"", {c}\"."'; drop table x; --"`,
			State: TableReady, StateLSN: 0x16_B374D848, Existing: ExistingRefused,
		},
		{Member: Member{Schema: "b", Name: "t"}, Text: "b.t", State: TableInit, Existing: ExistingKept},
	}
	require.NoError(t, store.RegisterTables(ctx, first))
	pgtest.Exec(t, uri, `update pgapply.subscription_table set rows_copied = 5, bytes_copied = 6, last_error = 'e' where schema_name = 'b'`)
	first[1].RowsCopied, first[1].BytesCopied, first[1].LastError = 5, 6, "e"

	// What is known stays as it is.
	require.NoError(t, store.RegisterTables(ctx, []Table{{Member: Member{Schema: "b", Name: "t"}, State: TableReady, StateLSN: 9}, {Member: Member{Schema: "c", Name: "t"}, State: TableSyncDone}}))
	tables, err := store.Tables(ctx)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(append(first, Table{Member: Member{Schema: "c", Name: "t"}, Text: "c.t", State: TableSyncDone, Existing: ExistingRefused}), tables))
	require.Equal(t, map[string]int{"r": 1, "i": 1, "s": 1}, CountTables(tables))

	require.ErrorContains(t, store.RegisterTables(ctx, []Table{{Member: Member{Schema: "d", Name: "t"}, State: 'x'}}), "register the tables")
}

func TestOrigins(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store, other := open(t, uri, "orders"), open(t, uri, "other")
	require.NoError(t, store.RegisterOrigin(ctx, Origin{Name: "o1", Worker: 1}))
	require.NoError(t, store.RegisterOrigin(ctx, Origin{Name: "o0", Worker: 0}))
	require.NoError(t, store.RegisterOrigin(ctx, Origin{Name: "o1", ID: 65535, Worker: 1}))
	require.NoError(t, store.RegisterOrigin(ctx, Origin{Name: "o1", Worker: 1}), "again, at the next start")
	require.EqualError(t, other.RegisterOrigin(ctx, Origin{Name: "o1", ID: 3}), `register replication origin "o1": it belongs to another subscription`)
	origins, err := store.Origins(ctx)
	require.NoError(t, err)
	require.Equal(t, []Origin{{Name: "o0"}, {Name: "o1", ID: 65535, Worker: 1}}, origins)
	require.NoError(t, other.ForgetOrigin(ctx, "o1"))
	require.NoError(t, store.ForgetOrigin(ctx, "o0"))
	origins, err = store.Origins(ctx)
	require.NoError(t, err)
	require.Equal(t, []Origin{{Name: "o1", ID: 65535, Worker: 1}}, origins)
}

func TestRunnerRow(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store, next := open(t, uri, "orders"), open(t, uri, "orders")
	require.ErrorContains(t, store.WriteStatus(ctx, &Status{}), "no runner was started here")
	runner, err := store.Runner(ctx)
	require.NoError(t, err)
	require.Nil(t, runner)

	require.NoError(t, store.StartRunner(ctx, Runner{PID: 7, Host: "here", Version: "1.0"}))
	runner, err = store.Runner(ctx)
	require.NoError(t, err)
	require.Nil(t, runner.Status)
	require.Equal(t, []any{7, "here", "1.0"}, []any{runner.PID, runner.Host, runner.Version})
	require.Less(t, runner.HeartbeatAge, time.Hour)

	status := full()
	require.NoError(t, store.WriteStatus(ctx, status))
	again, err := store.Runner(ctx)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(status, again.Status))
	require.Equal(t, []any{"broken", "mend it"}, []any{again.LastError, again.LastErrorHint})
	require.False(t, again.Heartbeat.Before(runner.Heartbeat))
	require.Equal(t, runner.StartedAt, again.StartedAt)
	require.Equal(t, "on", setting(t, store, "synchronous_commit"), "only the status itself may be lost")
	require.Equal(t, "0/16B374D8", pgtest.Query(t, uri, `select status->>'received_lsn' from pgapply.runner`))

	// The next runner takes the row over, and the first one must notice.
	require.NoError(t, next.StartRunner(ctx, Runner{PID: 7, Host: "here", Version: "1.0"}))
	require.ErrorIs(t, store.WriteStatus(ctx, status), ErrRunnerReplaced)
	require.ErrorIs(t, store.EndRunner(ctx), ErrRunnerReplaced)
	runner, err = next.Runner(ctx)
	require.NoError(t, err)
	require.Nil(t, runner.Status)
	require.Empty(t, runner.LastError)
	require.NoError(t, next.EndRunner(ctx))
	runner, err = next.Runner(ctx)
	require.NoError(t, err)
	require.Nil(t, runner)
}

func setting(t *testing.T, store *Store, name string) (value string) {
	t.Helper()
	require.NoError(t, store.mu.conn.QueryRow(t.Context(), `SELECT pg_catalog.current_setting($1)`, name).Scan(&value))
	return value
}

func TestStoreServesSeveralGoroutines(t *testing.T) {
	ctx := t.Context()
	store := open(t, pgtest.Database(t, pgtest.SharedServer(t)), "orders")
	require.NoError(t, store.AdoptSlot(ctx, example(), 1))
	require.NoError(t, store.StartRunner(ctx, Runner{PID: 7, Host: "here", Version: "1.0"}))
	var all sync.WaitGroup
	errs := make(chan error, 400)
	for n := range 100 {
		all.Go(func() { errs <- store.Acknowledge(ctx, lsn.LSN(n)) })
		all.Go(func() { errs <- store.WriteStatus(ctx, &Status{Transactions: int64(n)}) })
		all.Go(func() { _, err := store.Tables(ctx); errs <- err })
		all.Go(func() { _, err := store.TryLock(ctx); errs <- err })
	}
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	sub, err := store.Subscription(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 99, sub.AckLSN)
}

func TestStatementsAfterTheSchemaIsGone(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store := open(t, uri, "orders")
	pgtest.Exec(t, uri, `drop schema pgapply cascade`)
	require.ErrorIs(t, store.Acknowledge(t.Context(), 1), ErrNoSchema)
	require.ErrorContains(t, store.Acknowledge(t.Context(), 1), `record the acknowledged position (subscription "orders")`)
}
