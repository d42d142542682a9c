package pgtest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
)

func TestMain(m *testing.M) { Main(m) }

func TestStartGivesAServerThatPublishes(t *testing.T) {
	server := Start(t, With("work_mem", "5MB"), Durable())
	require.Equal(t, "logical|5MB|UTF8|C|on|40", Query(t, server.URI("postgres"), `select current_setting('wal_level'),
		current_setting('work_mem'), current_setting('server_encoding'), datcollate, current_setting('fsync'), current_setting('max_replication_slots')
		from pg_database where datname = current_database()`))
	if server.Installation().Origin != cluster.Fallback {
		require.Equal(t, Major(t), server.Major())
	}
}

func TestPairIsTwoSystemsThatReplicate(t *testing.T) {
	publisher, target := Pair(t)
	identity := `select system_identifier from pg_control_system()`
	require.NotEqual(t, Query(t, publisher.URI("postgres"), identity), Query(t, target.URI("postgres"), identity))

	from, to := Database(t, publisher), Database(t, target)
	table := `create table t (a int primary key, b text)`
	Exec(t, from, table, `create publication p for all tables`, `insert into t values (1, 'x')`)
	Exec(t, to, table, fmt.Sprintf(`create subscription s connection '%s' publication p`, from))
	Exec(t, from, `insert into t values (2, null)`)
	WaitFor(t, to, `select * from t order by a`, "1|x\n2|")
}

func TestDatabaseTakesAlongWhatReplicationLeft(t *testing.T) {
	server := SharedServer(t)
	t.Run("use", func(t *testing.T) {
		uri := Database(t, server)
		Exec(t, uri,
			`select pg_create_logical_replication_slot('s1', 'pgoutput')`,
			`select pg_create_logical_replication_slot('s2', 'pgoutput')`,
			`select pg_replication_origin_create('pgapply_sub_' || oid || '_0') from pg_database where datname = current_database()`,
			`create table t (a int)`,
			`begin; insert into t values (3); prepare transaction 'it''s'`)
	})
	require.Equal(t, "0|0|0|0", Query(t, server.URI("postgres"), `select
		(select count(*) from pg_replication_slots), (select count(*) from pg_replication_origin),
		(select count(*) from pg_prepared_xacts), (select count(*) from pg_database where datname like 't\_%')`))
}

func TestSharedIsOnePair(t *testing.T) {
	publisher, target := Shared(t)
	again, _ := Shared(t)
	require.Same(t, publisher, again)
	require.Same(t, publisher, SharedServer(t))
	require.NotEqual(t, publisher.Port(), target.Port())
}

func TestQueryPrintsAsPsqlDoes(t *testing.T) {
	uri := Database(t, SharedServer(t))
	for _, c := range []struct {
		sql, want string
		arguments []any
	}{
		{sql: `select 1, null, 'x' union all select 2, true::text, null order by 1`, want: "1||x\n2|true|"},
		{sql: `select true, '{1,NULL}'::int[]`, want: "t|{1,NULL}"},
		{sql: `select 1; select 2`, want: "1\n2"},
		{sql: `select 1 where false`, want: ""},
		{sql: `select $1::int + 1, $2::text is null, $3::bytea, $4::bool`, arguments: []any{41, nil, []byte{0, 255}, true}, want: `42|t|\x00ff|t`},
	} {
		require.Equal(t, c.want, Query(t, uri, c.sql, c.arguments...), c.sql)
	}
}

func TestWaitForOutlivesARestart(t *testing.T) {
	server := Start(t)
	uri := server.URI("postgres")
	Exec(t, uri, `create table t (a int)`, `insert into t values (7)`)
	require.NoError(t, server.Stop(cluster.Fast))
	restarted := make(chan error)
	go func() { restarted <- server.Restart(t.Context()) }()
	WaitFor(t, uri, `select a from t`, "7")
	require.NoError(t, <-restarted)
}

func TestDatabaseNameNeedsNoQuotes(t *testing.T) {
	require.Regexp(t, `^t_test_x_1___drop________and_something_lon_[0-9a-f]{8}$`, databaseName(`Test/X=1"; drop äöü -- and something long behind it`))
	require.NotEqual(t, databaseName("x"), databaseName("x"))
}
