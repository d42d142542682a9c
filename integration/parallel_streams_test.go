package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/pgtest"
)

// stream is one way in which streamed transactions can arrive.
type stream struct {
	name   string
	setup  []string // on both ends
	tables string
	script string
}

// streams are played one after the other through one engine.
var streams = []stream{
	{"interleaved", []string{`CREATE TABLE woven (id int PRIMARY KEY, v text)`}, "woven", `
		a: BEGIN
		a: INSERT INTO woven SELECT g, 'a' FROM generate_series(1, 20) g
		a: push
		b: BEGIN
		b: INSERT INTO woven SELECT g, 'b' FROM generate_series(101, 120) g
		b: push
		-: INSERT INTO woven VALUES (1001, 'between')
		c: BEGIN
		c: INSERT INTO woven SELECT g, 'c' FROM generate_series(201, 220) g
		c: push
		d: BEGIN
		d: UPDATE woven SET v = 'd' WHERE id = 1001
		d: push
		a: UPDATE woven SET v = v || '+' WHERE id < 50
		a: push
		e: BEGIN
		e: INSERT INTO woven SELECT g, 'e' FROM generate_series(301, 320) g
		e: push
		b: DELETE FROM woven WHERE id BETWEEN 105 AND 110
		b: push
		-: INSERT INTO woven VALUES (1002, 'between')
		c: ROLLBACK
		e: COMMIT
		d: COMMIT
		-: UPDATE woven SET v = v || ' later' WHERE id > 300
		b: UPDATE woven SET v = v || ' seen by b' WHERE id = 1002
		b: push
		b: COMMIT
		-: DELETE FROM woven WHERE id = 1002
		a: DELETE FROM woven WHERE id = 315
		a: push
		a: COMMIT
		-: INSERT INTO woven VALUES (1002, 'anew')
		`},
	{"rests on a commit in between", []string{`CREATE TABLE rests (id int PRIMARY KEY, v text)`}, "rests", `
		a: BEGIN
		a: INSERT INTO rests VALUES (1, 'a')
		a: push
		-: INSERT INTO rests VALUES (2, 'committed')
		a: UPDATE rests SET v = 'changed by a'
		a: push
		b: BEGIN
		b: INSERT INTO rests VALUES (3, 'b')
		b: push
		b: COMMIT
		a: UPDATE rests SET id = id + 10
		a: push
		-: INSERT INTO rests VALUES (20, 'other')
		a: COMMIT
		-: INSERT INTO rests VALUES (1, 'other'), (2, 'other'), (3, 'other')
		-: UPDATE rests SET v = v || '!'
		`},
	{"subtransactions", []string{`CREATE TABLE sub (id int PRIMARY KEY, v text)`}, "sub", `
		-: INSERT INTO sub SELECT g, 'old' FROM generate_series(1, 20) g
		a: BEGIN
		a: UPDATE sub SET v = 'top' WHERE id <= 10
		a: push
		a: SAVEPOINT outer_one
		a: UPDATE sub SET v = 'outer' WHERE id <= 8
		a: SAVEPOINT inner_one
		a: DELETE FROM sub WHERE id <= 4
		a: push
		a: ROLLBACK TO inner_one
		a: UPDATE sub SET v = 'inner again' WHERE id <= 3
		a: push
		a: RELEASE inner_one
		a: INSERT INTO sub VALUES (21, 'outer')
		a: push
		a: ROLLBACK TO outer_one
		a: INSERT INTO sub VALUES (22, 'outer again')
		a: push
		a: RELEASE outer_one
		a: UPDATE sub SET v = v || ' and top' WHERE id IN (1, 22)
		a: push
		a: SAVEPOINT one
		a: INSERT INTO sub VALUES (23, 'one')
		a: SAVEPOINT two
		a: INSERT INTO sub VALUES (24, 'two')
		a: SAVEPOINT three
		a: INSERT INTO sub VALUES (25, 'three')
		a: push
		a: RELEASE two
		a: UPDATE sub SET v = 'one again' WHERE id > 23
		a: push
		a: ROLLBACK TO one
		a: SAVEPOINT kept
		a: INSERT INTO sub VALUES (24, 'kept')
		a: push
		a: COMMIT
		-: UPDATE sub SET v = v || '.' WHERE id > 20
		`},
	{"parent without changes of its own", []string{`CREATE TABLE parent (id int PRIMARY KEY, v text)`}, "parent", `
		a: BEGIN
		a: SAVEPOINT p
		a: SAVEPOINT c
		a: INSERT INTO parent VALUES (1, 'c')
		a: push
		a: RELEASE c
		a: SAVEPOINT d
		a: INSERT INTO parent VALUES (2, 'd')
		a: push
		a: ROLLBACK TO d
		a: UPDATE parent SET v = 'seen'
		a: push
		a: ROLLBACK TO p
		a: INSERT INTO parent VALUES (1, 'in the end')
		a: push
		a: COMMIT
		-: UPDATE parent SET v = 'described in the streamed transaction alone'
		`},
	{"exception blocks", []string{`CREATE TABLE caught (id int PRIMARY KEY, v text)`}, "caught", `
		a: BEGIN
		a: INSERT INTO caught VALUES (0, 'x')
		a: push
		a: DO $$ BEGIN FOR i IN 1..30 LOOP BEGIN INSERT INTO caught VALUES (i, 'kept'); INSERT INTO pad SELECT g, repeat('x', 100) FROM generate_series(1, 200) g; INSERT INTO caught VALUES (i % 3, 'twice'); EXCEPTION WHEN unique_violation THEN INSERT INTO caught VALUES (i + 100, 'caught'); END; BEGIN INSERT INTO caught VALUES (i + 200, 'kept'); EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$
		a: push
		a: COMMIT
		`},
	{"80 subtransactions", []string{`CREATE TABLE many (id int PRIMARY KEY, v text)`}, "many", manySubtransactions("many", 80)},
	{"1700 subtransactions", []string{`CREATE TABLE most (id int PRIMARY KEY, v text)`}, "most", manySubtransactions("most", 1700)},
	{"truncate", []string{`CREATE TABLE emptied (id int PRIMARY KEY, v text)`, `CREATE TABLE referring (id int REFERENCES emptied)`}, "emptied", `
		-: INSERT INTO emptied SELECT g, 'old' FROM generate_series(1, 50) g
		-: INSERT INTO referring VALUES (1)
		a: BEGIN
		a: INSERT INTO emptied VALUES (60, 'a')
		a: push
		a: SAVEPOINT lost
		a: TRUNCATE emptied, referring
		a: INSERT INTO emptied VALUES (1, 'lost')
		a: push
		a: ROLLBACK TO lost
		a: UPDATE emptied SET v = 'still there' WHERE id <= 5
		a: push
		a: COMMIT
		b: BEGIN
		b: INSERT INTO emptied VALUES (61, 'b')
		b: push
		b: TRUNCATE emptied CASCADE
		b: INSERT INTO emptied VALUES (1, 'after')
		b: push
		b: COMMIT
		-: INSERT INTO referring VALUES (1)
		-: INSERT INTO emptied VALUES (2, 'after')
		`},
	{"identical rows", []string{`CREATE TABLE alike (a int, b text)`, `ALTER TABLE alike REPLICA IDENTITY FULL`}, "alike", `
		-: INSERT INTO alike SELECT g % 3, 'x' FROM generate_series(1, 30) g
		a: BEGIN
		a: DELETE FROM alike WHERE ctid IN (SELECT ctid FROM alike WHERE a = 1 LIMIT 4)
		a: push
		a: SAVEPOINT lost
		a: DELETE FROM alike WHERE a = 1
		a: push
		a: ROLLBACK TO lost
		a: UPDATE alike SET b = 'changed' WHERE ctid IN (SELECT ctid FROM alike WHERE a = 1 LIMIT 3)
		a: INSERT INTO alike VALUES (1, 'x'), (1, 'x'), (NULL, NULL), (NULL, NULL)
		a: push
		a: UPDATE alike SET b = 'was null' WHERE ctid = (SELECT min(ctid) FROM alike WHERE a IS NULL)
		a: push
		a: COMMIT
		-: UPDATE alike SET b = 'last' WHERE ctid = (SELECT min(ctid) FROM alike WHERE a = 1)
		`},
	{"keys", []string{`CREATE TABLE keyed (id int PRIMARY KEY, v text)`}, "keyed", `
		-: INSERT INTO keyed SELECT g, 'old' FROM generate_series(1, 10) g
		a: BEGIN
		a: UPDATE keyed SET id = id + 100
		a: push
		a: SAVEPOINT lost
		a: UPDATE keyed SET id = id - 100
		a: push
		a: ROLLBACK TO lost
		a: UPDATE keyed SET id = id + 1000, v = 'moved' WHERE id > 105
		a: INSERT INTO keyed VALUES (3, 'new')
		a: push
		a: COMMIT
		-: DELETE FROM keyed WHERE id = 103
		`},
	{"toast", []string{`CREATE TABLE stout (id int PRIMARY KEY, n int, big text)`, `ALTER TABLE stout ALTER big SET STORAGE EXTERNAL`}, "stout", `
		-: INSERT INTO stout SELECT g, 0, repeat(g::text, 5000) FROM generate_series(1, 8) g
		a: BEGIN
		a: UPDATE stout SET n = 1
		a: push
		a: INSERT INTO stout VALUES (10, 0, repeat('new', 5000))
		a: push
		a: UPDATE stout SET n = 2 WHERE id > 4
		a: SAVEPOINT lost
		a: UPDATE stout SET big = repeat('lost', 5000)
		a: push
		a: ROLLBACK TO lost
		a: UPDATE stout SET n = 3, id = id + 100 WHERE id > 6
		a: UPDATE stout SET big = repeat('kept', 5000) WHERE id = 1
		a: push
		a: COMMIT
		-: UPDATE stout SET n = 4
		`},
	{"partitions", []string{
		`CREATE TABLE parts (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k)`,
		`CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (10)`, `CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (10) TO (20)`,
	}, "parts", `
		-: INSERT INTO parts SELECT g, g % 20, 'old' FROM generate_series(1, 40) g
		a: BEGIN
		a: UPDATE parts SET k = 19 - k WHERE id < 20
		a: push
		a: SAVEPOINT lost
		a: TRUNCATE parts
		a: INSERT INTO parts VALUES (1, 1, 'lost')
		a: push
		a: ROLLBACK TO lost
		a: DELETE FROM parts WHERE id > 35
		a: INSERT INTO parts SELECT g, g % 20, 'new' FROM generate_series(50, 60) g
		a: push
		a: COMMIT
		-: UPDATE parts SET v = 'later' WHERE id = 50
		`},
	{"without content", []string{`CREATE TABLE quiet (id int PRIMARY KEY, v text)`}, "quiet", `
		a: BEGIN
		a: push
		a: push
		a: COMMIT
		b: BEGIN
		b: SAVEPOINT lost
		b: INSERT INTO quiet VALUES (1, 'lost')
		b: push
		b: ROLLBACK TO lost
		b: push
		b: COMMIT
		c: BEGIN
		c: INSERT INTO quiet VALUES (1, 'never sent')
		c: ROLLBACK
		d: BEGIN
		d: push
		d: ROLLBACK
		e: BEGIN
		e: SAVEPOINT lost
		e: INSERT INTO quiet VALUES (1, 'never sent')
		e: ROLLBACK TO lost
		e: push
		e: INSERT INTO quiet VALUES (1, 'sent')
		e: COMMIT
		`},
}

// manySubtransactions makes that many, of which every third is rolled back.
func manySubtransactions(table string, n int) string {
	return strings.ReplaceAll(fmt.Sprintf(`
		a: BEGIN
		a: INSERT INTO TABLE VALUES (0, 'top')
		a: push
		a: DO $$ BEGIN FOR i IN 1..%d LOOP BEGIN INSERT INTO TABLE VALUES (i, 'kept'); IF i %% 21 = 0 THEN INSERT INTO pad SELECT g, repeat('x', 100) FROM generate_series(1, 300) g; END IF; IF i %% 3 = 0 THEN UPDATE TABLE SET v = v || '!' WHERE id = i - 1; RAISE 'no'; END IF; EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$
		a: push
		a: UPDATE TABLE SET v = 'in the end' WHERE id %% 5 = 0
		a: SAVEPOINT last
		a: DELETE FROM TABLE WHERE id < 50
		a: push
		a: ROLLBACK TO last
		a: COMMIT
		-: DELETE FROM TABLE WHERE id %% 2 = 0
		`, n), "TABLE", table)
}

// TestStreams: whatever way streamed transactions arrive in, and however many workers
// there are for them, what comes out is what the publisher has, and comes out at once.
func TestStreams(t *testing.T) {
	t.Parallel()
	var counted state.Rows // by the head alone
	for _, workers := range []int{1, 2, 6} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			s := newStage(newLink(t))
			var tables []string
			for _, each := range streams {
				s.both(each.setup...)
				tables = append(tables, each.tables)
			}
			s.onSource(`CREATE PUBLICATION p FOR TABLE ` + strings.Join(tables, ", ") + `, referring WITH (publish_via_partition_root)`)
			s.start(s.counting, func(o *apply.Options) { o.Workers, o.Binary = workers, workers == 2 })
			for _, each := range streams {
				before, refusals := s.engine.Status(), s.refusals.Load()
				s.script(each.script)
				s.catchUp()
				s.sameTables(each.tables)
				after := s.engine.Status()
				if each.name != "truncate" { // which changes a table under those who know it
					require.Equal(t, before.Replays, after.Replays, each.name)
				}
				require.Equal(t, before.Retries, after.Retries, each.name)
				// Nothing stands in a worker's way but that savepoints are bounded, and that
				// only where it has come that far before the last of them is rolled back.
				if workers == 1 || each.tables != "most" {
					require.Equal(t, refusals, s.refusals.Load(), each.name)
				}
			}
			require.Zero(t, s.engine.Status().Misses)
			require.Zero(t, s.engine.Status().OpenStreams)
			if workers == 1 {
				counted = s.engine.Status().Rows
			}
			require.Equal(t, counted, s.engine.Status().Rows, "what was rolled back does not count")
			pgtest.WaitFor(t, s.source, `SELECT stream_count > 50 FROM pg_stat_replication_slots WHERE slot_name = $1`, "t", s.name)
			s.stop()
		})
	}
}
