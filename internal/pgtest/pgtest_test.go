package pgtest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { Main(m) }

func TestStartGivesAServerThatPublishes(t *testing.T) {
	server := Start(t, With("work_mem", "5MB"))
	require.Equal(t, "logical|5MB|UTF8", Query(t, server.URI("postgres"),
		`select current_setting('wal_level'), current_setting('work_mem'), current_setting('server_encoding')`))
}

func TestPairIsTwoSystems(t *testing.T) {
	publisher, target := Pair(t)
	identity := `select system_identifier from pg_control_system()`
	require.NotEqual(t, Query(t, publisher.URI("postgres"), identity), Query(t, target.URI("postgres"), identity))
}

func TestDatabaseTakesItsSlotsAndOriginsAlong(t *testing.T) {
	server := SharedServer(t)
	t.Run("use", func(t *testing.T) {
		uri := Database(t, server)
		Exec(t, uri, `create table t (a int, b text)`, `insert into t values (1, null), (2, 'x')`)
		require.Equal(t, "1|\n2|x", Query(t, uri, `select * from t order by a`))
		require.Equal(t, "2", Query(t, uri, `select a from t where b = $1`, "x"))
		Exec(t, uri,
			`select pg_create_logical_replication_slot('s', 'pgoutput')`,
			`select pg_replication_origin_create('pgapply_sub_' || oid || '_0') from pg_database where datname = current_database()`)
		Exec(t, uri, `begin; insert into t values (3); prepare transaction 'it''s'`)
	})
	require.Equal(t, "0|0|0", Query(t, server.URI("postgres"), `select
		(select count(*) from pg_replication_slots), (select count(*) from pg_replication_origin), (select count(*) from pg_prepared_xacts)`))
	require.Equal(t, "0", Query(t, server.URI("postgres"), `select count(*) from pg_database where datname like 't\_%'`))
}
