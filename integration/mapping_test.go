package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// The tests in this file say which table and column of the target a value goes to,
// and how it is read there.

// TestMissingTableStopsAtItsFirstChange, not before: others go on until then.
func TestMissingTableStopsAtItsFirstChange(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE TABLE absent (id int PRIMARY KEY)`, `CREATE PUBLICATION p FOR TABLE t, absent`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	l.onSource(`BEGIN; INSERT INTO t VALUES (2); INSERT INTO absent VALUES (1); COMMIT`)
	l.failure(`"public.absent" does not exist`, "create the table", "--missing-table skip")
	require.Equal(t, "1", pgtest.Query(t, l.target, `SELECT * FROM t`))
	l.onTarget(`CREATE TABLE absent (id int PRIMARY KEY)`)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
	l.same(`SELECT * FROM absent`)
}

// TestNoTables: what is no table takes no changes, whatever columns it has.
func TestNoTables(t *testing.T) {
	for kind, c := range map[string]struct{ make, drop string }{
		"a view":              {`CREATE VIEW t AS SELECT 1 AS id`, `DROP VIEW t`},
		"a materialized view": {`CREATE MATERIALIZED VIEW t AS SELECT 1 AS id`, `DROP MATERIALIZED VIEW t`},
		"a sequence":          {`CREATE SEQUENCE t`, `DROP SEQUENCE t`},
		"a composite type":    {`CREATE TYPE t AS (id int)`, `DROP TYPE t`},
		"a foreign table":     {`CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE t (id int) SERVER s`, `DROP FOREIGN TABLE t`},
		"an index":            {`CREATE TABLE u (id int); CREATE INDEX t ON u (id)`, `DROP INDEX t`},
		"a partitioned index": {`CREATE TABLE u (id int) PARTITION BY LIST (id); CREATE INDEX t ON u (id)`, `DROP INDEX t`},
	} {
		t.Run(kind, func(t *testing.T) {
			l := newLink(t)
			l.onSource(`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE PUBLICATION p FOR TABLE t`)
			l.onTarget(c.make)
			l.start(func(o *apply.Options) { o.MissingTable = "skip" })
			l.onSource(`INSERT INTO t VALUES (1)`)
			l.failure(`cannot use relation "public.t" as logical replication target: it is ` + kind)
			l.onTarget(c.drop, `CREATE TABLE t (id int PRIMARY KEY)`)
			l.catchUp()
			l.same(`SELECT * FROM t`)
		})
	}
}

// TestValuesAreReadByTheTargetsType: in text form a value is what the target's column
// makes of it, with the length and precision that it has there.
func TestValuesAreReadByTheTargetsType(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (id int PRIMARY KEY, a int, b text, c numeric, d text, e timestamptz, f text)`, `CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE TYPE mood AS ENUM ('sad', 'ok')`,
		`CREATE TABLE t (id bigint PRIMARY KEY, a text, b jsonb, c numeric(10, 1), d int[], e timestamptz(0), f mood)`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 5, '{"b": 1, "a": 2}', 1.25, '{1,NULL}', '2024-01-01 00:00:00.6+00', 'sad')`, `UPDATE t SET a = 6, f = 'ok'`)
	l.catchUp()
	require.Equal(t, `1|6|{"a": 2, "b": 1}|1.3|{1,NULL}|2024-01-01 00:00:01|ok`, pgtest.Query(t, l.target, `SELECT id, a, b, c, d, e AT TIME ZONE 'UTC', f FROM t`))
	l.onSource(`UPDATE t SET f = 'unknown'`)
	l.failure("public.t", "mood", "22P02")
}

// TestBinaryValuesWantTheirType: a binary value that the target's column would read as
// something else stops, and says what helps; without binary it arrives.
func TestBinaryValuesWantTheirType(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (id int PRIMARY KEY, a int, b int)`, `CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE TABLE t (id int PRIMARY KEY, a bigint, b float4)`)
	l.start(func(o *apply.Options) { o.Binary = true })
	l.onSource(`INSERT INTO t VALUES (1, 7, 1)`)
	l.failure("public.t", `"b"`, "binary", "--binary=false")
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM t`))
	l.stop()
	l.start()
	l.catchUp()
	require.Equal(t, "1|7|1", l.same(`SELECT * FROM t`))
}

// TestPublisherDDL: a table that changes on the publisher, between transactions, in one
// of them, and in a part that is rolled back, is read as it was at each change.
func TestPublisherDDL(t *testing.T) {
	eachMode(t, func(t *testing.T, l *link) {
		l.both(`CREATE TABLE t (id int PRIMARY KEY, a text)`, `CREATE TABLE u (id int PRIMARY KEY, a text)`)
		l.onTarget(`ALTER TABLE t ADD b text, ADD c int, ADD d text`)
		l.onSource(`CREATE PUBLICATION p FOR TABLE t, u`)
		l.play(`INSERT INTO t VALUES (1, 'a')`,
			`ALTER TABLE t ADD b text DEFAULT 'default'`, `INSERT INTO t VALUES (2, 'a', 'b')`, `UPDATE t SET a = 'x' WHERE id = 1`,
			`BEGIN; INSERT INTO t VALUES (3, 'a', 'b'); ALTER TABLE t RENAME b TO d; INSERT INTO t VALUES (4, 'a', 'd'); ALTER TABLE t DROP d; INSERT INTO t VALUES (5, 'a'); COMMIT`,
			`BEGIN; SAVEPOINT s; ALTER TABLE t ADD nowhere int; INSERT INTO t VALUES (6, 'gone', 1); ROLLBACK TO s; ALTER TABLE t ADD c int; INSERT INTO t VALUES (6, 'a', 6); COMMIT`,
			`ALTER TABLE t ALTER c TYPE text USING 'c' || c`, `ALTER TABLE t ALTER c TYPE int USING length(c)`, `UPDATE t SET c = 7 WHERE id = 2`,
			`BEGIN; ALTER TABLE t RENAME TO w; ALTER TABLE u RENAME TO t; ALTER TABLE w RENAME TO u; ALTER TABLE u DROP c; INSERT INTO u VALUES (10, 'was t'); INSERT INTO t VALUES (10, 'was u'); COMMIT`)
		require.Equal(t, "1|x|default||\n2|a|b|7|\n3|a|b||\n4|a|||d\n5|a|||\n6|a||6|\n10|was u|||", pgtest.Query(t, l.target, `SELECT id, a, b, c, d FROM t ORDER BY id`))
		require.Equal(t, "10|was t", pgtest.Query(t, l.target, `SELECT * FROM u`))
	})
}

// TestTableThatJoinsThePublication is left out, as natively before a refresh, until
// pgapply is started again.
func TestTableThatJoinsThePublication(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE TABLE late (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.onSource(`ALTER PUBLICATION p ADD TABLE late`, `INSERT INTO late VALUES (1)`, `INSERT INTO t VALUES (1)`)
	l.catchUp()
	require.Equal(t, "1|0", pgtest.Query(t, l.target, `SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM late)`))
	l.stop()
	l.start()
	l.onSource(`INSERT INTO late VALUES (2)`)
	l.catchUp()
	require.Equal(t, "2", pgtest.Query(t, l.target, `SELECT * FROM late`))
}

// TestSchemaOfPgapplyIsNeverApplied: a publisher that is a target of pgapply itself,
// and publishes everything, must not overwrite what is recorded here.
func TestSchemaOfPgapplyIsNeverApplied(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE SCHEMA pgapply`, `CREATE TABLE pgapply.subscription (name text PRIMARY KEY, junk int)`, `CREATE TABLE pgapply.no_such_table (id int PRIMARY KEY)`,
		`CREATE PUBLICATION p FOR ALL TABLES`)
	l.start()
	before := pgtest.Query(t, l.target, `SELECT name FROM pgapply.subscription`)
	l.onSource(`BEGIN; INSERT INTO pgapply.subscription VALUES ('other', 1); INSERT INTO pgapply.no_such_table VALUES (1); INSERT INTO t VALUES (1); COMMIT`,
		`UPDATE pgapply.subscription SET junk = 2`, `DELETE FROM pgapply.subscription`, `TRUNCATE pgapply.subscription, pgapply.no_such_table, t`, `INSERT INTO t VALUES (2)`)
	l.catchUp()
	require.Equal(t, "2", l.same(`SELECT * FROM t`))
	require.Equal(t, before, pgtest.Query(t, l.target, `SELECT name FROM pgapply.subscription`))
	l.stop()
}

// TestCascadeLeavesOurStateAlone: a publisher of all tables that is a target itself
// publishes the state of what it receives. It is no table of anybody else's: neither copied,
// nor removed first, and what the target has of its own goes on.
func TestCascadeLeavesOurStateAlone(t *testing.T) {
	first := newLink(t)
	first.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	first.onSource(`CREATE PUBLICATION p FOR ALL TABLES`, `INSERT INTO t VALUES (1)`)
	copied := func(o *apply.Options) { o.CopyData = true }
	first.start(copied)
	first.catchUp()

	// The second one comes from the first one's target, and a bystander shares its own.
	second := newLink(t)
	second.source = first.target
	bystander := newLink(t)
	bystander.target = second.target
	bystander.both(`CREATE TABLE u (id int PRIMARY KEY)`)
	bystander.onSource(`CREATE PUBLICATION p FOR ALL TABLES`)
	bystander.start(copied)
	second.onSource(`CREATE PUBLICATION p FOR ALL TABLES`)
	second.onTarget(`CREATE TABLE t (id int PRIMARY KEY)`, `INSERT INTO t VALUES (7)`)
	second.start(copied, func(o *apply.Options) { o.IfNotEmpty, o.Confirmed = "truncate", true })
	second.catchUp()
	require.Equal(t, "1", second.same(`SELECT * FROM t`))
	first.onSource(`INSERT INTO t VALUES (2)`)
	bystander.onSource(`INSERT INTO u VALUES (3)`)
	first.catchUp()
	second.catchUp()
	bystander.catchUp()
	require.Equal(t, "1\n2", second.same(`SELECT * FROM t ORDER BY id`))
	require.Equal(t, "3", bystander.same(`SELECT * FROM u`))
	require.Equal(t, "public.t|r\npublic.u|r", pgtest.Query(t, second.target,
		`SELECT schema_name || '.' || table_name, state FROM pgapply.subscription_table ORDER BY 1`))
}
