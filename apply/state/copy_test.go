package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// TestCopySets takes tables through a first set and later ones.
func TestCopySets(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store := open(t, uri, "orders")
	require.NoError(t, store.BeginSlot(ctx, example()))
	require.NoError(t, store.SlotCreated(ctx, 1))
	odd := Member{Schema: `o'd\d`, Name: `ta"ble`}
	tables := []Table{{Member: odd, State: TableInit}}
	for _, existing := range []ExistingRows{ExistingRefused, ExistingRemoved, ExistingKept} {
		tables = append(tables, Table{Member: Member{Schema: "s", Name: string(existing)}, State: TableInit, Existing: existing})
	}
	require.NoError(t, store.RegisterTables(ctx, tables))
	states := func() string {
		return pgtest.Query(t, uri, `SELECT table_name, state, state_lsn, existing_rows, rows_copied, last_error FROM pgapply.subscription_table ORDER BY schema_name, table_name`)
	}

	// The first set: one table cannot be copied, one was begun, one is copied.
	require.NoError(t, store.CopyStarting(ctx, odd, false))
	require.NoError(t, store.CopyFailed(ctx, odd, "a \xff reason"))
	require.NoError(t, store.CopyStarting(ctx, Member{"s", "refuse"}, true))
	require.NoError(t, store.CopyStarting(ctx, Member{"s", "keep"}, false))
	pgtest.Exec(t, uri, store.CopiedSQL(Copied{Table: Member{"s", "keep"}, Rows: 5, Bytes: 6, Seconds: 1.5, State: TableFinishedCopy, Position: 7}))
	require.NoError(t, store.CopyFailed(ctx, Member{"s", "keep"}, "the reply to COMMIT was lost"))
	require.Equal(t, `ta"ble|i||refuse|0|a ? reason
keep|f|0/7|kept|5|
refuse|d||remove|0|
remove|i||remove|0|`, states())

	require.NoError(t, store.BeginSet(ctx, "orders_sync"))
	sub, err := store.Subscription(ctx)
	require.NoError(t, err)
	require.Equal(t, "orders_sync", sub.SyncSlot)
	require.Zero(t, sub.SyncLSN)
	require.NoError(t, store.SetReached(ctx, 0x20))
	require.NoError(t, store.SetReached(ctx, 0x10))
	require.NoError(t, store.SetSynchronized(ctx, 0x20))
	sub, err = store.Subscription(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 0x20, sub.SyncLSN)
	require.NoError(t, store.SetReady(ctx, 0x30))
	require.NoError(t, store.AbandonSet(ctx))
	require.NoError(t, store.EndSet(ctx))
	require.Equal(t, `ta"ble|i||refuse|0|a ? reason
keep|r|0/30|kept|5|
refuse|i||remove|0|
remove|i||remove|0|`, states())

	// What somebody decides beside the runner.
	require.NoError(t, store.ChangeTables(ctx, []Table{{Member: Member{"new", "t"}, State: TableInit}}, []Member{odd, {"no", "such"}}, []Member{{"s", "keep"}}))
	require.Equal(t, `t|i||refuse|0|
keep|i||remove|5|
refuse|i||remove|0|
remove|i||remove|0|`, states())
	sub, err = store.Subscription(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, sub.TablesVersion)
	require.Empty(t, sub.SyncSlot)

	require.NoError(t, store.MakeOrigin(ctx, Origin{Name: fmt.Sprintf("pgapply_%s", pgtest.Query(t, uri, `SELECT current_database()`)), Worker: -1}))
	origins, err := store.Origins(ctx)
	require.NoError(t, err)
	require.Len(t, origins, 1)
	require.NotZero(t, origins[0].ID)
	pgtest.Exec(t, uri, `SELECT pg_replication_origin_drop(origin_name) FROM pgapply.origin`)
}
