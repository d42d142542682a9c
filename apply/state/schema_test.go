package state

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

func TestLifeOfASubscription(t *testing.T) {
	onMajors(t, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		live(t, open(t, uri, "orders"))
		_, err := OpenExisting(t.Context(), connect(t, uri, "orders"), "orders")
		require.ErrorIs(t, err, ErrNoSchema)
	})
}

// The way back from a migration leads into a database that publishes all its tables.
func TestTargetThatPublishesAllTables(t *testing.T) {
	onMajors(t, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		pgtest.Exec(t, uri, `CREATE PUBLICATION everything FOR ALL TABLES`)
		live(t, open(t, uri, "orders"))
	})
}

func TestConcurrentFirstStarts(t *testing.T) {
	onMajors(t, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		together(t, 8, func(n int) error {
			name := fmt.Sprintf("s%d", n)
			store, err := Open(t.Context(), connect(t, uri, name), name)
			if err != nil {
				return err
			}
			return store.BeginSlot(t.Context(), example())
		})
		require.Equal(t, fmt.Sprint(Version()), pgtest.Query(t, uri, `select version from pgapply.version`))
		require.Equal(t, "8", pgtest.Query(t, uri, `select count(*) from pgapply.subscription`))
	})
}

// together runs work in so many goroutines that begin at once.
func together(t *testing.T, many int, work func(n int) error) {
	t.Helper()
	begin, errs := make(chan struct{}), make([]error, many)
	var all sync.WaitGroup
	for n := range many {
		all.Go(func() {
			<-begin
			errs[n] = work(n)
		})
	}
	close(begin)
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

func TestConcurrentMigrations(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	open(t, uri, "orders")
	next := append(migrations(), `CREATE TABLE pgapply.extra (a int4); INSERT INTO pgapply.extra VALUES (1)`, `INSERT INTO pgapply.extra VALUES (2)`)
	together(t, 8, func(int) error { return migrate(t.Context(), connect(t, uri, "orders"), next) })
	require.Equal(t, "1\n2", pgtest.Query(t, uri, `select a from pgapply.extra order by a`))
	require.Equal(t, fmt.Sprint(len(next)), pgtest.Query(t, uri, `select version from pgapply.version`))
}

// What has once been published is on somebody's target.
func TestMigrationFromVersion1(t *testing.T) {
	onMajors(t, func(t *testing.T, server *cluster.Cluster) {
		published, err := os.ReadFile("testdata/version1.sql")
		require.NoError(t, err)
		require.Equal(t, string(published), strings.TrimPrefix(version1, "\n"))
		uri := pgtest.Database(t, server)
		pgtest.Exec(t, uri, `create schema pgapply`, string(published), `
			insert into pgapply.version values (1, now());
			insert into pgapply.subscription (name, enabled, source_system_id, source_timeline, source_database, target_system_id, target_database_oid,
				slot_name, slot_state, consistent_point, publications, ack_lsn, epoch, last_error)
			values ('orders', false, '1', 1, 'shop', '2', 5, 'slot', 'created', '0/10', '{p}', '0/20', 7, 'broken');
			insert into pgapply.subscription_table (subscription, schema_name, table_name, state) values ('orders', 's', 't', 'r');
			insert into pgapply.origin values ('orders', 'pgapply_orders_5_0', 1, 0)`)

		conn := connect(t, uri, "orders")
		_, err = OpenExisting(t.Context(), conn, "orders")
		require.Equal(t, &VersionError{Have: 1, Want: Version()}, err, "one who only looks changes nothing")
		for name, is := range map[string]bool{"orders": true, "others": false} {
			found, err := Look(t.Context(), conn, name)
			require.NoError(t, err)
			require.Equal(t, is, found.Known, name)
		}
		store := open(t, uri, "orders")
		sub, err := store.Subscription(t.Context())
		require.NoError(t, err)
		require.Equal(t, "broken", sub.LastError)
		require.False(t, sub.Enabled)
		require.Nil(t, sub.PausedAt)
		require.Zero(t, sub.SkipLSN)
		require.EqualValues(t, 0x20, sub.AckLSN)
		origins, err := store.Origins(t.Context())
		require.NoError(t, err)
		require.Len(t, origins, 1)
		stats, err := store.ConflictStats(t.Context())
		require.NoError(t, err)
		require.Zero(t, stats.Total)
		require.NoError(t, store.Forget(t.Context()))
		live(t, store)
	})
}

func TestFailedMigrationLeavesNothing(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	conn := connect(t, uri, "orders")
	broken := append(migrations(), `CREATE TABLE pgapply.extra (a int4)`, `SELECT 1/0`)
	require.ErrorContains(t, migrate(t.Context(), conn, broken), fmt.Sprintf("bring schema pgapply to version %d: ERROR: division by zero", len(broken)))
	require.Equal(t, "0", pgtest.Query(t, uri, `select count(*) from pg_namespace where nspname = 'pgapply'`))
	store, err := Open(t.Context(), conn, "orders")
	require.NoError(t, err)
	require.Error(t, migrate(t.Context(), conn, broken))
	live(t, store)
}

func TestVersionsThatDoNotFit(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	conn := connect(t, uri, "orders")
	open(t, uri, "orders")
	newer := append(migrations(), `CREATE TABLE pgapply.extra (a int4)`)
	require.NoError(t, migrate(t.Context(), conn, newer))

	for name, attempt := range map[string]func() error{
		"Open":         func() error { _, err := Open(t.Context(), conn, "orders"); return err },
		"OpenExisting": func() error { _, err := OpenExisting(t.Context(), conn, "orders"); return err },
	} {
		typed := new(VersionError)
		require.ErrorAs(t, attempt(), &typed, name)
		require.Equal(t, &VersionError{Have: Version() + 1, Want: Version()}, typed)
		require.EqualError(t, typed, fmt.Sprintf("schema pgapply on the target has version %d, and this pgapply knows versions up to %d", len(newer), Version()))
		require.Contains(t, typed.Hint(), "upgrade this pgapply")
	}
	require.Equal(t, fmt.Sprint(len(newer)), pgtest.Query(t, uri, `select version from pgapply.version`), "a refusal changes nothing")

	// An older schema, for one who only looks.
	pgtest.Exec(t, uri, `update pgapply.version set version = 0`)
	typed := new(VersionError)
	_, err := OpenExisting(t.Context(), conn, "orders")
	require.ErrorAs(t, err, &typed)
	require.EqualError(t, typed, fmt.Sprintf("schema pgapply on the target has version 0, and this pgapply needs version %d", Version()))
	require.Contains(t, typed.Hint(), "upgrade the schema")
}

func TestVersionTableWithoutRow(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	open(t, uri, "orders")
	pgtest.Exec(t, uri, `delete from pgapply.version`)
	_, err := Open(t.Context(), connect(t, uri, "orders"), "orders")
	require.ErrorContains(t, err, "table pgapply.version on the target is empty")
}

// Whatever the search path of a role or database finds first must not be used.
func TestHostileObjectsOnTheSearchPath(t *testing.T) {
	onMajors(t, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		pgtest.Exec(t, uri, `create schema evil`,
			`create function evil.trap() returns int language plpgsql as $$ begin raise exception 'trapped'; end $$`)
		for _, function := range []string{
			`now() returns timestamptz`, `clock_timestamp() returns timestamptz`, `set_config(text, text, bool) returns text`,
			`unnest(text[]) returns setof text`, `pg_try_advisory_lock(int, int) returns bool`, `pg_advisory_unlock(int, int) returns bool`,
			`pg_try_advisory_xact_lock(int, int) returns bool`, `pg_advisory_xact_lock(bigint) returns void`, `host(inet) returns text`,
			`pg_backend_pid() returns int`, `pg_has_role(oid, oid, text) returns bool`, `current_database() returns name`,
			`same(text, text) returns bool`, `same(oid, oid) returns bool`, `same(name, name) returns bool`, `same(int, int) returns bool`,
			`lower(pg_lsn, pg_lsn) returns bool`, `minus(timestamptz, timestamptz) returns interval`, `plus(bigint, int) returns bigint`,
		} {
			pgtest.Exec(t, uri, `create function evil.`+function+` language plpgsql as $$ begin perform evil.trap(); end $$`)
		}
		for _, operator := range []string{
			`= (function = evil.same, leftarg = text, rightarg = text)`, `= (function = evil.same, leftarg = oid, rightarg = oid)`,
			`= (function = evil.same, leftarg = name, rightarg = name)`, `= (function = evil.same, leftarg = int, rightarg = int)`,
			`< (function = evil.lower, leftarg = pg_lsn, rightarg = pg_lsn)`, `- (function = evil.minus, leftarg = timestamptz, rightarg = timestamptz)`,
			`+ (function = evil.plus, leftarg = bigint, rightarg = int)`,
		} {
			pgtest.Exec(t, uri, `create operator evil.`+operator)
		}
		for _, relation := range []string{"pg_namespace", "pg_class", "pg_locks", "pg_stat_activity", "pg_database", "pg_roles", "version", "runner"} {
			pgtest.Exec(t, uri, `create view evil.`+relation+` as select evil.trap() as oid`)
		}
		for _, name := range []string{"text", "jsonb", "pg_lsn", "oid", "int8", "bool", "timestamptz"} {
			pgtest.Exec(t, uri, `create type evil.`+name+` as enum ('trapped')`)
		}
		pgtest.Exec(t, uri, `do $$ begin execute format('alter database %I set search_path = evil, pg_catalog', current_database()); end $$`)
		live(t, open(t, uri, "orders"))
	})
}

// Nobody may prepare a schema in which our role would run his code.
func TestSchemaOfAStranger(t *testing.T) {
	server := pgtest.SharedServer(t)
	role(t, server, "mallory", "")
	role(t, server, "worker", "")
	for name, prepare := range map[string]string{
		"schema": `create schema pgapply`,
		"table": `create schema pgapply; create table pgapply.version (version int); insert into pgapply.version values (1);
			create table pgapply.subscription (name text)`,
	} {
		t.Run(name, func(t *testing.T) {
			uri := pgtest.Database(t, server)
			pgtest.Exec(t, uri, `do $$ begin execute format('grant create on database %I to mallory, worker', current_database()); end $$`)
			pgtest.Exec(t, as(t, uri, "mallory"), prepare)
			pgtest.Exec(t, as(t, uri, "mallory"), `grant all on schema pgapply to public; grant all on all tables in schema pgapply to public`)
			for _, user := range []string{"postgres", "worker"} {
				_, err := Open(t.Context(), connect(t, as(t, uri, user), "orders"), "orders")
				typed := new(OwnerError)
				require.ErrorAs(t, err, &typed)
				require.Equal(t, &OwnerError{Object: "schema pgapply", Owner: "mallory", Role: user}, typed)
				require.EqualError(t, err, `schema pgapply on the target belongs to role "mallory", which has no right to act as role "`+user+`"`)
			}
		})
	}
	t.Run("table in our schema", func(t *testing.T) {
		uri := pgtest.Database(t, server)
		pgtest.Exec(t, uri, `create schema pgapply; grant create, usage on schema pgapply to public`)
		pgtest.Exec(t, as(t, uri, "mallory"), `create table pgapply.runner (subscription text)`)
		_, err := Open(t.Context(), connect(t, uri, "orders"), "orders")
		require.ErrorContains(t, err, `relation pgapply.runner on the target belongs to role "mallory"`)
		require.Equal(t, "1", pgtest.Query(t, uri, `select count(*) from pg_class where relnamespace = 'pgapply'::regnamespace and relkind = 'r'`))
	})
}

func TestUnprivilegedRole(t *testing.T) {
	onMajors(t, func(t *testing.T, server *cluster.Cluster) {
		role(t, server, `plain "role`, "")
		uri := pgtest.Database(t, server)
		user := as(t, uri, `plain "role`)

		// Nothing is there and the role may not make it.
		_, err := Open(t.Context(), connect(t, user, "orders"), "orders")
		missing := new(PrivilegeError)
		require.ErrorAs(t, err, &missing)
		require.False(t, missing.Exists)
		require.Contains(t, err.Error(), "may not create schema pgapply in database")
		require.Contains(t, missing.Hint(), `CREATE SCHEMA pgapply AUTHORIZATION "plain ""role"`)

		// The remedy is enough, to the end.
		pgtest.Exec(t, uri, missing.Hint()[len("as an administrator, in database \"\": ")+len(missing.Database):])
		live(t, open(t, user, "orders"))

		// Made by an administrator for himself: closed, then opened as the remedy says.
		open(t, uri, "orders")
		_, err = Open(t.Context(), connect(t, user, "orders"), "orders")
		closed := new(PrivilegeError)
		require.ErrorAs(t, err, &closed)
		require.True(t, closed.Exists)
		require.Contains(t, err.Error(), "may not use schema pgapply in database")
		pgtest.Exec(t, uri, closed.Hint()[len("as an administrator, in database \"\": ")+len(closed.Database):])
		store := open(t, user, "orders")
		require.NoError(t, store.BeginSlot(t.Context(), example()))
		require.NoError(t, store.Forget(t.Context()))
		kept, err := store.DropSchema(t.Context())
		require.NoError(t, err)
		require.Contains(t, kept, "must be owner of table")
	})
}

func TestDropSchema(t *testing.T) {
	server := pgtest.SharedServer(t)
	drop := func(t *testing.T, store *Store) string {
		kept, err := store.DropSchema(t.Context())
		require.NoError(t, err)
		return kept
	}
	there := func(t *testing.T, uri string) string {
		return pgtest.Query(t, uri, `select count(*) from pg_namespace where nspname = 'pgapply'`)
	}
	t.Run("another subscription", func(t *testing.T) {
		uri := pgtest.Database(t, server)
		require.NoError(t, open(t, uri, "other").BeginSlot(t.Context(), example()))
		require.Equal(t, "other subscriptions use it (1)", drop(t, open(t, uri, "orders")))
		require.Equal(t, "1", there(t, uri))
	})
	t.Run("another runner that is starting", func(t *testing.T) {
		uri := pgtest.Database(t, server)
		store, other := open(t, uri, "orders"), open(t, uri, "other")
		_, err := other.TryLock(t.Context())
		require.NoError(t, err)
		require.Equal(t, "a runner of another subscription is starting", drop(t, store))
		require.NoError(t, other.Unlock(t.Context()))
		require.Empty(t, drop(t, store))
		require.Equal(t, "0", there(t, uri))
		// The other one was opened before, and must notice.
		_, err = other.TryLock(t.Context())
		require.ErrorIs(t, err, ErrNoSchema)
		open(t, uri, "third")
		_, err = other.TryLock(t.Context())
		require.ErrorIs(t, err, ErrNoSchema)
		require.ErrorContains(t, err, "dropped and made again")
		require.Equal(t, "0", pgtest.Query(t, uri, `select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`))
	})
	t.Run("objects of others", func(t *testing.T) {
		uri := pgtest.Database(t, server)
		store := open(t, uri, "orders")
		pgtest.Exec(t, uri, `create view public.watch as select * from pgapply.runner`)
		require.Contains(t, drop(t, store), "other objects depend on")
		pgtest.Exec(t, uri, `select * from public.watch`, `drop view public.watch`, `create table pgapply.mine (a int)`)
		require.Contains(t, drop(t, store), "other objects depend on")
		pgtest.Exec(t, uri, `drop table pgapply.mine`)
		live(t, open(t, uri, "orders"))
	})
	t.Run("twice", func(t *testing.T) {
		store := open(t, pgtest.Database(t, server), "orders")
		require.Empty(t, drop(t, store))
		require.Empty(t, drop(t, store))
	})
}
