package tablesync

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// BenchmarkCopy copies a table of pgbench beside what its bytes cost between two plain
// connections. PGAPPLY_BENCH_ROWS says how many rows it has. Run it with -benchtime 1x.
func BenchmarkCopy(b *testing.B) {
	rows := 300_000
	if wanted, err := strconv.Atoi(os.Getenv("PGAPPLY_BENCH_ROWS")); err == nil {
		rows = wanted
	}
	// Durable, and with room so that no checkpoint falls into one run only.
	publisher, target := pgtest.Pair(b, pgtest.Durable(), pgtest.With("max_wal_size", "8GB"), pgtest.With("shared_buffers", "512MB"), pgtest.With("autovacuum", "off"))
	e := endsOf(b, pgtest.Database(b, publisher), pgtest.Database(b, target))
	e.both(`create table accounts (aid int primary key, bid int, abalance int, filler char(84))`, `create publication p for all tables`)
	pgtest.Exec(b, e.publisher, fmt.Sprintf(`insert into accounts select i, i / 100000, 0, '' from generate_series(1, %d) i`, rows), `vacuum analyze accounts`)
	e.snapshot()
	e.bench(b, "warmup", publisher, target, func() { pipe(b, e, false) })

	for _, binary := range []bool{false, true} {
		e.bench(b, fmt.Sprintf("pipe/binary=%t", binary), publisher, target, func() { pipe(b, e, binary) })
	}
	for _, jobs := range []int{1, 2} {
		for _, binary := range []bool{false, true} {
			e.bench(b, fmt.Sprintf("copy/jobs=%d/binary=%t", jobs, binary), publisher, target, func() {
				e.options.Jobs, e.options.Binary, e.options.SplitLargerThan = jobs, binary, 0
				if jobs > 1 {
					e.options.SplitLargerThan = 64 << 20
				}
				summary, err := e.copy("accounts")
				require.NoError(b, err)
				require.Equal(b, int64(rows), summary.Tables[0].Rows)
			})
		}
	}
}

// BenchmarkManyTables copies 200 small tables.
func BenchmarkManyTables(b *testing.B) {
	publisher, target := pgtest.Pair(b, pgtest.Durable())
	e := endsOf(b, pgtest.Database(b, publisher), pgtest.Database(b, target))
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprint("small", i))
	}
	e.both(`create publication p for all tables`,
		`do $$ begin for i in 0 .. 199 loop execute format('create table small%s (id int primary key, v text)', i); end loop; end $$`)
	pgtest.Exec(b, e.publisher,
		`do $$ begin for i in 0 .. 199 loop execute format('insert into small%s select i, repeat(''x'', 100) from generate_series(1, 100) i', i); end loop; end $$`)
	e.snapshot()
	e.options.Analyze = true
	e.bench(b, "jobs=2", publisher, target, func() {
		summary, err := e.copy(names...)
		require.NoError(b, err)
		for _, result := range summary.Tables {
			require.Equal(b, int64(100), result.Rows)
		}
	})
}

// bench measures time and the CPU seconds of both servers and of ourselves.
func (e *ends) bench(b *testing.B, name string, publisher, target *cluster.Cluster, run func()) {
	b.Run(name, func(b *testing.B) {
		var sent, taken, own time.Duration
		for b.Loop() {
			b.StopTimer()
			pgtest.Exec(b, e.target, `do $$ declare t regclass; begin for t in select oid from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' loop
				execute 'truncate ' || t; end loop; end $$`, `checkpoint`)
			before := [3]time.Duration{spent(b, publisher), spent(b, target), self()}
			b.StartTimer()
			run()
			b.StopTimer()
			own += self() - before[2]
			sent += spent(b, publisher) - before[0]
			taken += spent(b, target) - before[1]
			b.StartTimer()
		}
		b.ReportMetric(sent.Seconds()/float64(b.N), "publisher-cpu-s")
		b.ReportMetric(taken.Seconds()/float64(b.N), "target-cpu-s")
		b.ReportMetric(own.Seconds()/float64(b.N), "own-cpu-s")
	})
}

// pipe is COPY TO into COPY FROM and nothing else.
func pipe(b *testing.B, e *ends, binary bool) {
	from, err := pgconn.Connect(b.Context(), e.publisher)
	require.NoError(b, err)
	to, err := pgconn.Connect(b.Context(), e.target)
	require.NoError(b, err)
	reader, writer := io.Pipe()
	done := make(chan error)
	go func() {
		_, err := from.CopyTo(b.Context(), writer, `copy accounts to stdout`+format(binary))
		writer.CloseWithError(err)
		done <- err
	}()
	_, err = to.CopyFrom(b.Context(), reader, `copy accounts from stdin`+format(binary))
	require.NoError(b, err)
	require.NoError(b, <-done)
	require.NoError(b, from.Close(context.Background()))
	require.NoError(b, to.Close(context.Background()))
}

// spent is the CPU time of the server's processes, those that have ended included.
func spent(b *testing.B, server *cluster.Cluster) time.Duration {
	b.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(b, err)
	postmaster, ticks := strconv.Itoa(server.PID()), int64(0)
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has just ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		var times []string // utime, stime, and those of children that were waited for; proc(5)
		if filepath.Base(filepath.Dir(path)) == postmaster {
			times = fields[13:15]
		} else if fields[1] == postmaster {
			times = fields[11:13]
		}
		for _, field := range times {
			n, err := strconv.ParseInt(field, 10, 64)
			require.NoError(b, err)
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func self() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // it cannot fail for ourselves
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
