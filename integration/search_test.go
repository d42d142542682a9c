package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// The tests in this file say how the row of an UPDATE or DELETE is found: as
// FindReplTupleInLocalRel in worker.c finds it, and better where that fails.

// playSearch runs the workload live and again as a backlog, where changes go out
// without waiting for each other, and wants no row to have been missed.
func playSearch(t *testing.T, setUp func(l *link), workload ...string) {
	for _, m := range []mode{{name: "live"}, {name: "backlog from far away", backlog: true, far: true}} {
		t.Run(m.name, func(t *testing.T) {
			l := newLink(t)
			l.mode = m
			setUp(l)
			l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
			l.play(workload...)
			l.same(`SELECT t::text FROM t ORDER BY 1`)
			status := l.engine.Status()
			require.Zero(t, status.Misses.Update+status.Misses.Delete)
			l.stop()
		})
	}
}

// TestKeyOfAnExtensionType: the key's operator is that of its operator class, in
// whatever schema: by its bare name, = would be that of text.
func TestKeyOfAnExtensionType(t *testing.T) {
	playSearch(t, func(l *link) {
		l.both(`CREATE SCHEMA "Ext"`, `CREATE EXTENSION citext SCHEMA "Ext"`)
		l.onSource(`CREATE TABLE t (k "Ext".citext PRIMARY KEY, v int)`, `INSERT INTO t VALUES ('abc', 1), ('def', 1)`)
		l.onTarget(`CREATE TABLE t (k "Ext".citext PRIMARY KEY, v int)`, `INSERT INTO t VALUES ('ABC', 1), ('DEF', 1)`)
	}, `UPDATE t SET v = 2 WHERE k = 'abc'`, `DELETE FROM t WHERE k = 'def'`)
}

// TestKeyWithANondeterministicCollation: values that differ in case are one key.
func TestKeyWithANondeterministicCollation(t *testing.T) {
	playSearch(t, func(l *link) {
		l.both(`CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`,
			`CREATE TABLE t (k text COLLATE nocase PRIMARY KEY, v int)`)
		l.onSource(`INSERT INTO t VALUES ('abc', 1), ('def', 1)`)
		l.onTarget(`INSERT INTO t VALUES ('ABC', 1), ('DEF', 1)`)
	}, `UPDATE t SET v = 2 WHERE k = 'abc'`, `DELETE FROM t WHERE k = 'def'`)
}

func TestKeysOfCompositeAndDomainTypes(t *testing.T) {
	playSearch(t, func(l *link) {
		l.both(`CREATE TYPE pair AS (a int, b text)`, `CREATE DOMAIN positive AS numeric CHECK (VALUE > 0)`, `CREATE DOMAIN ordinary AS positive`,
			`CREATE TABLE t (c pair, d ordinary, v int, PRIMARY KEY (c, d))`)
		l.both(`INSERT INTO t VALUES ('(1,"a,""(")', 1.0, 1), ('(,)', 1, 1), ('(2,)', 2, 1)`)
		l.onTarget(`UPDATE t SET d = 1.00 WHERE (c).a = 1`)
	}, `UPDATE t SET v = 2 WHERE (c).a = 1`, `UPDATE t SET c = '(3,"")' WHERE (c).a IS NULL`, `DELETE FROM t WHERE d = 2`)
}

// TestFullWithAKeyComparesTheKeyOnly: although the publisher sends the whole old row,
// a target that has a key finds the row by it, also when other values have drifted.
func TestFullWithAKeyComparesTheKeyOnly(t *testing.T) {
	playSearch(t, func(l *link) {
		l.both(`CREATE TABLE t (id int PRIMARY KEY, v text, n int)`)
		l.onSource(`ALTER TABLE t REPLICA IDENTITY FULL`, `INSERT INTO t VALUES (1, 'a', 1), (2, 'b', NULL)`)
		l.onTarget(`INSERT INTO t VALUES (1, 'drifted', NULL), (2, NULL, 7)`)
	}, `UPDATE t SET v = 'c', n = 3 WHERE id = 1`, `DELETE FROM t WHERE id = 2`)
}

// TestDeferrableKeyIsNone: a deferrable primary key does not keep rows apart, so the
// whole row is compared. Under the replica role rows with equal keys come to be.
func TestDeferrableKeyIsNone(t *testing.T) {
	playSearch(t, func(l *link) {
		l.both(`CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text)`)
		l.onSource(`ALTER TABLE t REPLICA IDENTITY FULL`)
		l.both(`SET session_replication_role = replica; INSERT INTO t VALUES (1, 'twin'), (1, 'a'), (2, 'b')`)
	}, `UPDATE t SET v = 'c' WHERE v = 'a'`, `DELETE FROM t WHERE id = 2`)
}

// TestFullBesideALocalColumn: natively a column that only the target has counts as
// NULL in the comparison, so that no row with a value in it is ever found.
func TestFullBesideALocalColumn(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (a int, b text)`)
	l.onSource(`ALTER TABLE t REPLICA IDENTITY FULL`, `CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`ALTER TABLE t ADD extra text DEFAULT 'local'`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 'x'), (2, NULL)`, `UPDATE t SET b = 'y' WHERE a = 1`, `DELETE FROM t WHERE a = 2`)
	l.catchUp()
	require.Equal(t, "1|y|local", pgtest.Query(t, l.target, `SELECT a, b, extra FROM t`))
}

// TestFullWithoutEquality: types that have no equality are compared by their bytes.
// Boxes and circles have an = that compares areas: these here are all equal by it.
func TestFullWithoutEquality(t *testing.T) {
	playSearch(t, func(l *link) {
		l.both(`CREATE TABLE t (id int, j json, p point, b box, c circle, x xml)`)
		l.onSource(`ALTER TABLE t REPLICA IDENTITY FULL`)
	}, `INSERT INTO t SELECT 1, '{"a":1}', point(g, g), box(point(g, g), point(g + 1, g + 1)), circle(point(g, 0), 2), '<a/>' FROM generate_series(1, 4) g`,
		`INSERT INTO t VALUES (1, '{"a": 1}', '(1,1)', '(2,2),(1,1)', '<(1,0),2>', '<a/>')`,
		`UPDATE t SET id = 2 WHERE p[0] = 3`, `DELETE FROM t WHERE p[0] = 2`, `UPDATE t SET id = 3 WHERE j::text = '{"a": 1}'`, `UPDATE t SET j = NULL, p = NULL WHERE id = 3`,
		`UPDATE t SET b = NULL WHERE p IS NULL`)
}

// TestFullChangesOneOfIdenticalRows: exactly one, as often as the publisher did.
func TestFullChangesOneOfIdenticalRows(t *testing.T) {
	playSearch(t, func(l *link) {
		l.both(`CREATE TABLE t (a int, b text)`)
		l.onSource(`ALTER TABLE t REPLICA IDENTITY FULL`)
	}, `INSERT INTO t SELECT 1, NULL FROM generate_series(1, 6)`,
		`DELETE FROM t WHERE ctid = '(0,1)'`, `UPDATE t SET a = 2 WHERE ctid = '(0,2)'`, `UPDATE t SET b = 'x' WHERE ctid IN ('(0,3)', '(0,4)')`,
		`BEGIN; DELETE FROM t WHERE ctid = '(0,5)'; UPDATE t SET a = NULL WHERE b = 'x'; COMMIT`)
}

// TestFullComparesNullWithNull, in every pattern of NULLs.
func TestFullComparesNullWithNull(t *testing.T) {
	playSearch(t, func(l *link) {
		l.both(`CREATE TABLE t (a int, b text, c json, n int)`)
		l.onSource(`ALTER TABLE t REPLICA IDENTITY FULL`)
	}, `INSERT INTO t SELECT a, b, c::json, 0 FROM (VALUES (1), (NULL)) x (a), (VALUES ('b'), (NULL)) y (b), (VALUES ('1'), (NULL)) z (c)`,
		`UPDATE t SET n = 1 WHERE a IS NULL AND b IS NULL AND c IS NULL`, `UPDATE t SET n = 2 WHERE a = 1 AND b IS NULL`, `DELETE FROM t WHERE b = 'b' AND c IS NULL`)
}

// TestTwinOfARowThatIsChangedMeanwhile: the first of two equal rows is locked by a
// session that changes it. The other one is the row then; none is missing.
func TestTwinOfARowThatIsChangedMeanwhile(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (a int, v text)`)
	l.onSource(`ALTER TABLE t REPLICA IDENTITY FULL`, `CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 'x'), (1, 'x')`)
	l.catchUp()
	local := session(t, l.target)
	local(`BEGIN; UPDATE t SET v = 'local' WHERE ctid = '(0,1)'`)
	l.onSource(`UPDATE t SET v = 'y' WHERE ctid = '(0,1)'`)
	l.awaitBlocked()
	local(`COMMIT`)
	l.catchUp()
	require.Equal(t, "1|local\n1|y", pgtest.Query(t, l.target, `SELECT * FROM t ORDER BY v`))
	require.Empty(t, l.recorded())
}

// TestRowThatMovesMeanwhile: a session moves the row to another partition while apply
// waits for it. The server refuses the update then, and another try finds the row.
func TestRowThatMovesMeanwhile(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE TABLE t (id int, v text, place int NOT NULL DEFAULT 1) PARTITION BY LIST (place)`,
		`CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1)`, `CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)`)
	l.onSource(`ALTER TABLE t REPLICA IDENTITY FULL`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 'x')`)
	l.catchUp()
	local := session(t, l.target)
	local(`BEGIN; UPDATE t SET place = 2`)
	l.onSource(`UPDATE t SET v = 'y'`)
	l.awaitBlocked()
	local(`COMMIT`)
	l.catchUp()
	require.Equal(t, "1|y|2", pgtest.Query(t, l.target, `SELECT id, v, place FROM t`))
	require.Empty(t, l.recorded())
}

// TestKeysAreMissedByUpdatesOnly: a table that lacks what rows are searched by takes
// inserts; the first update or delete stops, and says which column or key.
func TestKeysAreMissedByUpdatesOnly(t *testing.T) {
	for name, c := range map[string]struct {
		source, target, mend string
		texts                []string
	}{
		"no key": {
			`CREATE TABLE t (id int PRIMARY KEY, k int)`, `CREATE TABLE t (id int, k int)`,
			`ALTER TABLE t ADD PRIMARY KEY (id)`,
			[]string{`"public.t" has neither REPLICA IDENTITY index nor PRIMARY KEY and published relation does not have REPLICA IDENTITY FULL`},
		},
		"another key": {
			`CREATE TABLE t (id int PRIMARY KEY, k int)`, `CREATE TABLE t (id int, k int PRIMARY KEY)`,
			`ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)`,
			[]string{"did not send replica identity column", `"public.t": "k"`},
		},
		"a key that has more": {
			`CREATE TABLE t (id int PRIMARY KEY, k int)`, `CREATE TABLE t (id int, k int, PRIMARY KEY (id, k))`,
			`ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)`,
			[]string{"did not send replica identity column", `"public.t": "k"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t)
			l.onSource(c.source, `CREATE PUBLICATION p FOR TABLE t`)
			l.onTarget(c.target)
			l.start()
			l.onSource(`INSERT INTO t VALUES (1, 1), (2, 2)`)
			l.catchUp()
			l.same(`SELECT * FROM t ORDER BY id`)
			l.onSource(`BEGIN; INSERT INTO t VALUES (3, 3); UPDATE t SET k = 10 WHERE id = 1; COMMIT`)
			l.failure(c.texts...)
			require.Equal(t, "2", pgtest.Query(t, l.target, `SELECT count(*) FROM t`))
			l.onTarget(c.mend)
			l.catchUp()
			l.same(`SELECT * FROM t ORDER BY id`)
		})
	}
}

// TestKeyThatIsAPartOfThePublishers: the target's key needs fewer columns than were sent.
func TestKeyThatIsAPartOfThePublishers(t *testing.T) {
	playSearch(t, func(l *link) {
		l.onSource(`CREATE TABLE t (a int, b int, v text, PRIMARY KEY (a, b))`)
		l.onTarget(`CREATE TABLE t (a int, b int, v text, PRIMARY KEY (b))`)
	}, `INSERT INTO t VALUES (1, 1, 'x'), (1, 2, 'y'), (1, 3, 'z')`, `UPDATE t SET v = 'w' WHERE b = 2`, `UPDATE t SET a = 5 WHERE b = 1`, `DELETE FROM t WHERE b = 3`)
}

// TestKeyIsNotCutToTheTargetsLength: a value longer than the target's column is no
// other value that begins alike.
func TestKeyIsNotCutToTheTargetsLength(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (k text PRIMARY KEY, v int)`, `INSERT INTO t VALUES ('abcdef', 1)`, `CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE TABLE t (k varchar(3) PRIMARY KEY, v int)`, `INSERT INTO t VALUES ('abc', 0)`)
	l.start()
	l.onSource(`DELETE FROM t`)
	l.catchUp()
	require.Equal(t, "abc|0", pgtest.Query(t, l.target, `SELECT * FROM t`))
	require.Equal(t, `delete_missing|t|skip|skipped|{"k": "abcdef"}|0`, l.recorded())
	l.onSource(`INSERT INTO t VALUES ('abcdefg', 1)`)
	l.failure("public.t", "too long", "22001")
}
