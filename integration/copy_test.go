package integration

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// TestCopy: tables with rows on the publisher and none on the target, while somebody
// writes.
func TestCopy(t *testing.T) {
	l := newLink(t)
	for n := range 5 {
		l.both(fmt.Sprintf(`CREATE TABLE t%d (id int PRIMARY KEY, v text)`, n))
		l.onSource(fmt.Sprintf(`INSERT INTO t%d SELECT g, repeat('v', g %% 100) FROM generate_series(1, 1000) g`, n))
	}
	l.onSource(`CREATE PUBLICATION p FOR ALL TABLES`)
	l.start(copying)
	l.onSource(`INSERT INTO t0 VALUES (1001, 'new')`, `UPDATE t1 SET v = 'changed' WHERE id % 7 = 0`, `DELETE FROM t2 WHERE id % 5 = 0`)
	l.catchUp()
	for n := range 5 {
		l.same(fmt.Sprintf(`SELECT * FROM t%d ORDER BY id`, n))
	}
	require.Equal(t, "r|5", pgtest.Query(t, l.target, `SELECT state, count(*) FROM pgapply.subscription_table GROUP BY 1`))

	// One that is published later is copied when pgapply starts again.
	l.both(`CREATE TABLE later (id int PRIMARY KEY, v text)`)
	l.onSource(`INSERT INTO later SELECT g, 'before' FROM generate_series(1, 1000) g`)
	l.catchUp()
	l.stop()
	l.onSource(`INSERT INTO later SELECT g, 'while nothing runs' FROM generate_series(1001, 1100) g`, `UPDATE later SET v = 'touched' WHERE id % 3 = 0`)
	// An earlier version's state is one, too, whose tables have rows: that of version 6.
	l.onTarget(`UPDATE pgapply.version SET version = 6`, `ALTER TABLE pgapply.subscription DROP COLUMN source_history, DROP COLUMN source_in_recovery`)
	l.start(copying)
	l.onSource(`INSERT INTO later SELECT g, 'after' FROM generate_series(1101, 1200) g`, `UPDATE t3 SET v = 'x' WHERE id < 100`)
	pgtest.WaitFor(t, l.target, `SELECT state::text || count(*) FROM pgapply.subscription_table GROUP BY state`, "r6")
	l.onSource(`INSERT INTO later VALUES (2000, 'at the end')`)
	l.catchUp()
	l.same(`SELECT * FROM later ORDER BY id`)
	l.same(`SELECT * FROM t3 ORDER BY id`)
	require.Equal(t, l.name, pgtest.Query(t, l.source, `SELECT slot_name FROM pg_replication_slots WHERE database = current_database()`), "no slot is left but the subscription's")
}

// copying lets a subscription begin with a copy of its tables.
func copying(o *apply.Options) { o.CopyData = true }

// TestRefreshAndResync: tables come, go and are copied again while the stream goes on.
func TestRefreshAndResync(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY, v text)`, `CREATE TABLE b (id int PRIMARY KEY, v text)`, `CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`INSERT INTO a SELECT g, 'first' FROM generate_series(1, 100) g`, `CREATE PUBLICATION p FOR TABLE a, c`)
	l.start(copying)
	ends := operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}

	l.onSource(`INSERT INTO b SELECT g, 'before' FROM generate_series(1, 100) g`, `ALTER PUBLICATION p ADD TABLE b`, `ALTER PUBLICATION p DROP TABLE c`,
		`INSERT INTO b SELECT g, 'published' FROM generate_series(101, 200) g`)
	l.catchUp()
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM b`))
	done, err := operate.Refresh(t.Context(), ends, true)
	require.NoError(t, err)
	require.Equal(t, []string{"public.b"}, done.Added)
	require.Equal(t, []string{"public.c"}, done.Removed)
	require.True(t, done.Runner)
	l.onSource(`UPDATE b SET v = 'changed' WHERE id % 2 = 0`, `UPDATE a SET v = 'changed' WHERE id % 2 = 0`)
	ready := func() {
		t.Helper()
		pgtest.WaitFor(t, l.target, `SELECT string_agg(table_name || state::text, ' ' ORDER BY table_name) FROM pgapply.subscription_table`, "ar br")
	}
	ready()
	l.onSource(`INSERT INTO b VALUES (1000, 'at the end')`)
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.same(`SELECT * FROM b ORDER BY id`)

	// Somebody has spoilt the target's rows.
	l.onTarget(`UPDATE a SET v = 'spoilt'`, `DELETE FROM a WHERE id < 50`)
	_, err = operate.Resync(t.Context(), ends, []string{"public.a"}, false)
	require.ErrorContains(t, err, "public.a")
	_, err = operate.Resync(t.Context(), ends, []string{"public.nosuch"}, true)
	require.ErrorContains(t, err, "nosuch")
	again, err := operate.Resync(t.Context(), ends, []string{"a"}, true)
	require.NoError(t, err)
	require.Equal(t, []string{"public.a"}, again.Again)
	l.onSource(`UPDATE a SET v = 'changed again' WHERE id % 3 = 0`, `UPDATE b SET v = 'meanwhile' WHERE id % 3 = 0`)
	ready()
	l.onSource(`INSERT INTO a VALUES (1000, 'at the end')`)
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.same(`SELECT * FROM b ORDER BY id`)
}

// TestWrittenWhileTheSlotIsMade: somebody writes on the target while the slot waits for
// an old transaction. That table is not copied over it, and the others are.
func TestWrittenWhileTheSlotIsMade(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY)`, `CREATE TABLE b (id int PRIMARY KEY)`)
	l.onSource(`INSERT INTO a VALUES (1)`, `INSERT INTO b VALUES (1)`, `CREATE PUBLICATION p FOR TABLE a, b`)
	old, err := pgx.Connect(t.Context(), l.source)
	require.NoError(t, err)
	defer func() { _ = old.Close(context.Background()) }()
	_, err = old.Exec(t.Context(), `BEGIN; INSERT INTO a VALUES (2)`)
	require.NoError(t, err)
	l.launch(l.options(copying))
	pgtest.WaitFor(t, l.target, `SELECT slot_state FROM pgapply.subscription`, "creating")
	l.onTarget(`INSERT INTO b VALUES (100)`)
	_, err = old.Exec(t.Context(), `COMMIT`)
	require.NoError(t, err)
	pgtest.WaitFor(t, l.target, `SELECT string_agg(table_name || state::text, ' ' ORDER BY table_name) FROM pgapply.subscription_table`, "ar bi")
	require.Equal(t, "1\n2", pgtest.Query(t, l.target, `SELECT * FROM a ORDER BY id`))
	require.Equal(t, "100", pgtest.Query(t, l.target, `SELECT * FROM b`))
	pgtest.WaitFor(t, l.target, `SELECT last_error LIKE '%not empty%' FROM pgapply.subscription_table WHERE table_name = 'b'`, "t")
	l.onTarget(`DELETE FROM b`)
	pgtest.WaitFor(t, l.target, `SELECT string_agg(table_name || state::text, ' ' ORDER BY table_name) FROM pgapply.subscription_table`, "ar br")
	l.same(`SELECT * FROM b`)
}
