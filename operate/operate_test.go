package operate

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
	"pgapply/internal/source"
	"pgapply/origin"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// bed is a publisher's and a target's database with a subscription between them,
// as a runner would have set it up.
type bed struct {
	t                 *testing.T
	ends              Endpoints
	slot              string
	source, target    string
	publisher, server *cluster.Cluster
	identity          source.Identity
	where             state.Target
}

func newBed(t *testing.T, publisher, server *cluster.Cluster) *bed {
	t.Helper()
	b := &bed{t: t, publisher: publisher, server: server, source: pgtest.Database(t, publisher), target: pgtest.Database(t, server)}
	b.ends = Endpoints{Name: "orders", Source: b.source, Target: b.target}
	// Slots share one namespace in a cluster, and the tests share the cluster.
	b.slot = "s" + pgtest.Query(t, b.source, `select oid from pg_database where datname = current_database()`)
	conn, identity, err := b.ends.openSource(t.Context())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	b.identity = identity
	_, b.where = b.control("orders")
	return b
}

func sharedBed(t *testing.T) *bed {
	t.Helper()
	publisher, server := pgtest.Shared(t)
	return newBed(t, publisher, server)
}

// control opens a control session that ends with the test.
func (b *bed) control(name string) (*pgx.Conn, state.Target) {
	b.t.Helper()
	conn, err := state.ConnectControl(b.t.Context(), b.target, "", name)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { b.disconnect(conn) })
	where, err := state.ReadTarget(b.t.Context(), conn)
	require.NoError(b.t, err)
	return conn, where
}

func (b *bed) disconnect(conn *pgx.Conn) {
	b.t.Helper()
	require.NoError(b.t, conn.Close(b.t.Context()))
	<-conn.PgConn().CleanupDone()
}

func (b *bed) store(name string) *state.Store {
	b.t.Helper()
	conn, _ := b.control(name)
	store, err := state.Open(b.t.Context(), conn, name)
	require.NoError(b.t, err)
	return store
}

func (b *bed) subscription() *state.Subscription {
	return &state.Subscription{
		Source:         state.Source{SystemID: b.identity.SystemID, Timeline: b.identity.Timeline, Database: b.identity.Database},
		TargetSystemID: b.where.SystemID, TargetDatabaseOID: b.where.DatabaseOID,
		SlotName: b.slot, Publications: []string{"p"},
	}
}

// The steps in which a subscription comes to be.

func (b *bed) nameOrigins(store *state.Store) {
	for worker := range 2 {
		require.NoError(b.t, store.RegisterOrigin(b.t.Context(), state.Origin{Name: b.origin(worker), Worker: worker}))
	}
}

func (b *bed) createOrigins(store *state.Store) {
	for worker := range 2 {
		id := pgtest.Query(b.t, b.target, `select pg_replication_origin_create($1)`, b.origin(worker))
		var number uint32
		_, err := fmt.Sscan(id, &number)
		require.NoError(b.t, err)
		require.NoError(b.t, store.RegisterOrigin(b.t.Context(), state.Origin{Name: b.origin(worker), ID: number, Worker: worker}))
	}
}

func (b *bed) dropOrigins(*state.Store) {
	for worker := range 2 {
		pgtest.Query(b.t, b.target, `select pg_replication_origin_drop($1)`, b.origin(worker))
	}
}

func (b *bed) beginSlot(store *state.Store) {
	require.NoError(b.t, store.BeginSlot(b.t.Context(), b.subscription()))
}

func (b *bed) createSlot(*state.Store) {
	pgtest.Exec(b.t, b.source, `select pg_create_logical_replication_slot('`+b.slot+`', 'pgoutput')`)
}

func (b *bed) recordSlot(store *state.Store) {
	require.NoError(b.t, store.SlotCreated(b.t.Context(), 1))
}

func (b *bed) registerTables(store *state.Store) {
	require.NoError(b.t, store.RegisterTables(b.t.Context(), []state.Table{{Member: state.Member{Schema: "public", Name: "t"}, State: state.TableReady}}))
}

func (b *bed) startRunner(store *state.Store) {
	require.NoError(b.t, store.StartRunner(b.t.Context(), state.Runner{PID: 4242, Host: "here", Version: "1.0"}))
}

// complete is a subscription whose runner has died.
func (b *bed) complete() *state.Store {
	store := b.store("orders")
	for _, step := range []func(*state.Store){b.startRunner, b.nameOrigins, b.createOrigins, b.beginSlot, b.createSlot, b.recordSlot, b.registerTables} {
		step(store)
	}
	return store
}

func (b *bed) origin(worker int) string { return origin.Name("orders", b.where.DatabaseOID, worker) }

// leftovers counts slots, origins, and schemas that a cleanup should have taken away.
func (b *bed) leftovers() string {
	b.t.Helper()
	return pgtest.Query(b.t, b.source, `select count(*) from pg_replication_slots where database = current_database()`) + " slots, " +
		pgtest.Query(b.t, b.target, `select count(*) from pg_replication_origin where roname like 'pgapply\_orders\_`+fmt.Sprint(b.where.DatabaseOID)+`\_%'`) + " origins, " +
		pgtest.Query(b.t, b.target, `select count(*) from pg_namespace where nspname = 'pgapply'`) + " schemas"
}

// nowhere is an address at which nobody listens.
func nowhere(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	return "postgres://postgres@" + address + "/nobody?sslmode=disable"
}

// as puts a user into a connection string.
func as(t *testing.T, uri, user string) string {
	t.Helper()
	parsed, err := url.Parse(uri)
	require.NoError(t, err)
	parsed.User = url.User(user)
	return parsed.String()
}

func requireClass(t *testing.T, err error, class apply.Class, parts ...string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, class, apply.ClassOf(err), "%v", err)
	require.NotEmpty(t, apply.HintOf(err), "%v", err)
	for _, part := range parts {
		require.Contains(t, err.Error()+"\nremedy: "+apply.HintOf(err), part)
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	want, err := os.ReadFile("testdata/" + file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}
