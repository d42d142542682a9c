package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// pairs of publisher and target majors. `make matrix` plays all of them, other
// runs the ends of the range.
func pairs() [][2]int {
	if os.Getenv("PGAPPLY_MATRIX") == "" {
		return [][2]int{{10, 18}, {14, 18}, {18, 14}}
	}
	return [][2]int{
		{10, 18},
		{12, 18},
		{13, 18},
		{14, 18},
		{15, 18},
		{16, 18},
		{17, 18},
		{18, 18},
		{18, 14},
		{18, 15},
		{18, 16},
		{18, 17},
	}
}

// TestMajors plays one workload of everything that a publisher's major can send,
// in each form in which it can send it.
func TestMajors(t *testing.T) {
	for _, pair := range pairs() {
		t.Run(fmt.Sprintf("%d to %d", pair[0], pair[1]), func(t *testing.T) {
			var settings []pgtest.Option
			if pair[0] >= 13 {
				settings = append(settings, pgtest.With("logical_decoding_work_mem", "64kB"))
			}
			publisher := pgtest.Start(t, append(settings, pgtest.OnMajor(pair[0]))...)
			target := pgtest.Start(t, pgtest.OnMajor(pair[1]))
			require.Equal(t, pair, [2]int{publisher.Major(), target.Major()})
			for _, streaming := range []string{"off", "on", "parallel"} {
				for _, binary := range []bool{false, true} {
					if pair[0] < 14 && (binary || streaming != "off") {
						continue // lowered to the same
					}
					l := &link{t: t, name: fmt.Sprintf("m_%s_%t", streaming, binary)}
					l.source, l.target = publisher.URI("postgres"), target.URI("postgres")
					l.mode.change = func(o *apply.Options) { o.Streaming, o.Binary = streaming, binary }
					playMajor(l, pair[0])
					l.stop()
					l.onSource(`SELECT pg_drop_replication_slot('` + l.name + `')`)
				}
			}
		})
	}
}

func playMajor(l *link, publisher int) {
	l.t.Helper()
	l.both(`DROP SCHEMA IF EXISTS s CASCADE`, `CREATE SCHEMA s`,
		`CREATE TYPE s.mood AS ENUM ('sad', 'ok')`, `CREATE DOMAIN s.positive AS int CHECK (VALUE > 0)`,
		`CREATE TABLE s.t (id int PRIMARY KEY, a text, b numeric, c timestamptz, d jsonb, e int[], m s.mood, p s.positive)`,
		`CREATE TABLE s.whole (a text, b int, c float8)`, `ALTER TABLE s.whole REPLICA IDENTITY FULL`,
		`CREATE TABLE s.chosen (a int NOT NULL, b text NOT NULL)`, `CREATE UNIQUE INDEX chosen_key ON s.chosen (b)`,
		`ALTER TABLE s.chosen REPLICA IDENTITY USING INDEX chosen_key`,
		`CREATE TABLE s.big (id int PRIMARY KEY, pad text)`)
	l.onSource(`DROP PUBLICATION IF EXISTS p`)
	tables, publication := []string{"s.t", "s.whole", "s.chosen", "s.big"}, `CREATE PUBLICATION p FOR TABLE s.t, s.whole, s.chosen, s.big`
	if publisher >= 13 {
		l.both(`CREATE TABLE s.parts (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k)`,
			`CREATE TABLE s.parts_low PARTITION OF s.parts FOR VALUES FROM (0) TO (10)`,
			`CREATE TABLE s.parts_high PARTITION OF s.parts FOR VALUES FROM (10) TO (20)`)
		publication += `, s.parts WITH (publish_via_partition_root)`
		tables = append(tables, "s.parts")
	}
	l.onSource(publication)
	l.start()
	l.stop()
	workload := []string{
		`INSERT INTO s.t SELECT g, 'v' || g, g / 7.0, '2024-01-01 00:00+00'::timestamptz + g * interval '1 hour', '{"a": 1}', ARRAY[g, NULL], 'sad', g FROM generate_series(1, 200) g`,
		`UPDATE s.t SET a = repeat('x', 5000), m = 'ok' WHERE id % 10 = 0`,
		`ALTER TABLE s.t ALTER a SET STORAGE EXTERNAL`,
		`UPDATE s.t SET a = repeat('y', 9000) WHERE id % 10 = 1`,
		`UPDATE s.t SET b = 'NaN', d = NULL WHERE id % 10 = 1`,
		`UPDATE s.t SET id = id + 1000 WHERE id < 5`,
		`DELETE FROM s.t WHERE id % 7 = 0`,
		`INSERT INTO s.whole VALUES ('x', 1, 0.1), ('x', 1, 0.1), (NULL, NULL, 'NaN'), ('y', 2, NULL)`,
		`DELETE FROM s.whole WHERE ctid = (SELECT min(ctid) FROM s.whole)`,
		`UPDATE s.whole SET b = 5 WHERE a IS NULL`,
		`INSERT INTO s.chosen SELECT g, 'k' || g FROM generate_series(1, 10) g`,
		`UPDATE s.chosen SET a = -a WHERE a > 5`, `UPDATE s.chosen SET b = 'new' WHERE a = 1`, `DELETE FROM s.chosen WHERE a = 2`,
		`BEGIN; INSERT INTO s.big SELECT g, repeat('a', 100) FROM generate_series(1, 3000) g; SAVEPOINT one;
			INSERT INTO s.big SELECT g, repeat('b', 100) FROM generate_series(3001, 6000) g; SAVEPOINT two; UPDATE s.big SET pad = 'u' WHERE id <= 10;
			ROLLBACK TO one; INSERT INTO s.big SELECT g, repeat('c', 100) FROM generate_series(6001, 9000) g; SAVEPOINT three;
			DELETE FROM s.big WHERE id <= 5; RELEASE three; COMMIT`,
		`BEGIN; INSERT INTO s.big SELECT g, 'x' FROM generate_series(20001, 23000) g; ROLLBACK`,
		`INSERT INTO s.big VALUES (99999, 'end')`,
	}
	if publisher >= 11 {
		workload = append(workload, `TRUNCATE s.whole, s.chosen`, `INSERT INTO s.whole VALUES ('after', 1, 1)`, `INSERT INTO s.chosen VALUES (1, 'after')`)
	}
	if publisher >= 13 {
		workload = append(workload, `INSERT INTO s.parts SELECT g, g % 20, 'p' FROM generate_series(1, 40) g`,
			`UPDATE s.parts SET k = 19 - k WHERE id < 10`, `UPDATE s.parts SET v = 'q' WHERE id > 30`, `DELETE FROM s.parts WHERE id BETWEEN 15 AND 25`)
	}
	// Once as a backlog, once live.
	l.onSource(workload[:len(workload)/2]...)
	l.start()
	l.onSource(workload[len(workload)/2:]...)
	l.catchUp()
	var checks []string
	for _, table := range tables {
		checks = append(checks, fmt.Sprintf(`SELECT '%[1]s', count(*), md5(string_agg(r::text, ',' ORDER BY r::text)) FROM %[1]s r`, table))
	}
	l.same(strings.Join(checks, ";"))
	status := l.engine.Status()
	require.Zero(l.t, status.Misses.Update+status.Misses.Delete)
}
