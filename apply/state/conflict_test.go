package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"pgapply/conflict"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// failing is a conflict without an empty field.
func failing() conflict.Conflict {
	at := time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC)
	return conflict.Conflict{
		Type: conflict.MultipleUnique, Schema: `S"s`, Table: "t.x",
		RemoteXID: 4_000_000_000, FinishLSN: 0x16_B374D848, RemoteTime: at, RemoteOrigin: "third",
		ReplicaIdentity: []byte(`{"a": "1"}`), RemoteTuple: []byte(`{"a": "1", "b": "tea, \\ \"ü\""}`),
		Local: []conflict.Local{
			{Table: "t_1", XID: "5000000000", CommitTime: &at, Origin: "fourth", Index: "t_b", Key: []byte(`{"b": "x"}`), Tuple: []byte(`{"a": "2"}`)},
			{XID: "7"},
		},
		Policy: conflict.Error, Resolution: conflict.Failed,
	}
}

func TestConflictIsRecordedWhole(t *testing.T) {
	onMajors(t, func(t *testing.T, server *cluster.Cluster) {
		ctx := t.Context()
		uri := pgtest.Database(t, server)
		store, other := open(t, uri, "orders"), open(t, uri, "other")
		id, fresh, err := store.RecordConflict(ctx, failing())
		require.NoError(t, err)
		require.True(t, fresh)
		got, err := store.Conflict(ctx, id)
		require.NoError(t, err)
		require.False(t, got.At.IsZero())
		require.Equal(t, id, got.ID)
		require.True(t, failing().RemoteTime.Equal(got.RemoteTime))
		require.Empty(t, cmp.Diff(failing(), got.Conflict))

		none, err := other.Conflict(ctx, id)
		require.NoError(t, err)
		require.Nil(t, none, "another subscription's")

		// What is not known stays unknown.
		bare := conflict.Conflict{Type: conflict.DeleteMissing, Schema: "s", Table: "t", FinishLSN: 1, RemoteTuple: []byte("null"), Resolution: conflict.Skipped}
		id, fresh, err = store.RecordConflict(ctx, bare)
		require.NoError(t, err)
		require.True(t, fresh)
		got, err = store.Conflict(ctx, id)
		require.NoError(t, err)
		bare.RemoteTuple, bare.Local = nil, []conflict.Local{}
		require.Empty(t, cmp.Diff(bare, got.Conflict))
		require.Equal(t, "t|t|t|t|[]", pgtest.Query(t, uri, `select remote_tuple is null, replica_identity is null, remote_commit_ts is null,
			remote_origin is null, local_conflicts from pgapply.conflict where id = $1`, id))
	})
}

// Rows that are too long to look at are not fetched, and their conflict is.
func TestRecentConflicts(t *testing.T) {
	ctx := t.Context()
	store := open(t, pgtest.Database(t, pgtest.SharedServer(t)), "orders")
	_, _, err := store.RecordConflict(ctx, failing())
	require.NoError(t, err)
	long := failing()
	long.FinishLSN++
	long.RemoteTuple = []byte(`{"a": "` + strings.Repeat("x", mostValues) + `"}`)
	_, _, err = store.RecordConflict(ctx, long)
	require.NoError(t, err)

	recent, err := store.RecentConflicts(ctx, 5)
	require.NoError(t, err)
	require.Len(t, recent, 2)
	long.RemoteTuple = nil
	require.Empty(t, cmp.Diff(long, recent[0].Conflict))
	require.Empty(t, cmp.Diff(failing(), recent[1].Conflict))
	recent, err = store.RecentConflicts(ctx, 1)
	require.NoError(t, err)
	require.Len(t, recent, 1)
}

// What sessions that apply have read is in the database's encoding.
func TestConflictInAnotherEncoding(t *testing.T) {
	server := pgtest.SharedServer(t)
	for encoding, letter := range map[string]string{"LATIN1": "\xe4", "SQL_ASCII": "\xe4", "UTF8": "ä"} {
		database := "conflict_" + strings.ToLower(encoding)
		pgtest.Exec(t, server.URI("postgres"), fmt.Sprintf(`create database %s encoding '%s' template template0 locale 'C'`, database, encoding))
		t.Cleanup(func() { pgtest.Exec(t, server.URI("postgres"), `drop database `+database+` with (force)`) })
		uri := server.URI(database)
		store := open(t, uri, "orders")
		tuple := []byte(`{"a": "` + letter + `"}`)
		id, _, err := store.RecordConflict(t.Context(), conflict.Conflict{
			Type: conflict.UpdateMissing, Schema: "s", Table: letter, RemoteOrigin: letter, ReplicaIdentity: tuple, RemoteTuple: tuple,
			Local: []conflict.Local{{Tuple: tuple}}, Resolution: conflict.Failed,
		})
		require.NoError(t, err, encoding)
		text := fmt.Sprintf("%x", letter)
		require.Equal(t, strings.Join([]string{text, text, text, text, text}, "|"), pgtest.Query(t, uri, `
			select encode(relname::bytea, 'hex'), encode(remote_origin::bytea, 'hex'), encode((replica_identity ->> 'a')::bytea, 'hex'),
				encode((remote_tuple ->> 'a')::bytea, 'hex'), encode((local_conflicts -> 0 -> 'tuple' ->> 'a')::bytea, 'hex')
			from pgapply.conflict where id = $1`, id), encoding)
	}
}

func TestFailureIsRecordedOncePerTransactionAndRow(t *testing.T) {
	ctx := t.Context()
	store := open(t, pgtest.Database(t, pgtest.SharedServer(t)), "orders")
	first, _, err := store.RecordConflict(ctx, failing())
	require.NoError(t, err)
	for name, change := range map[string]func(*conflict.Conflict){
		"again":              func(*conflict.Conflict) {},
		"another local row":  func(c *conflict.Conflict) { c.Local = nil },
		"another time":       func(c *conflict.Conflict) { c.RemoteTime = time.Time{} },
		"spelt differently":  func(c *conflict.Conflict) { c.ReplicaIdentity = []byte(`{"a":"1"}`) },
		"with other members": func(c *conflict.Conflict) { c.RemoteXID, c.RemoteOrigin = 1, "" },
	} {
		c := failing()
		change(&c)
		id, fresh, err := store.RecordConflict(ctx, c)
		require.NoError(t, err, name)
		require.False(t, fresh, name)
		require.Equal(t, first, id, name)
	}
	seen := map[int64]bool{first: true}
	for name, change := range map[string]func(*conflict.Conflict){
		"another row":             func(c *conflict.Conflict) { c.RemoteTuple = []byte(`{"a": "1", "b": "2"}`) },
		"another key":             func(c *conflict.Conflict) { c.ReplicaIdentity = []byte(`{"a": "2"}`) },
		"no key":                  func(c *conflict.Conflict) { c.ReplicaIdentity = nil },
		"another transaction":     func(c *conflict.Conflict) { c.FinishLSN++ },
		"another type":            func(c *conflict.Conflict) { c.Type = conflict.InsertExists },
		"another table":           func(c *conflict.Conflict) { c.Table = "u" },
		"resolved after all":      func(c *conflict.Conflict) { c.Resolution = conflict.Applied },
		"resolved, and once more": func(c *conflict.Conflict) { c.Resolution = conflict.Applied },
	} {
		c := failing()
		change(&c)
		id, fresh, err := store.RecordConflict(ctx, c)
		require.NoError(t, err, name)
		require.True(t, fresh, name)
		require.False(t, seen[id], name)
		seen[id] = true
	}
}

func TestConflictsAreFiltered(t *testing.T) {
	ctx := t.Context()
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store, other := open(t, uri, "orders"), open(t, uri, "other")
	begin := time.Now()
	for n, c := range []struct {
		schema, table string
		kind          conflict.Type
	}{{"a", "t", conflict.UpdateMissing}, {"B", "t", conflict.UpdateMissing}, {"a", "u", conflict.UpdateMissing}, {"a", "t", conflict.DeleteMissing}} {
		for _, s := range []*Store{store, other} {
			_, _, err := s.RecordConflict(ctx, conflict.Conflict{Type: c.kind, Schema: c.schema, Table: c.table, RemoteXID: uint32(n), Resolution: conflict.Skipped})
			require.NoError(t, err)
		}
	}
	pgtest.Exec(t, uri, `update pgapply.conflict set at = at - interval '1 day' where remote_xid < 2`)
	list := func(filter ConflictFilter) string {
		found, err := store.Conflicts(ctx, filter)
		require.NoError(t, err)
		text := ""
		for _, c := range found {
			require.Empty(t, c.ReplicaIdentity)
			text += fmt.Sprint(c.RemoteXID)
		}
		return text
	}
	for want, filter := range map[string]ConflictFilter{
		"3210": {},
		"32":   {Limit: 2},
		"310":  {Table: "t"},
		"30":   {Table: "a.t"},
		"210":  {Type: "update_missing"},
		"1":    {Type: "update_missing", Table: `"B".t`},
		"3":    {Since: begin.Add(-time.Hour), Table: "t"},
		"":     {Table: "T"},
	} {
		require.Equal(t, want, list(filter), "%+v", filter)
	}

	stats, err := store.ConflictStats(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"update_missing": 3, "delete_missing": 1}, stats.Types)
	require.EqualValues(t, 4, stats.Total)
	require.WithinRange(t, *stats.Last, begin.Add(-time.Minute), time.Now().Add(time.Minute))
	require.EqualValues(t, pgtest.Query(t, uri, `select pg_total_relation_size('pgapply.conflict')`), fmt.Sprint(stats.Bytes))

	deleted, err := store.ClearConflicts(ctx, ConflictFilter{Table: "a.t", Type: "update_missing", Limit: 1})
	require.NoError(t, err)
	require.EqualValues(t, 1, deleted)
	require.Equal(t, "321", list(ConflictFilter{}))
	deleted, err = store.Prune(ctx, 23*time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 1, deleted)
	require.Equal(t, "32", list(ConflictFilter{}))
	deleted, err = store.ClearConflicts(ctx, ConflictFilter{})
	require.NoError(t, err)
	require.EqualValues(t, 2, deleted)
	require.Equal(t, "4", pgtest.Query(t, uri, `select count(*) from pgapply.conflict`), "the other subscription's stay")
}

func TestPruneTakesTheOldestInSteps(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	store := open(t, uri, "orders")
	pgtest.Exec(t, uri, fmt.Sprintf(`insert into pgapply.conflict (subscription, schemaname, relname, conflict_type, remote_xid, remote_commit_lsn, resolution, at)
		select 'orders', 's', 't', 'update_missing', n, '0/1', 'skipped', now() - make_interval(days => 31, secs => n) from generate_series(1, %d) n`, PruneLimit+1))
	for _, want := range []int64{PruneLimit, 1, 0} {
		deleted, err := store.Prune(t.Context(), 30*24*time.Hour)
		require.NoError(t, err)
		require.Equal(t, want, deleted)
		if want == PruneLimit {
			require.Equal(t, "1", pgtest.Query(t, uri, `select remote_xid from pgapply.conflict`), "the newest is left")
		}
	}
}

func TestMessageOutsideOfTransactionsIsKeptOnce(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	open(t, uri, "orders")
	for range 2 {
		for _, transactional := range []bool{true, false} {
			pgtest.Query(t, uri, `insert into pgapply.message (subscription, prefix, content, transactional, remote_lsn)
				values ('orders', 'p', $1, $2, '0/1') on conflict do nothing`, []byte(strings.Repeat("x", 10)), transactional)
		}
	}
	require.Equal(t, "f|1\nt|2", pgtest.Query(t, uri, `select transactional, count(*) from pgapply.message group by 1 order by 1`))
}
