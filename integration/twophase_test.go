package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

func twoPhase(o *apply.Options) { o.TwoPhase = true }

// twoPhasePublisher is one that sends prepared transactions, also when the tests are
// asked for a major that does not.
func twoPhasePublisher(t *testing.T) *cluster.Cluster {
	publisher, _ := pgtest.Shared(t)
	if publisher.Major() < 15 {
		return pgtest.Start(t, pgtest.OnMajor(cluster.NewestMajor))
	}
	return publisher
}

// twoPhaseLink is a link that streams with --two-phase, and whose table c is published.
func twoPhaseLink(t *testing.T, change ...func(*apply.Options)) *link {
	_, target := pgtest.Shared(t)
	l := linkOf(t, twoPhasePublisher(t), target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	l.start(append([]func(*apply.Options){twoPhase}, change...)...)
	return l
}

// prepared is how many prepared transactions the target's database has.
func (l *link) prepared() string {
	l.t.Helper()
	return pgtest.Query(l.t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`)
}

// settled proves that both ends have the same rows of c, and the target nothing that
// waits for an end.
func (l *link) settled() string {
	l.t.Helper()
	l.catchUp()
	require.Equal(l.t, "0", l.prepared())
	require.Equal(l.t, "0", pgtest.Query(l.t, l.target, `SELECT count(*) FROM pgapply.progress WHERE gid IS NOT NULL`))
	return l.same(`SELECT * FROM c ORDER BY id`)
}

// TestPreparedTransactions: what the publisher prepares is prepared on the target, and
// ends there as it does on the publisher.
func TestPreparedTransactions(t *testing.T) {
	l := twoPhaseLink(t)
	l.onSource(`CREATE TABLE unpublished (id int)`,
		`INSERT INTO c VALUES (1, 'one')`,
		`BEGIN; INSERT INTO c VALUES (2, 'two'); UPDATE c SET v = 'uno' WHERE id = 1; PREPARE TRANSACTION 'a'`,
		`BEGIN; INSERT INTO c VALUES (3, 'three'); PREPARE TRANSACTION 'it''s b'`,
		`BEGIN; INSERT INTO unpublished VALUES (1); PREPARE TRANSACTION 'empty'`)
	l.catchUp()
	require.Equal(t, "3", l.prepared())
	require.Equal(t, "1|one", pgtest.Query(t, l.target, `SELECT * FROM c`))
	l.onSource(`INSERT INTO c VALUES (4, 'four')`)
	l.catchUp()
	require.Equal(t, "1|one\n4|four", pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
	l.stop()
	l.onSource(`COMMIT PREPARED 'a'`, `ROLLBACK PREPARED 'it''s b'`)
	l.start(twoPhase)
	l.onSource(`COMMIT PREPARED 'empty'`)
	require.Equal(t, "1|uno\n2|two\n4|four", l.settled())
}

// TestPreparedNames: what the publisher calls them does not matter here, and may come
// again.
func TestPreparedNames(t *testing.T) {
	l := twoPhaseLink(t)
	names := []string{"", "a", strings.Repeat("ü", 99), `"'\$1;`, "pgapply_" + l.name + "_1_2_3"}
	var want []string
	for round := range 2 {
		for i, name := range names {
			row := fmt.Sprintf("%d|x", 10*round+i)
			l.onSource(fmt.Sprintf(`BEGIN; INSERT INTO c VALUES (%d, 'x'); PREPARE TRANSACTION %s`, 10*round+i, literal(name)))
			want = append(want, row)
		}
		l.catchUp()
		require.Equal(t, fmt.Sprint(len(names)), l.prepared())
		for _, name := range names {
			l.onSource(`COMMIT PREPARED ` + literal(name))
		}
	}
	require.Equal(t, strings.Join(want, "\n"), l.settled())
}

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// TestPreparedInBlocks: a transaction that was streamed while it ran, and then prepared.
func TestPreparedInBlocks(t *testing.T) {
	for _, streaming := range []string{"off", "on", "parallel"} {
		t.Run(streaming, func(t *testing.T) {
			_, target := pgtest.Shared(t)
			l := linkOf(t, twoPhasePublisher(t), target)
			l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE c`, `CREATE TABLE unpublished (id int, v text)`,
				`ALTER DATABASE `+l.name+` SET logical_decoding_work_mem = '64kB'`)
			l.start(twoPhase, func(o *apply.Options) { o.Streaming = streaming })
			rows := func(table string, from int) string {
				return fmt.Sprintf(`INSERT INTO %s SELECT g, repeat('x', 200) FROM generate_series(%d, %d) g; `, table, from, from+2000)
			}
			// The second session's transaction arrives in between the first one's blocks.
			first := session(t, l.source)
			first(`BEGIN; ` + rows("c", 1))
			l.onSource(`BEGIN; `+rows("c", 5000)+`PREPARE TRANSACTION 'gone'`, `INSERT INTO c VALUES (-1, 'between')`)
			first(`SAVEPOINT a; UPDATE c SET v = 'y' || id WHERE id % 2 = 0; ROLLBACK TO a; DELETE FROM c WHERE id BETWEEN 1 AND 100; SAVEPOINT b; ` +
				rows("c", 10_000) + `RELEASE b; PREPARE TRANSACTION 'stays'`)
			l.onSource(`BEGIN; `+rows("unpublished", 1)+`PREPARE TRANSACTION 'empty'`,
				`BEGIN; SAVEPOINT a; `+rows("c", 20_000)+`ROLLBACK TO a; PREPARE TRANSACTION 'rolled back'`)
			l.catchUp()
			require.Equal(t, "4", l.prepared())
			require.Equal(t, "-1|between", pgtest.Query(t, l.target, `SELECT * FROM c`))
			if streaming == "off" {
				pgtest.WaitFor(t, l.source, `SELECT stream_txns = 0 AND total_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = $1`, "t", l.name)
			} else {
				pgtest.WaitFor(t, l.source, `SELECT stream_txns >= 3 FROM pg_stat_replication_slots WHERE slot_name = $1`, "t", l.name)
			}
			l.onSource(`COMMIT PREPARED 'stays'`, `ROLLBACK PREPARED 'gone'`, `COMMIT PREPARED 'empty'`, `COMMIT PREPARED 'rolled back'`)
			require.Len(t, strings.Split(l.settled(), "\n"), 2001-100+2001+1)
			require.Zero(t, l.engine.Status().Retries)
		})
	}
}

// TestPreparedCascade: a target that is itself a publisher hands on what is prepared.
func TestPreparedCascade(t *testing.T) {
	publisher := twoPhasePublisher(t)
	middle := pgtest.Start(t, pgtest.OnMajor(cluster.NewestMajor))
	l := linkOf(t, publisher, middle)
	next := &link{t: t, source: l.target, target: pgtest.Database(t, publisher), name: pgtest.Query(t, l.target, `SELECT current_database()`)}
	for _, uri := range []string{l.source, l.target, next.target} {
		pgtest.Exec(t, uri, `CREATE TABLE c (id int PRIMARY KEY, v text)`)
	}
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	next.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	l.start(twoPhase)
	next.start(twoPhase)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`, `BEGIN; INSERT INTO c VALUES (2, 'b'); PREPARE TRANSACTION 'b'`)
	l.catchUp()
	next.catchUp()
	require.Equal(t, "2", l.prepared())
	require.Equal(t, "2", next.prepared())
	require.Empty(t, pgtest.Query(t, next.target, `SELECT * FROM c`))
	l.onSource(`COMMIT PREPARED 'a'`, `ROLLBACK PREPARED 'b'`)
	require.Equal(t, "1|a", l.settled())
	require.Equal(t, "1|a", next.settled())
}

// TestPreparedMeetsErrors: an error inside a prepared transaction, or at its PREPARE,
// stops what follows until its cause is gone.
func TestPreparedMeetsErrors(t *testing.T) {
	l := twoPhaseLink(t)
	l.onTarget(`INSERT INTO c VALUES (2, 'in the way')`)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'), (2, 'b'); PREPARE TRANSACTION 'a'`, `INSERT INTO c VALUES (3, 'c')`)
	l.failure("insert_exists", "public.c")
	require.Equal(t, "0", l.prepared())
	l.onTarget(`DELETE FROM c`)
	l.catchUp()
	require.Equal(t, "1", l.prepared())
	require.Equal(t, "3|c", pgtest.Query(t, l.target, `SELECT * FROM c`))
	l.onSource(`COMMIT PREPARED 'a'`)
	l.settled()
	l.stop() // the next one's first pause is short

	l.onTarget(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not today''; END'`,
		`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON c DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`,
		`ALTER TABLE c ENABLE ALWAYS TRIGGER refuse`)
	l.start(twoPhase)
	l.onSource(`BEGIN; INSERT INTO c VALUES (4, 'd'); PREPARE TRANSACTION 'd'`)
	l.failure("not today")
	require.Equal(t, "0", l.prepared())
	l.onTarget(`DROP TRIGGER refuse ON c`)
	l.onSource(`COMMIT PREPARED 'd'`)
	require.Equal(t, "1|a\n2|b\n3|c\n4|d", l.settled())
}

// TestPreparedNeedRoom: a target that lets nothing be prepared says so, and goes on once
// it does.
func TestPreparedNeedRoom(t *testing.T) {
	target := pgtest.Start(t, pgtest.With("max_prepared_transactions", "0"))
	l := linkOf(t, twoPhasePublisher(t), target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	l.start(twoPhase)
	l.onSource(`INSERT INTO c VALUES (1, 'a')`, `BEGIN; INSERT INTO c VALUES (2, 'b'); PREPARE TRANSACTION 'b'`)
	l.failure("prepared transactions are disabled", "raise max_prepared_transactions on the target", "restart it")
	require.Equal(t, "1|a", pgtest.Query(t, l.target, `SELECT * FROM c`))
	l.onTarget(`ALTER SYSTEM SET max_prepared_transactions = 1`)
	require.NoError(t, target.Restart(t.Context()))
	l.catchUp()
	require.Equal(t, "1", l.prepared())
	// A second one has no room before the first is gone.
	l.onSource(`BEGIN; INSERT INTO c VALUES (3, 'c'); PREPARE TRANSACTION 'c'`)
	l.failure("maximum number of prepared transactions reached", "raise max_prepared_transactions on the target")
	l.onTarget(`ALTER SYSTEM SET max_prepared_transactions = 2`)
	require.NoError(t, target.Restart(t.Context()))
	l.onSource(`COMMIT PREPARED 'b'`, `ROLLBACK PREPARED 'c'`)
	require.Equal(t, "1|a\n2|b", l.settled())
}
