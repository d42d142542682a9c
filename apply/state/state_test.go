package state

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// onMajors runs a test on the oldest major of a target and on the wanted one.
func onMajors(t *testing.T, test func(t *testing.T, server *cluster.Cluster)) {
	t.Run("oldest", func(t *testing.T) { test(t, pgtest.Start(t, pgtest.OnMajor(14))) })
	t.Run("wanted", func(t *testing.T) { test(t, pgtest.SharedServer(t)) })
}

// role makes a role that ends with the test. Make it before the database in
// which it is to own something, which then ends first.
func role(t *testing.T, server *cluster.Cluster, name, attributes string) {
	t.Helper()
	quoted := pgx.Identifier{name}.Sanitize()
	pgtest.Exec(t, server.URI("postgres"), `create role `+quoted+` login `+attributes)
	t.Cleanup(func() { pgtest.Exec(t, server.URI("postgres"), `drop role `+quoted) })
}

// connect opens a control session that ends with the test.
func connect(t *testing.T, uri, name string) *pgx.Conn {
	t.Helper()
	conn, err := ConnectControl(t.Context(), uri, "", name)
	require.NoError(t, err)
	t.Cleanup(func() { disconnect(t, conn) })
	return conn
}

func disconnect(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	require.NoError(t, conn.Close(t.Context()))
	<-conn.PgConn().CleanupDone()
}

// open opens a store over a session of its own.
func open(t *testing.T, uri, name string) *Store {
	t.Helper()
	store, err := Open(t.Context(), connect(t, uri, name), name)
	require.NoError(t, err)
	return store
}

// as puts a user into a connection string.
func as(t *testing.T, uri, user string) string {
	t.Helper()
	parsed, err := url.Parse(uri)
	require.NoError(t, err)
	parsed.User = url.User(user)
	return parsed.String()
}

// example is a subscription before its first start.
func example() *Subscription {
	return &Subscription{
		Source:         Source{SystemID: "7713713780499195838", Timeline: 3, Database: `sh"op`},
		TargetSystemID: "7713713780499195839", TargetDatabaseOID: 4_000_000_000,
		SlotName: "orders", Publications: []string{"plain", `"quoted", {braced}`, "ünï"},
		Settings: []byte(`{"streaming": "parallel"}`),
	}
}

// live plays the whole life of a subscription.
func live(t *testing.T, store *Store) {
	t.Helper()
	ctx := t.Context()
	holder, err := store.TryLock(ctx)
	require.NoError(t, err)
	require.Nil(t, holder)
	require.NoError(t, store.StartRunner(ctx, Runner{PID: 7, Host: "here", Version: "1.0"}))
	require.NoError(t, store.BeginSlot(ctx, example()))
	require.NoError(t, store.SlotCreated(ctx, 0x16_B374D848))
	require.NoError(t, store.RegisterTables(ctx, []Table{{Member: Member{Schema: "a", Name: "b"}, State: TableReady, StateLSN: 5}}))
	require.NoError(t, store.RegisterOrigin(ctx, Origin{Name: "pgapply_orders_1_0"}))
	require.NoError(t, store.RegisterOrigin(ctx, Origin{Name: "pgapply_orders_1_0", ID: 1}))
	epoch, err := store.RaiseEpoch(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, epoch)
	writers, err := store.TryFence(ctx)
	require.NoError(t, err)
	require.Empty(t, writers)
	require.NoError(t, store.Acknowledge(ctx, 0x16_B374D900))
	require.NoError(t, store.SetError(ctx, "broken", "mend it"))
	_, err = store.Pause(ctx, "for a while")
	require.NoError(t, err)
	_, err = store.SetSkip(ctx, 0x16_B374D901)
	require.NoError(t, err)
	require.NoError(t, store.ClearSkip(ctx, 0x16_B374D901))
	_, _, err = store.RecordConflict(ctx, failing())
	require.NoError(t, err)
	stats, err := store.ConflictStats(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Total)
	require.NoError(t, store.SetSettings(ctx, []string{"p"}, []byte(`{}`)))
	require.NoError(t, store.SetSource(ctx, Source{SystemID: "1", Timeline: 4, Database: "d"}, 0x16_B374D901))
	require.NoError(t, store.WriteStatus(ctx, &Status{Subscription: store.Name(), Phase: Streaming}))
	runner, err := store.Runner(ctx)
	require.NoError(t, err)
	require.Equal(t, Streaming, runner.Status.Phase)
	sub, err := store.Subscription(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 0x16_B374D900, sub.AckLSN)
	tables, err := store.Tables(ctx)
	require.NoError(t, err)
	require.Len(t, tables, 1)
	origins, err := store.Origins(ctx)
	require.NoError(t, err)
	require.Equal(t, []Origin{{Name: "pgapply_orders_1_0", ID: 1}}, origins)
	names, err := store.Names(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{store.Name()}, names)
	require.NoError(t, store.EndRunner(ctx))
	require.NoError(t, store.ForgetOrigin(ctx, "pgapply_orders_1_0"))
	require.NoError(t, store.Forget(ctx))
	require.NoError(t, store.Unlock(ctx))
	kept, err := store.DropSchema(ctx)
	require.NoError(t, err)
	require.Empty(t, kept)
}
