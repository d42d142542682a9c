package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"pgapply/apply"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// One workload, in every way in which a publisher can send it and we can apply it.

// way is one of them.
type way struct {
	streaming string
	binary    bool
	workers   int
}

func (w way) String() string { return fmt.Sprintf("%s_%t_%d", w.streaming, w.binary, w.workers) }

func ways() []way {
	var all []way
	for _, binary := range []bool{false, true} {
		all = append(all, way{"off", binary, 1}, way{"on", binary, 2})
		for _, workers := range []int{1, 2, 8} {
			all = append(all, way{"parallel", binary, workers})
		}
	}
	return all
}

var differentialTables = []string{"keyed", "whole", "log", "parted"}

const differentialSchema = `
	CREATE TABLE keyed (writer int, id int, n numeric, v text, big text, PRIMARY KEY (writer, id));
	ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE whole (writer int, a int, b text); ALTER TABLE whole REPLICA IDENTITY FULL;
	CREATE TABLE log (writer int, number int, at timestamptz, tags text[]);
	CREATE TABLE parted (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
	CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (50);
	CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (50) TO (100)`

// TestEveryWayGivesTheSameTables plays a random workload of several sessions, whose
// transactions lie among each other, into one database for each way. `make matrix` does
// so with publishers of each major that streams.
func TestEveryWayGivesTheSameTables(t *testing.T) {
	t.Parallel()
	if os.Getenv("PGAPPLY_MATRIX") == "" {
		publisher, target := pgtest.Pair(t, smallMemory)
		playEveryWay(t, publisher, target)
		return
	}
	for major := 14; major <= cluster.NewestMajor; major++ {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			playEveryWay(t, pgtest.Start(t, smallMemory, pgtest.OnMajor(major)), pgtest.Start(t))
		})
	}
}

func playEveryWay(t *testing.T, publisher, target *cluster.Cluster) {
	t.Helper()
	source := pgtest.Database(t, publisher)
	pgtest.Exec(t, source, differentialSchema, `CREATE PUBLICATION p FOR TABLE `+strings.Join(differentialTables, ", ")+` WITH (publish_via_partition_root)`)
	links := make(map[way]*link)
	for _, w := range ways() {
		l := &link{t: t, source: source, target: pgtest.Database(t, target), name: "way_" + w.String()}
		l.onTarget(differentialSchema)
		pgtest.Exec(t, source, `SELECT pg_create_logical_replication_slot('`+l.name+`', 'pgoutput')`)
		links[w] = l
	}
	const seed = 1
	committed := playSessions(t, source, rand.New(rand.NewPCG(seed, 0)))
	end := pgtest.Query(t, source, `SELECT pg_current_wal_flush_lsn()`)

	var running sync.WaitGroup
	room := make(chan struct{}, 3)
	for w, l := range links {
		running.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			o := l.options(func(o *apply.Options) {
				o.Streaming, o.Binary, o.Workers = w.streaming, w.binary, w.workers
				o.CreateSlot, o.EndAtCurrent, o.MemoryLimit = false, true, 4<<20
				o.Log = o.Log.WithOptions(zap.IncreaseLevel(zap.InfoLevel))
			})
			l.launch(o)
			<-l.done
		})
	}
	running.Wait()
	for w, l := range links {
		require.NoError(t, l.err, "%s", w)
		l.sameTables(differentialTables...)
		status := l.engine.Status()
		if publisher.Major() >= 15 { // older ones also send transactions that have changed nothing
			require.Equal(t, int64(committed), status.Transactions, "%s", w)
		}
		require.Zero(t, status.Misses, "%s", w)
		require.Zero(t, status.Retries, "%s", w)
		require.Equal(t, "t", pgtest.Query(t, source, `SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`, end, l.name))
		if streamed := pgtest.Query(t, source, `SELECT stream_txns > 5 FROM pg_stat_replication_slots WHERE slot_name = $1`, l.name); w.streaming != "off" {
			require.Equal(t, "t", streamed, "%s", w)
		} else {
			require.Equal(t, "f", streamed, "%s", w)
		}
	}
}

// playSessions plays the workload, and returns how many transactions were committed that changed
// something. The sessions take turns as random says, and keep to rows of their own, so
// that none waits for another.
func playSessions(t *testing.T, source string, random *rand.Rand) (committed int) {
	t.Helper()
	writers := make([]*writer, 5)
	for i := range writers {
		writers[i] = &writer{session: pgtest.Open(t, source), random: random, number: i}
	}
	for range 400 {
		committed += writers[random.IntN(len(writers))].step()
	}
	for _, w := range writers {
		if w.open {
			committed += w.end()
		}
	}
	return committed
}

// writer is one session of the workload.
type writer struct {
	session *pgtest.Session
	random  *rand.Rand
	number  int // of the session
	next    int // of rows
	open    bool
	changed []bool // whether the transaction has changed something, then each savepoint of it
}

// step does something, and returns 1 when that committed a transaction with changes.
func (w *writer) step() int {
	if !w.open {
		w.session.Exec(`BEGIN`)
		w.open, w.changed = true, []bool{false}
	}
	switch depth := len(w.changed) - 1; w.random.IntN(16) {
	case 0:
		return w.end()
	case 1, 2:
		w.session.Exec(fmt.Sprintf(`SAVEPOINT s%d`, depth))
		w.changed = append(w.changed, false)
	case 3:
		if depth > 0 {
			to := w.random.IntN(depth)
			w.session.Exec(fmt.Sprintf(`ROLLBACK TO s%d`, to))
			w.changed = append(w.changed[:to+1], false)
		}
	case 4:
		if depth > 0 {
			w.session.Exec(fmt.Sprintf(`RELEASE s%d`, depth-1))
			w.changed[depth-1] = w.changed[depth-1] || w.changed[depth]
			w.changed = w.changed[:depth]
		}
	default:
		w.change()
		w.changed[depth] = true
	}
	return 0
}

// end commits, or now and then rolls back.
func (w *writer) end() (committed int) {
	for _, changed := range w.changed {
		if changed {
			committed = 1
		}
	}
	w.open = false
	if w.random.IntN(5) == 0 {
		w.session.Exec(`ROLLBACK`)
		return 0
	}
	w.session.Exec(`COMMIT`)
	return committed
}

// change is a change of some rows; what has no row to find adds one.
func (w *writer) change() {
	rows := 1 + w.random.IntN(3)
	if w.random.IntN(3) == 0 {
		rows = 300 + w.random.IntN(300)
	}
	first := w.next + 1
	w.next += rows
	kind := w.random.IntN(9)
	of := func(form string, arguments ...any) string { return fmt.Sprintf(form, arguments...) + "; " }
	insert := of(`INSERT INTO keyed SELECT %d, g, g / 7.0, md5(g::text), CASE WHEN g %% 50 = 0 THEN repeat(g::text, 3000) END FROM generate_series(%d, %d) g`, w.number, first, w.next)
	log := of(`INSERT INTO log SELECT %d, g, '2026-01-01 00:00+00'::timestamptz + g * interval '1 minute', ARRAY[g::text, NULL] FROM generate_series(%d, %d) g`, w.number, first, w.next)
	low := w.random.IntN(first)
	some := fmt.Sprintf(`writer = %d AND id BETWEEN %d AND %d`, w.number, low, low+rows)
	sql := map[int]string{
		0: insert,
		1: log,
		2: insert + of(`UPDATE keyed SET v = v || '+', n = -n WHERE %s`, some),
		3: log + of(`DELETE FROM keyed WHERE %s`, some),
		4: log + of(`UPDATE keyed SET id = -id WHERE %s`, some),
		5: log + of(`UPDATE keyed SET big = repeat('x', 4000 + id %% 100) WHERE %s AND id %% 20 = 0`, some),
		6: of(`INSERT INTO whole SELECT %d, g %% 5, 'x' FROM generate_series(1, %d) g`, w.number, min(rows, 40)),
		7: log + of(`UPDATE whole SET b = b || 'y' WHERE ctid IN (SELECT ctid FROM whole WHERE writer = %d LIMIT 3)`, w.number) +
			of(`DELETE FROM whole WHERE ctid IN (SELECT ctid FROM whole WHERE writer = %d LIMIT 2)`, w.number),
		8: of(`INSERT INTO parted SELECT %d + g, g %% 100, 'p' FROM generate_series(%d, %d) g`, w.number*1_000_000, first, w.next) +
			of(`UPDATE parted SET k = 99 - k WHERE id BETWEEN %[1]d + %[2]d AND %[1]d + %[3]d AND id %% 3 = 0`, w.number*1_000_000, low, low+rows),
	}[kind]
	w.session.Exec(sql)
}
