package source

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

func readerOf(t *testing.T, uri string) *TableReader {
	t.Helper()
	reader, err := OpenTableReader(t.Context(), Options{URI: uri, ApplicationName: "reader"})
	require.NoError(t, err)
	t.Cleanup(reader.Close)
	return reader
}

// exported is a snapshot that lasts as long as the test.
func exported(t *testing.T, uri string) string {
	t.Helper()
	slot, err := connectTo(t, uri).CreateSlot(t.Context(), SlotOptions{
		Name: "s" + pgtest.Query(t, uri, `select oid from pg_database where datname = current_database()`), Temporary: true, Snapshot: SnapshotExport,
	})
	require.NoError(t, err)
	return slot.SnapshotName
}

func TestCopyTables(t *testing.T) {
	forEachMajor(t, []int{10, 13, 15, 18}, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		pgtest.Exec(t, uri, `create table plain (a int, gone int, "b ""c" text[])`, `alter table plain drop column gone`, `insert into plain select i from generate_series(1, 5000) i`,
			`create table fresh (a int)`, `insert into fresh values (1)`)
		wanted := []Table{{"public", "plain"}, {"public", "none"}, {"public", "fresh"}}
		published, options := "plain, fresh", ""
		if server.Major() >= 13 {
			pgtest.Exec(t, uri, `create table root (a int) partition by range (a)`, `create table low partition of root for values from (0) to (100)`,
				`create table middle partition of root for values from (100) to (5000) partition by range (a)`, `create table leaf partition of middle default`,
				`insert into root select i from generate_series(0, 4999) i`)
			wanted, published, options = append(wanted, Table{"public", "root"}), published+", root", " with (publish_via_partition_root)"
		}
		if server.Major() >= 15 {
			published += " where (a > 1 and a < 5)"
		}
		pgtest.Exec(t, uri, `create publication p for table `+published+options)
		pgtest.Exec(t, uri, `analyze plain`)
		if server.Major() >= 13 {
			pgtest.Exec(t, uri, `analyze root`)
		}
		reader := readerOf(t, uri)
		require.NoError(t, reader.Begin(exported(t, uri)))
		tables, faults, err := reader.CopyTables([]string{"p", "missing"}, wanted)
		require.NoError(t, err)
		require.Empty(t, faults)

		plain := tables[0]
		require.Equal(t, Table{"public", "plain"}, plain.Table)
		require.Equal(t, []CopyColumn{{Name: "a", TypeOID: 23}, {Name: `b "c`, TypeOID: 1009}}, plain.Columns)
		require.Equal(t, int64(5000), plain.Rows)
		require.Positive(t, plain.Pages)
		require.GreaterOrEqual(t, plain.Bytes, plain.Pages*8192)
		require.Equal(t, server.Major() >= 14, plain.Ranges)
		require.Empty(t, plain.Filter)
		require.Equal(t, int64(-1), tables[1].Rows)
		if server.Major() >= 13 {
			root := tables[2]
			require.True(t, root.Partitioned)
			require.Len(t, root.Leaves, 2)
			require.Equal(t, Table{"public", "leaf"}, root.Leaves[0].Table)
			require.Equal(t, int64(5000), root.Rows)
			require.Equal(t, root.Leaves[0].Bytes+root.Leaves[1].Bytes, root.Bytes)
			require.Equal(t, server.Major() >= 15, root.Filter != "")
			require.NoError(t, reader.Pin(root.Table, root.OID, true))
			pgtest.Exec(t, uri, `insert into low values (7)`)
		}
		require.NoError(t, reader.Pin(plain.Table, plain.OID, false))
		require.NoError(t, reader.End())
	})
}

func TestRewrittenTables(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `create table a (a int)`, `create table root (a int) partition by list (a)`, `create table leaf partition of root default`, `create table parent (a int)`,
		`create table child () inherits (parent)`, `create publication p for table a, root, parent with (publish_via_partition_root)`)
	reader, snapshot := readerOf(t, uri), exported(t, uri)
	require.NoError(t, reader.Begin(snapshot))
	tables, _, err := reader.CopyTables([]string{"p"}, []Table{{"public", "a"}, {"public", "root"}, {"public", "parent"}})
	require.NoError(t, err)
	require.NoError(t, reader.End())
	pgtest.Exec(t, uri, `truncate leaf, child`, `alter table a alter a type bigint`)
	for i, rewritten := range []bool{true, true, false} {
		require.NoError(t, reader.Begin(snapshot))
		err := reader.Pin(tables[i].Table, tables[i].OID, tables[i].Partitioned)
		_, told := errors.AsType[*RewrittenError](err)
		require.Equal(t, rewritten, told, "%s: %v", tables[i].Name, err)
		require.NoError(t, reader.End())
	}
}

func TestLockedTableIsNotWaitedFor(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `create table a (a int)`, `create publication p for table a`)
	reader, snapshot := readerOf(t, uri), exported(t, uri)
	holder := pgtest.Open(t, uri)
	holder.Exec(`begin`, `lock table a in access exclusive mode`)
	require.NoError(t, reader.Begin(snapshot))
	_, _, err := reader.CopyTables([]string{"p"}, []Table{{"public", "a"}})
	locked, ok := errors.AsType[*TablesLockedError](err)
	require.True(t, ok, err)
	require.Equal(t, Transient, ClassOf(locked))
	require.NoError(t, reader.End())
}

func TestSnapshotThatIsGone(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	reader := readerOf(t, uri)
	for _, name := range []string{"00000003-0000001B-1", "it's none"} {
		err := reader.Begin(name)
		_, lost := errors.AsType[*SnapshotLostError](err)
		require.True(t, lost, err)
	}
	rows, err := reader.Query(`select 1`)
	require.NoError(t, err)
	require.Len(t, rows, 1)
}
