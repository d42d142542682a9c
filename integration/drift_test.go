package integration

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply/state"
)

// TestTargetDDL changes the target's tables under a running engine, in ways that
// leave its prepared statements valid, wrong, or broken: what is applied afterwards is
// right every time, and nothing has to be restarted.
func TestTargetDDL(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, a int, b text, c varchar(10))`, `CREATE TABLE f (a int, b text)`, `ALTER TABLE f REPLICA IDENTITY FULL`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t, f`)
	l.start()
	id := 0
	change := func() {
		t.Helper()
		id += 10
		l.onSource(
			`INSERT INTO t SELECT `+strconv.Itoa(id)+` + g, g, 'b' || g, 'c' || g FROM generate_series(0, 4) g`,
			`UPDATE t SET a = a + 1, b = b || '!' WHERE id % 2 = 0`, `DELETE FROM t WHERE id % 5 = 4`,
			`INSERT INTO f VALUES (1, 'x'), (1, 'x'), (2, NULL)`, `DELETE FROM f WHERE ctid = (SELECT min(ctid) FROM f)`, `UPDATE f SET b = 'y' WHERE ctid = (SELECT max(ctid) FROM f)`)
		l.catchUp()
		l.same(`SELECT id, a, b, c FROM t ORDER BY id`)
		l.same(`SELECT a::int, b, count(*) FROM f GROUP BY 1, 2 ORDER BY 1, 2`)
	}
	change()
	for _, ddl := range []string{
		`ALTER TABLE t ADD extra int DEFAULT 7`,
		`ALTER TABLE t ALTER a TYPE bigint`,
		`ALTER TABLE t ALTER c TYPE text`,
		`ALTER TABLE t DROP extra`,
		`ALTER TABLE t RENAME a TO x; ALTER TABLE t ADD a int; UPDATE t SET a = x; ALTER TABLE t DROP x`,
		`ALTER TABLE t RENAME b TO tmp; ALTER TABLE t RENAME c TO b; ALTER TABLE t RENAME tmp TO c; UPDATE t SET b = c, c = b`,
		`CREATE TABLE copy (c text, b text, more int, a numeric, id bigint); INSERT INTO copy SELECT c, b, 1, a, id FROM t; DROP TABLE t; ALTER TABLE copy RENAME TO t; ALTER TABLE t ADD CONSTRAINT copy_pkey PRIMARY KEY (id)`,
		`CREATE UNIQUE INDEX other ON t (id); ALTER TABLE t ALTER id SET NOT NULL; ALTER TABLE t DROP CONSTRAINT copy_pkey; ALTER TABLE t REPLICA IDENTITY USING INDEX other`,
		`CREATE INDEX ON f (a)`, `ALTER TABLE f ADD n int GENERATED ALWAYS AS IDENTITY`, `ALTER TABLE f ALTER a TYPE text`,
		`CREATE TABLE parts (LIKE t) PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (60);
			INSERT INTO parts SELECT * FROM t WHERE id < 60; CREATE TABLE high (LIKE t); INSERT INTO high SELECT * FROM t WHERE id >= 60;
			DROP TABLE t; ALTER TABLE parts RENAME TO t; ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (60) TO (100000); ALTER TABLE t ADD PRIMARY KEY (id)`,
		`VACUUM (ANALYZE) t`, `GRANT SELECT ON t TO PUBLIC`, `TRUNCATE f`,
	} {
		if ddl == `TRUNCATE f` {
			l.onSource(`TRUNCATE f`)
		}
		l.onTarget(ddl)
		change()
		require.Equal(t, state.Streaming, l.engine.Status().Phase)
	}
	require.Zero(t, l.engine.Status().Retries, "none of this is an error")
	status := l.engine.Status()
	require.Zero(t, status.Misses.Update+status.Misses.Delete)
}

// TestDDLInMidTransaction: the target's table changes between two changes of one
// transaction that is being applied.
func TestDDLInMidTransaction(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY, v int)`, `CREATE TABLE b (id int PRIMARY KEY, v int)`)
	l.onSource(`INSERT INTO a VALUES (1, 1)`, `INSERT INTO b VALUES (1, 1)`)
	l.onTarget(`INSERT INTO a VALUES (1, 1)`, `INSERT INTO b VALUES (1, 1)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE a, b`)
	l.start()
	l.onSource(`BEGIN; UPDATE b SET v = 2; UPDATE a SET v = 2; COMMIT`)
	l.catchUp()
	// The transaction has changed b and waits for a, whose type is about to change.
	blocker := session(t, l.target)
	blocker(`BEGIN; LOCK TABLE a`)
	l.onSource(`BEGIN; UPDATE b SET v = 3; UPDATE a SET v = 3; INSERT INTO a VALUES (2, 2); COMMIT`)
	l.awaitBlocked()
	blocker(`ALTER TABLE a ALTER v TYPE text; ALTER TABLE a RENAME id TO gone; ALTER TABLE a ADD id int; UPDATE a SET id = gone; ALTER TABLE a DROP gone; ALTER TABLE a ADD PRIMARY KEY (id); COMMIT`)
	l.catchUp()
	l.same(`SELECT id, v::text FROM a ORDER BY id`)
	l.same(`SELECT * FROM b`)
}

// TestTypesChangeUnderStatements: changes of types and names that the table's own
// catalog row does not show must not leave values read as what they were before.
func TestTypesChangeUnderStatements(t *testing.T) {
	for name, c := range map[string]struct{ source, target, change, changeTarget, insert, check string }{
		"partitioned root": {
			source: `CREATE TABLE t (id int PRIMARY KEY, f float4)`, target: `CREATE TABLE t (id int PRIMARY KEY, f float4) PARTITION BY RANGE (id); CREATE TABLE d PARTITION OF t DEFAULT`,
			change: `ALTER TABLE t ALTER f TYPE float8`, changeTarget: `ALTER TABLE t ALTER f TYPE float8`,
			insert: `INSERT INTO t SELECT 1 + count(*), 0.1234567890123 FROM t`, check: `SELECT f FROM t WHERE id = 3`,
		},
		"swapped names": {
			source: `CREATE TABLE t (id int PRIMARY KEY, a timestamptz, b timestamp)`, target: `CREATE TABLE t (id int PRIMARY KEY, b timestamptz, a timestamp)`,
			changeTarget: `BEGIN; ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b; COMMIT`, change: `SELECT 1`,
			insert: `INSERT INTO t SELECT 1 + count(*), '2020-01-01 00:00+00', '2020-01-01' FROM t`, check: `SELECT a AT TIME ZONE 'UTC', b FROM t WHERE id = 3`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t)
			l.onSource(`ALTER DATABASE `+l.name+` SET timezone = 'Asia/Tokyo'`, c.source, `CREATE PUBLICATION p FOR TABLE t`)
			l.onTarget(c.target)
			l.start()
			l.onSource(c.insert)
			l.catchUp()
			l.onSource(c.change, c.insert)
			l.catchUp()
			l.onTarget(c.changeTarget)
			l.onSource(c.insert)
			l.catchUp()
			l.same(c.check)
		})
	}
}
