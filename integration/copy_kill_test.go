package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// twelve are the tables that the tests of a copy under load have: small ones and large
// ones that are copied in parts, with a key, with the whole row for one and with none, one
// in partitions, and two that a foreign key joins.
var twelve = []string{"k0", "k1", "k2", "whole", "loose", "heap", "big", "bigwhole", "emptied", "parted", "parent", "child"}

func (l *link) makeTwelve() {
	l.t.Helper()
	for _, name := range []string{"k0", "k1", "k2", "whole", "big", "bigwhole", "emptied", "parent"} {
		l.both(`CREATE TABLE ` + name + ` (id int PRIMARY KEY, n int, text text)`)
	}
	l.both(
		`CREATE TABLE loose (id int, n int, text text)`, `CREATE TABLE heap (id int, n int, text text)`,
		`CREATE TABLE child (id int PRIMARY KEY, n int, text text, parent int REFERENCES parent)`,
		`CREATE TABLE parted (id int PRIMARY KEY, n int, text text) PARTITION BY RANGE (id)`,
		`CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (MINVALUE) TO (500)`,
		`CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (500) TO (MAXVALUE)`)
	l.onSource(`ALTER TABLE whole REPLICA IDENTITY FULL`, `ALTER TABLE loose REPLICA IDENTITY FULL`, `ALTER TABLE bigwhole REPLICA IDENTITY FULL`)
	for _, name := range twelve {
		rows, width := 1000, 1
		switch name {
		case "big", "bigwhole", "heap", "parent":
			rows, width = 20000, 6
		case "loose":
			rows = 300
		}
		l.onSource(fmt.Sprintf(`INSERT INTO %s (id, n, text) SELECT g, 0, repeat(md5(g::text), %d) FROM generate_series(1, %d) g`, name, width, rows))
	}
	l.onSource(`UPDATE child SET parent = id`, `CREATE PUBLICATION p FOR ALL TABLES`)
	l.streamEarly()
}

// changeTwelve is a unit of work of a load: rows come, change, change their keys and go.
func changeTwelve(ctx context.Context, conn *pgconn.PgConn, random *rand.Rand, writer int, number *int) error {
	var script []string
	for range 1 + random.IntN(4) {
		name := twelve[random.IntN(len(twelve))]
		*number++
		fresh := 1_000_000*(writer+1) + *number // of this writer only
		old := 1 + random.IntN(1000)
		sql := []string{
			fmt.Sprintf(`INSERT INTO %s (id, n, text) VALUES (%d, 1, 'new')`, name, fresh),
			fmt.Sprintf(`UPDATE %s SET n = n + 1 WHERE id = %d`, name, old),
			fmt.Sprintf(`DELETE FROM %s WHERE id = %d`, name, old),
			fmt.Sprintf(`UPDATE %s SET id = %d WHERE id = %d`, name, fresh, old),
			fmt.Sprintf(`INSERT INTO %s (id, n, text) SELECT %d + g, 2, repeat('m', 100) FROM generate_series(1, 700) g`, name, fresh),
		}
		kind := random.IntN(24)
		switch {
		case kind == 0:
			*number += 700
			script = append(script, sql[4])
		case kind == 1 && name == "emptied":
			script = append(script, `TRUNCATE emptied`)
		case name == "heap", name == "parent", kind < 10: // heap has no identity, and parent is referred to
			script = append(script, sql[0])
		default:
			script = append(script, sql[1+kind%3])
		}
	}
	for _, statement := range append(append([]string{`BEGIN`}, script...), []string{`COMMIT`, `COMMIT`, `ROLLBACK`}[random.IntN(3)]) {
		if _, err := conn.Exec(ctx, statement).ReadAll(); err != nil {
			_, aborted := conn.Exec(ctx, `ROLLBACK`).ReadAll()
			if strings.Contains(err.Error(), "40P01") { // two writers met
				return aborted
			}
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// loadTwelve starts writers that change the tables.
func (l *link) loadTwelve(writers int) *load {
	w := &load{t: l.t, source: l.source, units: make(chan struct{}, 1<<20), do: changeTwelve}
	w.start(writers)
	return w
}

// readyTables proves that all tables come to be ready, and equal, and that nothing but the
// subscription's slot is left.
func (l *link) sameTwelve(w *load, p *process) {
	l.t.Helper()
	l.untilReady(p)
	w.finish()
	l.catchUp()
	for _, name := range twelve {
		l.same(fmt.Sprintf(`SELECT count(*), count(DISTINCT id), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM %s t`, name))
	}
	p.alive()
	p.stop()
	require.Equal(l.t, l.name, pgtest.Query(l.t, l.source, `SELECT slot_name FROM pg_replication_slots WHERE database = current_database()`))
	l.cleanedUp()
}

// untilReady waits until all tables take part in the stream.
func (l *link) untilReady(p *process) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.t.Context()), patience)
	defer cancel()
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for {
		if n, all := l.ready(); all {
			return
		} else {
			select {
			case <-pause.C:
			case <-p.exited:
				require.Fail(l.t, "pgapply has ended", p.command.ProcessState.String())
			case <-ctx.Done():
				require.Fail(l.t, "tables do not become ready", "%d are; %s", n, pgtest.Query(l.t, l.target,
					`SELECT string_agg(table_name || ' ' || state::text || ' ' || coalesce(last_error, ''), '; ') FROM pgapply.subscription_table WHERE state <> 'r'`))
			}
		}
	}
}

// ready is how many tables are, and whether all are.
func (l *link) ready() (n int, all bool) {
	l.t.Helper()
	if pgtest.Query(l.t, l.target, `SELECT to_regclass('pgapply.subscription_table')`) == "" {
		return 0, false
	}
	var total int
	_, err := fmt.Sscan(strings.ReplaceAll(pgtest.Query(l.t, l.target,
		`SELECT count(*) FILTER (WHERE state = 'r'), count(*) FROM pgapply.subscription_table`), "|", " "), &n, &total)
	require.NoError(l.t, err)
	return n, n == total && total > 0
}

// cleanedUp takes the subscription away and proves that nothing of it is left.
func (l *link) cleanedUp() {
	l.t.Helper()
	oid := pgtest.Query(l.t, l.target, `SELECT oid FROM pg_database WHERE datname = current_database()`)
	_, err := operate.Cleanup(l.t.Context(), operate.CleanupOptions{
		Endpoints: operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}, Confirmed: true,
	})
	require.NoError(l.t, err)
	require.Equal(l.t, "0", pgtest.Query(l.t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`))
	require.Equal(l.t, "0", pgtest.Query(l.t, l.target, `SELECT count(*) FROM pg_replication_origin WHERE starts_with(roname, $1)`, "pgapply_"+l.name+"_"+oid+"_"))
	require.Equal(l.t, "0", pgtest.Query(l.t, l.target, `SELECT count(*) FROM pg_namespace WHERE nspname = 'pgapply'`))
}

// spawnCopy is spawn with a copy of the tables, the large ones in parts.
func (l *link) spawnCopy(flags ...string) *process {
	l.t.Helper()
	return l.spawn(append([]string{"--copy-data", "--split-tables-larger-than", "1MiB", "--table-jobs", "3"}, flags...)...)
}

// moment lets a process run for a random time.
func (p *process) moment(random *rand.Rand) {
	p.t.Helper()
	longest := []time.Duration{300 * time.Millisecond, time.Second, 4 * time.Second}[random.IntN(3)]
	timer := time.NewTimer(time.Duration(random.Int64N(int64(longest))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.exited:
		require.Fail(p.t, "pgapply has ended", p.command.ProcessState.String())
	}
}

// seeded gives random numbers that can be had again.
func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// again has a few tables copied again, where all are ready.
func (l *link) again(random *rand.Rand) (copies int) {
	l.t.Helper()
	if _, all := l.ready(); !all {
		return 0
	}
	names := slices.Clone(twelve)
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = slices.DeleteFunc(names[:4], func(name string) bool { return name == "parted" })
	_, err := operate.Resync(l.t.Context(), operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}, names, true)
	require.NoError(l.t, err)
	return len(names)
}

// TestKillCopy: whenever pgapply is killed while it copies tables that change, they become
// ready in the end, with each row once.
func TestKillCopy(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.makeTwelve()
	random := seeded(t)
	started := time.Now()
	w := l.loadTwelve(2)
	kills, most, copies := crashes(t, 20), 0, len(twelve)
	for range kills {
		w.issue(40)
		p := l.spawnCopy()
		p.moment(random)
		p.kill()
		require.NotContains(t, p.stderr.String(), "conflict")
		n, _ := l.ready()
		most = max(most, n)
		copies += l.again(random)
	}
	p := l.spawnCopy()
	w.issue(40)
	l.sameTwelve(w, p)
	require.NotContains(t, p.stderr.String(), "conflict")
	t.Logf("%d kills during %d copies of tables, %d units of load, %s", kills, copies, w.issued, time.Since(started).Round(time.Millisecond))
}

// TestKillTargetOfCopy: the target crashes while tables are copied.
func TestKillTargetOfCopy(t *testing.T) {
	t.Parallel()
	publisher, _ := pgtest.Shared(t)
	target := pgtest.Start(t, pgtest.Durable(), pgtest.With("wal_writer_delay", "2s"), pgtest.With("wal_writer_flush_after", "64MB"))
	l := linkOf(t, publisher, target)
	l.killedServer(target, func(*load, bool) {})
}

// TestKillPublisherOfCopy: the publisher crashes while tables are copied.
func TestKillPublisherOfCopy(t *testing.T) {
	t.Parallel()
	_, target := pgtest.Shared(t)
	publisher := pgtest.Start(t, pgtest.Durable())
	l := linkOf(t, publisher, target)
	l.killedServer(publisher, func(w *load, up bool) {
		if up {
			w.publisherUp()
		} else {
			w.publisherDown()
		}
	})
}

// killedServer lets a server crash a few times while tables are copied.
func (l *link) killedServer(server *cluster.Cluster, tell func(w *load, up bool)) {
	l.t.Helper()
	l.makeTwelve()
	random := seeded(l.t)
	started := time.Now()
	w := l.loadTwelve(2)
	p := l.spawnCopy()
	p.says("copying tables")
	kills := crashes(l.t, 4)
	for range kills {
		w.issue(40)
		p.moment(random)
		tell(w, false)
		require.NoError(l.t, server.Kill())
		require.NoError(l.t, server.Restart(l.t.Context()))
		tell(w, true)
		p.alive()
		l.again(random)
	}
	l.sameTwelve(w, p)
	require.NotContains(l.t, p.stderr.String(), "conflict")
	l.t.Logf("%d kills of a server, %d units of load, %s", kills, w.issued, time.Since(started).Round(time.Millisecond))
}
