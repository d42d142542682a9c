package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// guide is a page of docs that is followed literally: its sh blocks are typed into one
// shell, one after the other, with the variables set that a bash block of it sets.
type guide struct {
	t      *testing.T
	blocks []string
	input  io.Writer
	lines  *bufio.Scanner
}

var shBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

func newGuide(t *testing.T, page string, variables ...string) *guide {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	require.NoError(t, err)
	g := &guide{t: t}
	for _, block := range shBlock.FindAllStringSubmatch(string(text), -1) {
		g.blocks = append(g.blocks, block[1])
	}
	program, err := build()
	require.NoError(t, err)
	// The program has no name in the file system: this stands for it on the PATH.
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "pgapply"),
		fmt.Appendf(nil, "#!/bin/sh\nexec /proc/%d/fd/%d \"$@\"\n", os.Getpid(), program.Fd()), 0o755))

	shell := exec.Command("bash", "-eu", "-o", "pipefail")
	shell.Dir = t.TempDir()
	shell.Env = append(append(environment(), "PATH="+bin+":"+os.Getenv("PATH")), variables...)
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	shell.Stdout, shell.Stderr = writer, writer
	g.input, err = shell.StdinPipe()
	require.NoError(t, err)
	// What the page starts in the background ends with the shell.
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, shell.Start())
	require.NoError(t, writer.Close())
	t.Cleanup(func() {
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) // the page may have ended all
		_ = shell.Wait()
		reader.Close()
	})
	g.lines = bufio.NewScanner(reader)
	g.enter("trap 'kill $(jobs -p) 2>/dev/null' EXIT\n")
	return g
}

// enter runs a piece of the page, and returns what it printed. It fails the test
// where the shell ends, as it does at the first command that fails.
func (g *guide) enter(text string) (printed string) {
	g.t.Helper()
	const end = "-- end of the block --"
	_, err := io.WriteString(g.input, text+"\necho '"+end+"'\n")
	require.NoError(g.t, err)
	var out strings.Builder
	for g.lines.Scan() {
		if g.lines.Text() == end {
			return out.String()
		}
		out.WriteString(g.lines.Text() + "\n")
	}
	require.FailNow(g.t, "the shell has ended", "%s\nprinted\n%s", text, out.String())
	return ""
}

// follow goes on until a block that has the mark is done, or to the end for an empty one.
func (g *guide) follow(mark string) (printed string) {
	g.t.Helper()
	for len(g.blocks) > 0 {
		block := g.blocks[0]
		g.blocks = g.blocks[1:]
		out := g.enter(block)
		g.t.Logf("%s%s", "$ "+strings.ReplaceAll(strings.TrimSpace(block), "\n", "\n$ ")+"\n", out)
		printed += out
		if mark != "" && strings.Contains(block, mark) {
			return printed
		}
	}
	require.Empty(g.t, mark, "no block has it")
	return printed
}

// TestTutorial follows docs/tutorial.md.
func TestTutorial(t *testing.T) {
	requirePrograms(t)
	publisher, target := pgtest.Shared(t)
	source, destination := pgtest.Database(t, publisher), pgtest.Database(t, target)
	g := newGuide(t, "tutorial.md", "PGAPPLY_SOURCE="+source, "PGAPPLY_TARGET="+destination)
	require.Contains(t, g.follow("item = 'tea'"), " Ada  | tea")
	require.Contains(t, g.follow("while nobody listened"), "500\n")
	require.Contains(t, g.follow("conflicts show"), "update_missing")
	require.Contains(t, g.follow("verify ||"), "exit code 8")
	g.follow("")
	require.Equal(t, "20491", pgtest.Query(t, destination, `SELECT count(*) FROM orders`))
	require.Equal(t, "0", pgtest.Query(t, source, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`))
}

// requirePrograms: the pages use what comes with PostgreSQL.
func requirePrograms(t *testing.T) {
	t.Helper()
	for _, name := range []string{"bash", "psql", "pg_dump"} {
		_, err := exec.LookPath(name)
		require.NoError(t, err)
	}
}

// TestBidirectionalGuide follows docs/bidirectional.md, and goes on where it ends.
func TestBidirectionalGuide(t *testing.T) {
	requirePrograms(t)
	var sides [2]string
	for i := range sides {
		sides[i] = pgtest.Database(t, pgtest.Start(t, pgtest.OnMajor(18), pgtest.With("track_commit_timestamp", "on")))
		pgtest.Exec(t, sides[i], `CREATE TABLE customers (id int PRIMARY KEY, name text)`, `CREATE TABLE orders (id bigserial PRIMARY KEY, item text)`)
	}
	pgtest.Exec(t, sides[0], `INSERT INTO customers VALUES (1, 'Ada')`, `INSERT INTO orders (item) SELECT 'old' FROM generate_series(1, 1000)`)
	g := newGuide(t, "bidirectional.md", "A="+sides[0], "B="+sides[1])
	both := "1000001|ordered in A\n1000002|ordered in B\n"
	require.Contains(t, g.follow(""), both+both)

	// The later of two changes wins on both sides, whichever comes first there.
	earlier, later := pgtest.Open(t, sides[0]), pgtest.Open(t, sides[1])
	earlier.Exec(`BEGIN`, `UPDATE customers SET name = 'of A'`)
	later.Exec(`BEGIN`, `UPDATE customers SET name = 'of B'`)
	earlier.Exec(`COMMIT`)
	later.Exec(`COMMIT`)
	g.enter(`pgapply wait --name a_to_b --source "$A" --target "$B" --for current`)
	g.enter(`pgapply wait --name b_to_a --source "$B" --target "$A" --for current`)
	g.enter(`kill $(jobs -p) && wait`)
	for i, side := range sides {
		require.Equal(t, "1002|of B", pgtest.Query(t, side, `SELECT (SELECT count(*) FROM orders), (SELECT name FROM customers)`))
		require.Equal(t, fmt.Sprint(i), pgtest.Query(t, side, `SELECT count(*) FROM pgapply.conflict WHERE resolution = 'kept'`), "side %d", i)
	}
}

// TestMigrationGuide follows docs/migrate.md from 14 to 18, while applications write, and
// says for how long they could not.
func TestMigrationGuide(t *testing.T) {
	requirePrograms(t)
	servers := make([]*cluster.Cluster, 2)
	for i, major := range []int{14, 18} {
		servers[i] = pgtest.Start(t, pgtest.OnMajor(major))
	}
	source, target := pgtest.Database(t, servers[0]), pgtest.Database(t, servers[1])
	pgtest.Exec(t, source,
		`CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, writer int, item text NOT NULL, price numeric, placed timestamptz DEFAULT now(), details jsonb)`,
		`CREATE TABLE totals (writer int PRIMARY KEY, orders bigint NOT NULL, spent numeric NOT NULL)`,
		`CREATE TABLE visits (id serial, day date NOT NULL, what text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)`,
		`CREATE TABLE visits_old PARTITION OF visits FOR VALUES FROM ('2020-01-01') TO ('2026-01-01')`,
		`CREATE TABLE visits_new PARTITION OF visits DEFAULT`,
		`CREATE INDEX orders_by_item ON orders (item)`,
		`INSERT INTO orders (writer, item, price, details) SELECT 0, 'item ' || g, g / 100.0, jsonb_build_object('n', g) FROM generate_series(1, 50000) g`,
		`INSERT INTO totals VALUES (1, 0, 0), (2, 0, 0)`,
		`INSERT INTO visits (day, what) SELECT date '2025-12-31' + g % 3, 'x' FROM generate_series(1, 5000) g`)

	g := newGuide(t, "migrate.md", "PGAPPLY_SOURCE="+source, "PGAPPLY_TARGET="+target)
	var at atomic.Pointer[string]
	at.Store(&source)
	ctx, stop := context.WithCancel(t.Context())
	shops := make([]*shop, 2)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for i := range shops {
		shops[i] = &shop{writer: i + 1}
		running.Go(func() { shops[i].trade(ctx, &at) })
	}
	pgtest.WaitFor(t, source, `SELECT min(orders) > 20 FROM totals`, "t")

	g.follow("--reverse --yes")
	moved := time.Now()
	at.Store(&target)
	pgtest.WaitFor(t, target, `SELECT min(orders) > $1::int8 FROM totals`, "t", max(shops[0].count(), shops[1].count())+20)
	g.follow("--name pgapply_reverse --source \"$PGAPPLY_TARGET\" --target \"$PGAPPLY_SOURCE\" \\\n")
	pgtest.WaitFor(t, source, `SELECT min(orders) > $1::int8 FROM totals`, "t", min(shops[0].count(), shops[1].count()))
	stop()
	running.Wait()
	g.follow("")

	for _, shop := range shops {
		require.NoError(t, shop.broken)
		down := shop.first.Sub(shop.last)
		t.Logf("writes: application %d could not write for %.2f s, of which %.2f s were until it was pointed at the new server; %d orders, of which %d on the new server",
			shop.writer, down.Seconds(), moved.Sub(shop.last).Seconds(), shop.count(), shop.after)
		// The answer to the last commit on either server may have been lost.
		for _, uri := range []string{source, target} {
			require.Equal(t, "t|t", pgtest.Query(t, uri, `SELECT t.orders BETWEEN $2::int8 AND $2::int8 + 2,
				t.orders = (SELECT count(*) FROM orders o WHERE o.writer = t.writer) FROM totals t WHERE writer = $1::int4`, shop.writer, shop.count()))
		}
	}
	both := `SELECT count(*), sum(hashtext(o::text)::int8), (SELECT count(*) FROM visits) FROM orders o`
	require.Equal(t, pgtest.Query(t, source, both), pgtest.Query(t, target, both))
	for _, server := range servers {
		require.Equal(t, "0", pgtest.Query(t, server.URI("postgres"), `SELECT count(*) FROM pg_replication_slots`))
	}
}

// shop is an application that places an order every few milliseconds, wherever it is
// pointed at, and connects again when it has to.
type shop struct {
	writer      int
	before      atomic.Int64 // orders that it was told are committed
	after       int          // and of these, those on the new server
	last, first time.Time    // last commit on the old, first on the new server
	broken      error        // what no application should see
}

func (s *shop) count() int64 { return s.before.Load() }

const (
	readOnly     = "25006" // read_only_sql_transaction
	shutdownCode = "57P01" // admin_shutdown
)

func (s *shop) trade(ctx context.Context, at *atomic.Pointer[string]) {
	old := at.Load()
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for ctx.Err() == nil && s.broken == nil {
		uri := at.Load()
		conn, err := pgconn.Connect(ctx, *uri)
		for err == nil && at.Load() == uri {
			select {
			case <-pace.C:
			case <-ctx.Done():
			}
			_, err = conn.Exec(ctx, fmt.Sprintf(`BEGIN; INSERT INTO orders (writer, item, price, details) VALUES (%[1]d, 'tea', 4.20, '{}');
				UPDATE totals SET orders = orders + 1, spent = spent + 4.20 WHERE writer = %[1]d; INSERT INTO visits (day) VALUES ('2026-11-30'); COMMIT`, s.writer)).ReadAll()
			if err != nil {
				break
			}
			s.before.Add(1)
			switch now := time.Now(); {
			case uri == old:
				s.last = now
			case s.after == 0:
				s.first = now
				fallthrough
			default:
				s.after++
			}
		}
		if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code != readOnly && refused.Code != shutdownCode {
			s.broken = err
		}
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
			<-conn.CleanupDone()
		}
	}
}
