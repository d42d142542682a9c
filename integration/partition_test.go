package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// The tests in this file replicate into partitioned tables and tables with children.

// TestPartitionedTargets: rows go through the root, whatever partitions the target
// has, and move when an update says so; one that fits nowhere stops.
func TestPartitionedTargets(t *testing.T) {
	eachMode(t, func(t *testing.T, l *link) {
		l.onSource(`CREATE TABLE t (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY HASH (id)`,
			`CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0)`, `CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)`,
			`CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)`)
		l.onTarget(`CREATE TABLE t (v text, region text, id int, PRIMARY KEY (region, id)) PARTITION BY LIST (region)`,
			`CREATE TABLE eu PARTITION OF t FOR VALUES IN ('eu')`,
			`CREATE TABLE us (id int NOT NULL, gone int, region text NOT NULL, v text)`, `ALTER TABLE us DROP gone`, `ALTER TABLE t ATTACH PARTITION us FOR VALUES IN ('us')`)
		l.play(`INSERT INTO t SELECT g, 'eu', 'v' || g FROM generate_series(1, 6) g`,
			`UPDATE t SET region = 'us' WHERE id IN (1, 2)`, `UPDATE t SET id = id + 10 WHERE id IN (2, 3)`, `UPDATE t SET v = 'w' WHERE id IN (1, 4)`,
			`BEGIN; UPDATE t SET region = 'us', v = NULL WHERE id = 5; UPDATE t SET region = 'eu' WHERE id = 5; COMMIT`, `DELETE FROM t WHERE id = 6`)
		l.same(`SELECT id, region, v FROM t ORDER BY id`)
		require.Equal(t, "eu|3\nus|2", pgtest.Query(t, l.target, `SELECT tableoid::regclass::text, count(*) FROM t GROUP BY 1 ORDER BY 1`))
		status := l.engine.Status()
		require.Zero(t, status.Misses.Update+status.Misses.Delete)

		l.onSource(`UPDATE t SET region = 'asia' WHERE id = 4`)
		l.failure("public.t", "no partition")
		l.onTarget(`CREATE TABLE asia PARTITION OF t FOR VALUES IN ('asia')`)
		l.catchUp()
		// Partitions come and go while statements are prepared.
		l.onTarget(`ALTER TABLE t DETACH PARTITION us`, `ALTER TABLE t ATTACH PARTITION us FOR VALUES IN ('us', 'mars')`)
		l.onSource(`UPDATE t SET region = 'mars' WHERE id = 4`, `UPDATE t SET v = 'y' WHERE region = 'us'`)
		l.catchUp()
		l.same(`SELECT id, region, v FROM t ORDER BY id`)
	})
}

// TestPartitionsUnderTheirOwnNames: without publish_via_partition_root the partitions
// are tables of their own, which the target may have in any arrangement.
func TestPartitionsUnderTheirOwnNames(t *testing.T) {
	eachMode(t, func(t *testing.T, l *link) {
		l.onSource(`CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)`, `CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)`,
			`CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)`, `CREATE PUBLICATION p FOR TABLE t`)
		l.onTarget(`CREATE TABLE low (v text, id int PRIMARY KEY)`, `CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)`,
			`CREATE TABLE high PARTITION OF t DEFAULT`)
		l.play(`INSERT INTO t VALUES (1, 'a'), (2, 'b'), (11, 'c')`, `UPDATE t SET id = 12 WHERE id = 1`, `UPDATE t SET v = 'd' WHERE id = 11`, `DELETE FROM t WHERE id = 2`)
		require.Equal(t, "11|d\n12|a", l.same(`SELECT id, v FROM high ORDER BY id`))
		require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM low`))
	})
}

// TestRowTriggersOfAMovingRow: native apply deletes in one partition and inserts into
// the other. SQL's UPDATE fires BEFORE UPDATE first. The rest is the same.
func TestRowTriggersOfAMovingRow(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (id int, k int, PRIMARY KEY (id, k))`, `CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE TABLE t (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)`, `CREATE TABLE one PARTITION OF t FOR VALUES IN (1)`, `CREATE TABLE two PARTITION OF t FOR VALUES IN (2)`)
	l.witness("BEFORE UPDATE", "AFTER UPDATE", "BEFORE DELETE", "AFTER DELETE", "BEFORE INSERT", "AFTER INSERT")
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 1)`)
	l.catchUp()
	l.onTarget(`TRUNCATE seen`)
	l.onSource(`UPDATE t SET k = 2`)
	l.catchUp()
	require.Equal(t, "one BEFORE UPDATE\none BEFORE DELETE\ntwo BEFORE INSERT\none AFTER DELETE\ntwo AFTER INSERT", l.seen())
}

// TestConflictNamesThePartition where the row in the way is.
func TestConflictNamesThePartition(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)`, `CREATE TABLE leaf PARTITION OF t FOR VALUES FROM (0) TO (10)`, `INSERT INTO t VALUES (1, 'local')`)
	l.start(onConflict("insert_exists=keep_local"))
	l.onSource(`INSERT INTO t VALUES (1, 'remote')`)
	l.catchUp()
	require.Equal(t, "insert_exists|t|public.leaf|public.t_pkey", pgtest.Query(t, l.target,
		`SELECT conflict_type, relname, local_conflicts -> 0 ->> 'table', local_conflicts -> 0 ->> 'index' FROM pgapply.conflict`))
}

// TestChildrenByInheritanceAreLeftAlone: a change means exactly the named table.
func TestChildrenByInheritanceAreLeftAlone(t *testing.T) {
	eachMode(t, func(t *testing.T, l *link) {
		l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE TABLE f (id int, v text)`)
		l.onSource(`ALTER TABLE f REPLICA IDENTITY FULL`, `CREATE PUBLICATION p FOR TABLE t, f`)
		l.onTarget(`CREATE TABLE t_child (w int) INHERITS (t)`, `INSERT INTO t_child VALUES (1, 'child'), (2, 'child'), (3, 'child')`,
			`CREATE TABLE f_child () INHERITS (f)`, `INSERT INTO f_child VALUES (1, 'a'), (2, 'a')`)
		l.play(`INSERT INTO t VALUES (1, 'a'), (2, 'a')`, `INSERT INTO f VALUES (1, 'a'), (2, 'a')`,
			`UPDATE t SET v = 'b' WHERE id = 1`, `DELETE FROM t WHERE id = 2`, `UPDATE f SET v = 'b' WHERE id = 1`, `DELETE FROM f WHERE id = 2`)
		require.Equal(t, "1|b|1|b", pgtest.Query(t, l.target, `SELECT * FROM ONLY t, ONLY f`))
		l.play(`TRUNCATE t, f`)
		require.Equal(t, "1|child\n2|child\n3|child", pgtest.Query(t, l.target, `SELECT id, v FROM t ORDER BY id`))
		require.Equal(t, "1|a\n2|a", pgtest.Query(t, l.target, `SELECT id, v FROM f ORDER BY id`))
		// A row that only a child has is missing.
		require.Empty(t, l.recorded())
		l.play(`INSERT INTO t VALUES (3, 'a')`)
		l.onTarget(`DELETE FROM ONLY t`)
		l.play(`UPDATE t SET v = 'b'`)
		require.Equal(t, `update_missing|t|skip|skipped|{"id": "3"}|0`, l.recorded())
	})
}

// TestKeyOfAPartitionedTargetIsItsRoots: natively the partition in which the row is
// says how it is found. Statements go through the root, and keys that only partitions
// have do not count: that stops, or compares the whole row where it is sent.
func TestKeyOfAPartitionedTargetIsItsRoots(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE TABLE t (id int, v text) PARTITION BY RANGE (id)`, `CREATE TABLE leaf (id int PRIMARY KEY, v text)`, `ALTER TABLE t ATTACH PARTITION leaf DEFAULT`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 'a')`)
	l.catchUp()
	l.onSource(`UPDATE t SET v = 'b'`)
	l.failure(`"public.t" has neither REPLICA IDENTITY index nor PRIMARY KEY`)
	l.onTarget(`ALTER TABLE t ADD PRIMARY KEY (id)`)
	l.catchUp()
	l.same(`SELECT * FROM t`)
	l.onTarget(`ALTER TABLE t DROP CONSTRAINT t_pkey`)
	l.onSource(`ALTER TABLE t REPLICA IDENTITY FULL`, `UPDATE t SET v = 'c'`)
	l.catchUp()
	require.Equal(t, "1|c", l.same(`SELECT * FROM t`))
}
