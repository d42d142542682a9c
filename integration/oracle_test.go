package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/stream"
	"pgapply/internal/pgtest"
)

// oracleTables have between them every way in which a row is found, columns that
// are stored out of line, and what the native subscription does with it all.
var oracleTables = []string{
	`CREATE TABLE keyed (id int PRIMARY KEY, n int, v text, big text, u int UNIQUE)`,
	`CREATE TABLE pairs (a int, b text, v numeric, at timestamptz, PRIMARY KEY (b, a))`,
	`CREATE TABLE chosen (id int PRIMARY KEY, k int NOT NULL, v text)`,
	`CREATE UNIQUE INDEX chosen_k ON chosen (k)`,
	`CREATE TABLE whole (a int, b text, c float8, d int[])`,
	`CREATE TABLE logged (who int, n int)`,
	`CREATE TABLE parts (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k)`,
	`CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (50)`,
	`CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (50) TO (100)`,
	`ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL`,
	`ALTER TABLE chosen REPLICA IDENTITY USING INDEX chosen_k`,
	`ALTER TABLE whole REPLICA IDENTITY FULL`,
}

// randomStatement is one change, or a few, to one table.
func randomStatement(r *rand.Rand, who int) string {
	id, other := r.IntN(200), r.IntN(200)
	text := []string{"NULL", "''", "'short'", fmt.Sprintf("'t%d'", r.IntN(5))}[r.IntN(4)]
	switch r.IntN(24) {
	case 0, 1:
		return fmt.Sprintf(`INSERT INTO keyed VALUES (%d, %d, %s, repeat('%d', %d), %d) ON CONFLICT DO NOTHING`, id, other, text, other, 3000*r.IntN(2), 1000*who+id)
	case 2, 3:
		return fmt.Sprintf(`UPDATE keyed SET n = n + 1, v = %s WHERE id BETWEEN %d AND %d`, text, id, id+r.IntN(20))
	case 4:
		return fmt.Sprintf(`UPDATE keyed SET big = repeat('%d', 4000) WHERE id = %d`, other, id)
	case 5:
		return fmt.Sprintf(`UPDATE keyed SET id = %d WHERE id = %d AND NOT EXISTS (SELECT FROM keyed WHERE id = %[1]d)`, 1000*(1+who)+other, id)
	case 6:
		return fmt.Sprintf(`DELETE FROM keyed WHERE id %% 40 = %d`, id%40)
	case 7:
		// A unique value changes hands within one transaction.
		return fmt.Sprintf(`UPDATE keyed SET u = NULL WHERE u = %d; UPDATE keyed SET u = %[1]d WHERE id = %d`, 1000*who+id, other)
	case 8, 9:
		return fmt.Sprintf(`INSERT INTO pairs VALUES (%d, 'k%d', %d.50, now()) ON CONFLICT DO NOTHING`, id, other%7, other)
	case 10:
		return fmt.Sprintf(`UPDATE pairs SET v = v / 3, at = at + interval '1 us' WHERE a = %d`, id)
	case 11:
		return fmt.Sprintf(`DELETE FROM pairs WHERE b = 'k%d' AND a > %d`, other%7, id)
	case 12:
		return fmt.Sprintf(`INSERT INTO chosen VALUES (%d, %d, %s) ON CONFLICT DO NOTHING`, id, other, text)
	case 13:
		return fmt.Sprintf(`UPDATE chosen SET v = %s, id = id + 1000 WHERE k = %d`, text, other)
	case 14:
		return fmt.Sprintf(`DELETE FROM chosen WHERE k = %d`, other)
	case 15, 16:
		return fmt.Sprintf(`INSERT INTO whole SELECT %d, %s, %d / 7.0, ARRAY[%d, NULL] FROM generate_series(1, %d)`, id%5, text, other%3, other%3, 1+r.IntN(3))
	case 17:
		return fmt.Sprintf(`UPDATE whole SET c = c + 1 WHERE ctid = (SELECT ctid FROM whole WHERE a = %d LIMIT 1)`, id%5)
	case 18:
		return fmt.Sprintf(`DELETE FROM whole WHERE ctid IN (SELECT ctid FROM whole WHERE a = %d LIMIT 3)`, id%5)
	case 19:
		return fmt.Sprintf(`INSERT INTO parts VALUES (%d, %d, %s) ON CONFLICT DO NOTHING`, id, other%100, text)
	case 20:
		return fmt.Sprintf(`UPDATE parts SET k = 99 - k WHERE id = %d AND NOT EXISTS (SELECT FROM parts p WHERE p.id = parts.id AND p.k = 99 - parts.k)`, id)
	case 21:
		return fmt.Sprintf(`DELETE FROM parts WHERE id = %d`, id)
	case 22:
		if r.IntN(20) == 0 {
			return [...]string{`TRUNCATE whole`, `TRUNCATE pairs, chosen`, `TRUNCATE keyed RESTART IDENTITY`}[r.IntN(3)]
		}
	}
	return fmt.Sprintf(`INSERT INTO logged SELECT %d, g FROM generate_series(1, %d) g`, who, 1+r.IntN(3))
}

// randomTransaction has savepoints, some of them rolled back, and at times enough
// rows to be streamed.
func randomTransaction(r *rand.Rand, who int) string {
	var sql strings.Builder
	sql.WriteString("BEGIN;")
	statements := 1 + r.IntN(6)
	if r.IntN(10) == 0 {
		statements = 20
		fmt.Fprintf(&sql, `INSERT INTO logged SELECT %d, g FROM generate_series(1, 2000) g;`, who)
	}
	open := 0
	for range statements {
		switch r.IntN(6) {
		case 0:
			open++
			fmt.Fprintf(&sql, "SAVEPOINT s%d;", open)
		case 1:
			if open > 0 {
				fmt.Fprintf(&sql, [...]string{"ROLLBACK TO s%d;", "RELEASE s%d;"}[r.IntN(2)], open)
				open--
			}
		}
		sql.WriteString(randomStatement(r, who) + ";")
	}
	sql.WriteString([...]string{"COMMIT", "COMMIT", "COMMIT", "COMMIT", "ROLLBACK"}[r.IntN(5)])
	return sql.String()
}

// hammer runs random transactions from several sessions at once. What fails, by
// deadlock or by a unique value that two want, rolls back.
func (l *link) hammer(seed uint64, sessions, transactions int) {
	l.t.Helper()
	var all sync.WaitGroup
	for who := range sessions {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(who)))
			conn, err := pgconn.Connect(context.Background(), l.source)
			if err != nil {
				l.t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			for range transactions {
				if _, err := conn.Exec(context.Background(), randomTransaction(r, who)).ReadAll(); err != nil {
					_, _ = conn.Exec(context.Background(), "ROLLBACK").ReadAll()
				}
			}
		})
	}
	all.Wait()
}

func oracleNumber(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	number, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err)
	return number
}

// TestOracle plays random workloads into a native subscription and into pgapply, in
// every mode, and wants the same tables on all three.
func TestOracle(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("logical_decoding_work_mem", "64kB"))
	seed := oracleNumber(t, "PGAPPLY_TEST_SEED", uint64(time.Now().UnixNano()))
	rounds := oracleNumber(t, "PGAPPLY_TEST_ROUNDS", 1)
	t.Logf("PGAPPLY_TEST_SEED=%d", seed)
	modes := []mode{
		{"defaults", false, func(*apply.Options) {}},
		{"backlog", true, func(*apply.Options) {}},
		{"one by one, not streamed", true, func(o *apply.Options) { o.MaxGroup.Transactions, o.Streaming = 1, "off" }},
		{"tiny limits", true, func(o *apply.Options) {
			o.MaxGroup = stream.Limits{Transactions: 7, Rows: 50, Bytes: 2000, Age: 50 * time.Millisecond}
			o.MemoryLimit, o.Streaming = 1<<20, "on"
		}},
		{"binary, restarted", false, func(o *apply.Options) { o.Binary = true }},
	}
	var checks []string
	for _, table := range []string{"keyed", "pairs", "chosen", "whole", "logged", "parts_low", "parts_high"} {
		checks = append(checks, fmt.Sprintf(`SELECT '%[1]s', count(*), md5(string_agg(r::text, ',' ORDER BY r::text COLLATE "C")) FROM %[1]s r`, table))
	}
	check := strings.Join(checks, ";")
	for round := range rounds {
		for i, m := range modes {
			t.Run(fmt.Sprintf("%s, round %d", m.name, round+1), func(t *testing.T) {
				l := &link{t: t, name: fmt.Sprintf("oracle_%d_%d", round, i), mode: m}
				l.source, l.target = pgtest.Database(t, publisher), pgtest.Database(t, target)
				native := pgtest.Database(t, target)
				pgtest.Exec(t, native, oracleTables...)
				l.both(oracleTables...)
				l.onSource(`ALTER TABLE parts_low REPLICA IDENTITY FULL`,
					`CREATE PUBLICATION p FOR TABLE keyed, pairs, chosen, whole, logged, parts WITH (publish_via_partition_root)`)
				pgtest.Exec(t, native, fmt.Sprintf(`CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=%d user=postgres dbname=%s'
					PUBLICATION p WITH (copy_data = false, slot_name = 'native_%s')`,
					publisher.Port(), pgtest.Query(t, l.source, `SELECT current_database()`), l.name))
				l.start()
				if m.backlog {
					l.stop()
				}
				var work sync.WaitGroup
				work.Go(func() { l.hammer(seed+uint64(round), 3, 60) })
				if strings.Contains(m.name, "restarted") {
					for range 4 {
						l.stop()
						l.start()
					}
				}
				work.Wait()
				if m.backlog {
					l.start()
				}
				l.catchUp()
				position := pgtest.Query(t, l.source, `SELECT pg_current_wal_flush_lsn()`)
				pgtest.WaitFor(t, l.source, `SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`, "t", position, "native_"+l.name)
				want := l.same(check)
				t.Logf("%d transactions, tables:\n%s", l.engine.Status().Transactions, want)
				require.Equal(t, want, pgtest.Query(t, native, check), "the native subscription")
				require.Empty(t, l.engine.Status().LastError)
				l.stop()
			})
		}
	}
}
