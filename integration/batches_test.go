package integration

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// Consecutive changes that are alike go out as one statement, a run. The tests in this
// file say that nothing but the number of statements tells them from single changes.
// That number shows in cmin: rows that one statement wrote have the same.

// written counts the statements that wrote the rows of a table that are there.
const written = `SELECT count(DISTINCT (xmin::text, cmin::text)) FROM `

// batchModes are ways for runs to come to the target. Each makes a transaction that is
// larger than the smallest memory of a publisher a streamed one, or not.
func batchModes(t *testing.T, test func(t *testing.T, l *link)) {
	for _, streaming := range []string{"off", "parallel"} {
		for _, binary := range []bool{false, true} {
			t.Run(fmt.Sprintf("streaming %s, binary %t", streaming, binary), func(t *testing.T) {
				l := newLink(t)
				l.streamEarly()
				l.mode = mode{name: streaming, far: binary, change: func(o *apply.Options) { o.Streaming, o.Binary = streaming, binary }}
				test(t, l)
			})
		}
	}
}

// element is an SQL expression for one of the values of a family, or NULL, by a number.
func element(column string, values []string, number string) string {
	expression := "CASE (" + number + fmt.Sprintf(") %% %d", len(values)+1)
	for i, value := range values {
		expression += fmt.Sprintf(" WHEN %d THEN %s", i, value)
	}
	return "(" + expression + " END)::" + column
}

// TestBatchesOfAllTypes in runs of every length there is: none, the shortest, the longest.
func TestBatchesOfAllTypes(t *testing.T) {
	batchModes(t, func(t *testing.T, l *link) {
		l.onTarget(`CREATE TYPE other AS ENUM ('x')`) // user types have other numbers here
		l.both(userTypes)
		columns, inserted, updated := "id positive PRIMARY KEY", "id", ""
		for i, family := range families {
			if family.column == "pair" {
				continue // ROW(..) within CASE has no type
			}
			var values []string
			for _, value := range family.values {
				if !strings.Contains(value, "repeat(") {
					values = append(values, value)
				}
			}
			columns += fmt.Sprintf(", c%d %s", i, family.column)
			inserted += ", " + element(family.column, values, fmt.Sprintf("id + %d", i))
			updated += fmt.Sprintf(", c%d = %s", i, element(family.column, values, fmt.Sprintf("id + %d", i+1)))
		}
		l.both(`CREATE TABLE every (`+columns+`)`, `CREATE TABLE narrow (id int PRIMARY KEY, v text)`)
		l.onSource(`CREATE PUBLICATION p FOR TABLE every, narrow`)
		l.start()
		first := 1
		for _, rows := range []int{1, 3, 4, 1000, 1001} {
			last := first + rows - 1
			among := fmt.Sprintf("WHERE id BETWEEN %d AND %d", first, last)
			l.onSource(fmt.Sprintf(`INSERT INTO every SELECT %s FROM generate_series(%d, %d) id`, inserted, first, last),
				fmt.Sprintf(`INSERT INTO narrow SELECT g, CASE WHEN g %% 7 > 0 THEN repeat('"\,{', g %% 7) END FROM generate_series(%d, %d) g`, first, last))
			l.catchUp()
			l.same(`SELECT every::text FROM every ` + among + ` ORDER BY id`)
			l.writtenBy(statements(rows), `narrow `+among)
			l.onSource(`UPDATE every SET `+updated[2:]+` `+among, `UPDATE narrow SET v = coalesce(v || '''', '') `+among)
			l.catchUp()
			l.same(`SELECT every::text FROM every ` + among + ` ORDER BY id`)
			l.same(`SELECT * FROM narrow ` + among + ` ORDER BY id`)
			l.writtenBy(statements(rows), `narrow `+among)
			l.onSource(`DELETE FROM every `+among+` AND id % 3 > 0`, `DELETE FROM narrow `+among+` AND id % 3 > 0`)
			l.catchUp()
			first = last + 1
		}
		l.same(`SELECT every::text FROM every ORDER BY id`)
		l.same(`SELECT * FROM narrow ORDER BY id`)
		require.Zero(t, l.engine.Status().Replays)
	})
}

// statements is how many statements that many changes come in: one for all, unless they
// are fewer than 4.
func statements(rows int) int {
	if rows < 4 {
		return rows
	}
	return 1
}

// writtenBy proves how many statements wrote those rows. What waits of a streamed
// transaction is sent too when no more of it is there for now: then a few more did.
func (l *link) writtenBy(statements int, rows string) {
	l.t.Helper()
	count, err := strconv.Atoi(pgtest.Query(l.t, l.target, written+rows))
	require.NoError(l.t, err)
	if l.mode.name == "off" || count < statements {
		require.Equal(l.t, statements, count)
	}
	require.Less(l.t, count, statements+10)
}

// TestBatchesOfAwkwardChanges: whatever a run cannot do, or ends it, comes out as if it had
// been done one by one.
func TestBatchesOfAwkwardChanges(t *testing.T) {
	batchModes(t, func(t *testing.T, l *link) {
		l.both(
			`CREATE TABLE alike (k numeric PRIMARY KEY, v int)`,
			`CREATE TABLE swapped (id int PRIMARY KEY, u int NOT NULL, v text)`, `CREATE UNIQUE INDEX ON swapped (u)`,
			`CREATE TABLE keys (a int, b text, v text, PRIMARY KEY (b, a))`,
			`CREATE TABLE toasted (id int PRIMARY KEY, n int, big text)`, `ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL`,
			`CREATE TABLE parent (id int PRIMARY KEY, v text)`,
			`CREATE TABLE emptied (id int, v text)`)
		l.onSource(
			`CREATE TABLE moved (id int PRIMARY KEY, region int, v text)`,
			`CREATE TABLE identity (id int PRIMARY KEY, v int)`,
			`CREATE TABLE kept (id int PRIMARY KEY, big text)`, `ALTER TABLE kept ALTER big SET STORAGE EXTERNAL`)
		l.onTarget(
			`CREATE TABLE moved (id int, region int, v text) PARTITION BY LIST (region)`, `CREATE TABLE moved_1 PARTITION OF moved FOR VALUES IN (1)`,
			`CREATE TABLE moved_other (v text, gone int, id int, region int)`, `ALTER TABLE moved_other DROP gone`, `ALTER TABLE moved ATTACH PARTITION moved_other DEFAULT`,
			`ALTER TABLE moved ADD PRIMARY KEY (id, region)`,
			`CREATE TABLE identity (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED, own text DEFAULT 'own', n serial)`,
			`CREATE TABLE kept (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, big text)`,
			`CREATE TABLE child () INHERITS (parent)`, `INSERT INTO child VALUES (1, 'child'), (2, 'child'), (3, 'child'), (4, 'child')`)
		l.onSource(`ALTER TABLE moved REPLICA IDENTITY FULL`, `CREATE PUBLICATION p FOR ALL TABLES`)
		l.start()
		l.onSource(
			// One row, spelt in two ways: the key's bytes changed while its value did not.
			`INSERT INTO alike SELECT g, 0 FROM generate_series(1, 9) g`,
			`UPDATE alike SET v = 1 WHERE k < 6; UPDATE alike SET k = 3.0, v = 2 WHERE k = 3; UPDATE alike SET v = v + 1; UPDATE alike SET v = v + 1; UPDATE alike SET k = 3.000 WHERE k = 3; DELETE FROM alike WHERE k <> 5`,
			// Values that go around while rows must not share them.
			`INSERT INTO swapped SELECT g, g, 'a' FROM generate_series(1, 9) g`,
			`UPDATE swapped SET u = 0 WHERE id = 1; UPDATE swapped SET u = 1 WHERE id = 9; UPDATE swapped SET u = 9 WHERE id = 8; UPDATE swapped SET u = 8 WHERE id = 7;
				UPDATE swapped SET u = 7 WHERE id = 6; UPDATE swapped SET u = 6 WHERE id = 1`,
			// The key changes within, of several columns.
			`INSERT INTO keys SELECT g % 10, 'b' || g / 10, 'v' FROM generate_series(1, 99) g`,
			`UPDATE keys SET v = 'w'; UPDATE keys SET a = a + 100 WHERE a > 5; UPDATE keys SET v = 'x' WHERE a > 3; DELETE FROM keys WHERE b = 'b3' OR a = 108`,
			// Values that are not sent, sent, and not sent again.
			`INSERT INTO toasted SELECT g, 0, repeat(chr(64 + g), 5000) FROM generate_series(1, 20) g`,
			`UPDATE toasted SET n = 1; UPDATE toasted SET n = 2, big = CASE WHEN id % 5 = 0 THEN NULL WHEN id % 2 = 0 THEN big || 'x' ELSE big END; UPDATE toasted SET n = n + 1`,
			`DELETE FROM toasted WHERE id > 17`,
			// Rows that move between partitions, and a row of an inheritance child that is not meant.
			`INSERT INTO moved SELECT g, g % 3, 'v' FROM generate_series(1, 30) g`,
			`UPDATE moved SET v = 'w'; UPDATE moved SET region = 1; UPDATE moved SET region = id % 4, v = 'x' WHERE id > 10; DELETE FROM moved WHERE id % 5 = 0`,
			`INSERT INTO parent SELECT g, 'p' FROM generate_series(1, 9) g`, `UPDATE parent SET v = 'q'`, `DELETE FROM parent WHERE id < 5`,
			// Nothing to set.
			`INSERT INTO kept SELECT g, repeat('k', 5000) FROM generate_series(1, 9) g`, `UPDATE kept SET id = id`, `UPDATE kept SET id = id WHERE id = 1`,
			`INSERT INTO identity SELECT g, g FROM generate_series(1, 9) g`, `UPDATE identity SET v = v + 1; UPDATE identity SET id = id`, `DELETE FROM identity WHERE id > 5`,
			`BEGIN; INSERT INTO emptied SELECT g, '' FROM generate_series(1, 9) g; TRUNCATE emptied; INSERT INTO emptied SELECT g, '' FROM generate_series(11, 19) g; COMMIT`,
			// What is rolled back of a streamed transaction.
			`BEGIN; INSERT INTO emptied SELECT g, repeat('x', 100) FROM generate_series(100, 1600) g;
				SAVEPOINT a; INSERT INTO emptied SELECT g, repeat('y', 100) FROM generate_series(2000, 3500) g;
				SAVEPOINT b; INSERT INTO emptied SELECT g, 'b' FROM generate_series(4000, 4003) g; ROLLBACK TO b; INSERT INTO emptied SELECT g, 'c' FROM generate_series(5000, 5003) g;
				ROLLBACK TO a; INSERT INTO emptied SELECT g, 'd' FROM generate_series(6000, 6003) g; COMMIT`,
			// Small among large.
			`INSERT INTO emptied SELECT g, repeat('z', CASE WHEN g % 4 = 0 THEN 300000 ELSE 10 END) FROM generate_series(10000, 10030) g`)
		l.catchUp()
		l.same(`SELECT * FROM alike`)
		for _, table := range []string{"swapped", "keys", "toasted", "moved", "identity", "kept", "emptied"} {
			columns := pgtest.Query(t, l.source, `SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0`, table)
			l.same(`SELECT ` + columns + ` FROM ` + table + ` ORDER BY 1, 2`)
		}
		l.same(`SELECT * FROM ONLY parent ORDER BY id`)
		require.Equal(t, "4|child", pgtest.Query(t, l.target, `SELECT count(*), min(v) FROM child`))
		require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT bool_and(twice = v * 2 AND own = 'own' AND n = id) FROM identity`))
		status := l.engine.Status()
		require.Zero(t, status.Misses.Update+status.Misses.Delete)
		require.Empty(t, l.recorded())
	})
}

// TestConflictsWithinBatches: each change of a run that is not as expected is found, and
// recorded, as the one that it is; so is each beside them.
func TestConflictsWithinBatches(t *testing.T) {
	batchModes(t, func(t *testing.T, l *link) {
		l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE TABLE u (id int PRIMARY KEY, v text)`)
		l.onSource(`CREATE PUBLICATION p FOR TABLE t, u`)
		l.onTarget(`INSERT INTO u VALUES (7, 'local')`)
		l.start(onConflict("insert_exists=apply_remote"))
		l.onSource(`INSERT INTO t SELECT g, 'a' FROM generate_series(1, 2000) g`)
		l.catchUp()
		l.onTarget(`DELETE FROM t WHERE id IN (5, 1999)`)
		l.onSource(`UPDATE t SET v = 'b'`, `INSERT INTO u SELECT g, 'remote' FROM generate_series(1, 20) g`, `DELETE FROM t WHERE id > 3`)
		l.catchUp()
		l.same(`SELECT * FROM t ORDER BY id`)
		l.same(`SELECT * FROM u ORDER BY id`)
		require.Equal(t, "update_missing|t|skip|skipped|{\"id\": \"5\"}|0\nupdate_missing|t|skip|skipped|{\"id\": \"1999\"}|0\n"+
			"insert_exists|u|apply_remote|applied||1\ndelete_missing|t|skip|skipped|{\"id\": \"5\"}|0\ndelete_missing|t|skip|skipped|{\"id\": \"1999\"}|0", l.recorded())
	})
}

// TestBatchesAndDomainsThatLook: the check of a domain counts the rows that are there. The
// publisher, whose domain has no check, inserts more than the target's takes, and the
// target refuses the first that is too many, as it would without runs.
func TestBatchesAndDomainsThatLook(t *testing.T) {
	l := newLink(t)
	l.onTarget(`CREATE FUNCTION fewer(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) < 10 FROM public.t); END $$`)
	l.onSource(`CREATE DOMAIN few AS int`)
	l.onTarget(`CREATE DOMAIN few AS int CONSTRAINT fewer CHECK (fewer(VALUE))`)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v few)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.onSource(`INSERT INTO t SELECT g, g FROM generate_series(1, 10) g`)
	l.catchUp()
	l.onTarget(`DELETE FROM t`)
	l.onSource(`INSERT INTO t SELECT g, g FROM generate_series(11, 40) g`)
	l.failure("INSERT on public.t", "23514", "fewer")
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM t`))
}

// TestBatchesOfValuesWithoutBinaryForm: aclitem has none, so the publisher sends it as text
// among binary values, and no COPY in binary form takes its column, even where it is NULL.
func TestBatchesOfValuesWithoutBinaryForm(t *testing.T) {
	l := newLink(t)
	for _, table := range []string{"plain (id int PRIMARY KEY, n int, v text, acl aclitem)", "arrays (id int PRIMARY KEY, n int, v text[], acl aclitem)"} {
		l.both(`CREATE TABLE ` + table)
	}
	l.both(`ALTER TABLE arrays ALTER v SET STORAGE EXTERNAL`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE plain, arrays`)
	l.start(func(o *apply.Options) { o.Binary = true })
	for table, column := range map[string]string{"plain": "text", "arrays": "text[]"} {
		l.onSource(`INSERT INTO `+table+` SELECT g, 0, ('{' || repeat('x', 9000) || '}')::`+column+`, CASE WHEN g > 9 THEN 'postgres=r/postgres' END::aclitem FROM generate_series(1, 20) g`,
			`UPDATE `+table+` SET n = id`, `UPDATE `+table+` SET acl = 'postgres=w/postgres'`, `DELETE FROM `+table+` WHERE id % 5 = 0`)
		l.catchUp()
		l.same(`SELECT * FROM ` + table + ` ORDER BY id`)
	}
	require.Zero(t, l.engine.Status().Replays)
}

// TestShortBatchesAndLateTriggers: a trigger that is enabled while the engine runs sees
// changes in their own order, however few there are.
func TestShortBatchesAndLateTriggers(t *testing.T) {
	for name, workload := range map[string]string{
		"kinds":                 `BEGIN; INSERT INTO b VALUES (2); DELETE FROM b WHERE id = 1; COMMIT`,
		"tables":                `BEGIN; INSERT INTO b VALUES (2); INSERT INTO a VALUES (2); INSERT INTO b VALUES (3); COMMIT`,
		"one that is overtaken": `BEGIN; INSERT INTO a VALUES (2); UPDATE b SET id = 2; COMMIT`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t)
			l.both(`CREATE TABLE a (id int PRIMARY KEY)`, `CREATE TABLE b (id int PRIMARY KEY)`, `CREATE TABLE seen (n serial, op text, id int, a bigint)`,
				`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
					BEGIN INSERT INTO public.seen (op, id, a) SELECT TG_OP, coalesce(NEW.id, OLD.id), count(*) FROM public.a; RETURN NULL; END $$`,
				`CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON b FOR EACH ROW EXECUTE FUNCTION see()`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE a, b`)
			l.start()
			l.onSource(`INSERT INTO a VALUES (1)`, `INSERT INTO b VALUES (1)`)
			l.catchUp()
			l.onSource(`TRUNCATE seen`)
			l.onTarget(`ALTER TABLE b ENABLE ALWAYS TRIGGER see`)
			l.onSource(workload)
			l.catchUp()
			l.same(`SELECT op, id, a FROM seen ORDER BY n`)
		})
	}
}
