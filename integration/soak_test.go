package integration

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// usage is what a process holds.
type usage struct {
	descriptors, goroutines int
	// memory is what is resident, heap what the runtime has in use, in bytes.
	memory, heap int64
}

var served = regexp.MustCompile(`serving HTTP on (http://\S+/)`)

// usage asks the process' metrics, and the system.
func (p *process) usage() usage {
	p.t.Helper()
	p.says("serving HTTP on ")
	answer, err := http.Get(served.FindStringSubmatch(p.stderr.String())[1] + "metrics")
	require.NoError(p.t, err)
	defer answer.Body.Close()
	values := map[string]float64{}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok {
			values[name], _ = strconv.ParseFloat(value, 64) // comments are none
		}
	}
	http.DefaultClient.CloseIdleConnections()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.command.Process.Pid))
	require.NoError(p.t, err)
	require.NotZero(p.t, values["go_goroutines"])
	return usage{
		descriptors: len(open), goroutines: int(values["go_goroutines"]),
		memory: int64(values["process_resident_memory_bytes"]), heap: int64(values["go_memstats_heap_inuse_bytes"]),
	}
}

// settles waits until the process holds no more descriptors and goroutines than that.
func (p *process) settles(most usage) usage {
	p.t.Helper()
	var now usage
	require.Eventually(p.t, func() bool {
		now = p.usage()
		return now.descriptors <= most.descriptors && now.goroutines <= most.goroutines
	}, patience, 50*time.Millisecond, "it does not come back to %+v", most)
	return now
}

// TestSoak: whatever happens over and over, the process holds no more in the end than in
// the beginning. PGAPPLY_TEST_SOAK says how many rounds.
func TestSoak(t *testing.T) {
	t.Parallel()
	rounds := 2
	if text := os.Getenv("PGAPPLY_TEST_SOAK"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	publisher, target := pgtest.Pair(t, smallMemory)
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onTarget(`INSERT INTO t SELECT -g, 'of the target' FROM generate_series(1, 1000) g`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	p := l.spawn("--http", "127.0.0.1:0", "--two-phase", "--copy-data=true", "--if-not-empty", "append", "--memory-limit", "16MiB", "--workers", "4",
		"--on-conflict", "insert_exists=apply_remote", "--log-level", "info")
	ends := operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}
	streams := func() {
		pgtest.WaitFor(t, l.target, `SELECT status ->> 'state' FROM pgapply.runner`, "streaming")
		pgtest.WaitFor(t, l.source, `SELECT state FROM pg_stat_replication WHERE application_name = $1`, "streaming", l.name)
	}
	number := 0
	round := func() {
		number++
		gid := fmt.Sprintf("soak %d", number)
		large := fmt.Sprintf(`INSERT INTO t SELECT 1000000 * %d + g, repeat('x', 200) FROM generate_series(1, 5000) g`, number)
		l.onSource(large, `BEGIN; `+strings.ReplaceAll(large, "+ g", "+ 500000 + g")+`; ROLLBACK`,
			`BEGIN; UPDATE t SET v = 'prepared' WHERE id % 7 = 0; PREPARE TRANSACTION '`+gid+`'`, `COMMIT PREPARED '`+gid+`'`,
			`BEGIN; UPDATE t SET v = 'never' WHERE id % 7 = 0; PREPARE TRANSACTION '`+gid+`'`, `ROLLBACK PREPARED '`+gid+`'`,
			fmt.Sprintf(`INSERT INTO t VALUES (-%d, 'a conflict')`, number), `DELETE FROM t WHERE id > 0`)
		l.catchUp()
		// A table that comes and goes.
		l.both(`CREATE TABLE late (id int PRIMARY KEY)`)
		l.onSource(`INSERT INTO late SELECT generate_series(1, 1000)`, `ALTER PUBLICATION p ADD TABLE late`)
		_, err := operate.Refresh(t.Context(), ends, true)
		require.NoError(t, err)
		pgtest.WaitFor(t, l.target, `SELECT string_agg(state::text, '') FROM pgapply.subscription_table`, "rr")
		l.onSource(`ALTER PUBLICATION p DROP TABLE late`)
		_, err = operate.Refresh(t.Context(), ends, true)
		require.NoError(t, err)
		l.both(`DROP TABLE late`)
		streams()
		// Both links break, in every session.
		l.onSource(`SELECT pg_terminate_backend(pid) FROM pg_stat_replication`)
		pgtest.WaitFor(t, l.source, `SELECT count(*) FROM pg_stat_replication WHERE application_name = $1`, "1", l.name)
		streams()
		l.onTarget(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '` + l.name + `'`)
		l.onSource(fmt.Sprintf(`INSERT INTO t VALUES (%d, 'behind the cuts')`, number))
		l.catchUp()
		streams()
	}
	streams()
	round()
	round() // what is made once is there now
	began, first := time.Now(), p.usage()
	// At rest there is nothing that comes and goes.
	first = p.settles(first)
	t.Logf("%6s %11s %10s %12s %10s", "round", "descriptors", "goroutines", "resident MiB", "heap MiB")
	show := func(round int, u usage) {
		t.Logf("%6d %11d %10d %12.1f %10.1f", round, u.descriptors, u.goroutines, float64(u.memory)/(1<<20), float64(u.heap)/(1<<20))
	}
	show(0, first)
	for i := range rounds {
		round()
		if now := p.settles(first); i+1 == rounds || (i+1)%10 == 0 {
			show(i+1, now)
		}
	}
	t.Logf("%d rounds in %s, peak resident memory %.1f MiB", rounds, time.Since(began).Round(time.Second), float64(p.peakMemory())/(1<<20))
	require.Less(t, p.peakMemory(), int64(160<<20))
	require.Equal(t, l.same(`SELECT count(*), sum(id) FROM t WHERE id > 0`), pgtest.Query(t, l.target, `SELECT count(*), sum(id) FROM t WHERE v = 'behind the cuts'`))
	require.Equal(t, strconv.Itoa(number), pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.conflict WHERE conflict_type = 'insert_exists'`))
	p.stop()
}

// TestFloodBeforeACrawl: the publisher has far more than the target takes. What waits is in
// the publisher's log, and not in memory, and the publisher hears from us all the while.
func TestFloodBeforeACrawl(t *testing.T) {
	t.Parallel()
	publisher := pgtest.Start(t, pgtest.With("wal_sender_timeout", "3s"), smallMemory)
	_, target := pgtest.Shared(t)
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	p := l.spawn("--memory-limit", "16MiB")
	l.streams(p)
	sender := l.walsender()
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE t IN EXCLUSIVE MODE`)
	const part = 60_000
	var flood []string
	for i := range 60 { // of 1 MB each
		flood = append(flood, fmt.Sprintf(`INSERT INTO t SELECT %d + g, repeat('x', 1000) FROM generate_series(1, 1000) g`, 1000*i))
	}
	flood = append(flood, fmt.Sprintf(`INSERT INTO t SELECT %d + g, repeat('x', 1000) FROM generate_series(1, %d) g`, part, part))
	l.onSource(flood...)
	l.awaitBlocked()
	blocked := pgtest.Query(t, l.source, `SELECT clock_timestamp()`)
	pgtest.WaitFor(t, l.source, `SELECT reply_time > $1::timestamptz + '4 s' FROM pg_stat_replication WHERE pid = $2`, "t", blocked, sender)
	waiting := p.peakMemory()
	lock(`ROLLBACK`)
	l.catchUp()
	l.same(`SELECT count(*), sum(id) FROM t`)
	require.Equal(t, sender, l.walsender(), "it is the same connection still")
	t.Logf("120 MB before a lock, with --memory-limit 16MiB: peak resident memory %d MiB while blocked, %d MiB in the end", waiting>>20, p.peakMemory()>>20)
	require.Less(t, p.peakMemory(), int64(16+96+32)<<20) // the README says 96, and a binary takes room too
	p.stop()
}
