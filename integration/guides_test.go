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
	back   string // the block that is marked with this word
	input  io.Writer
	lines  *bufio.Scanner
}

var (
	shBlock   = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	backBlock = regexp.MustCompile("(?ms)^```sh back\n(.*?)^```$")
)

func newGuide(t *testing.T, page string, variables ...string) *guide {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	require.NoError(t, err)
	g := &guide{t: t}
	for _, block := range shBlock.FindAllStringSubmatch(string(text), -1) {
		g.blocks = append(g.blocks, block[1])
	}
	if block := backBlock.FindStringSubmatch(string(text)); block != nil {
		g.back = block[1]
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

// migration is docs/migrate.md, followed from 14 to 18 while applications write, up to
// where what they write on the new server goes back to the old one.
type migration struct {
	*guide
	servers  [2]*cluster.Cluster
	old, new string
	at       atomic.Pointer[string] // where applications are pointed at
	shops    [2]*shop
	running  sync.WaitGroup
	stop     context.CancelFunc
}

func newMigration(t *testing.T) *migration {
	requirePrograms(t)
	m := &migration{}
	for i, major := range []int{14, 18} {
		m.servers[i] = pgtest.Start(t, pgtest.OnMajor(major))
	}
	m.old, m.new = pgtest.Database(t, m.servers[0]), pgtest.Database(t, m.servers[1])
	pgtest.Exec(t, m.old,
		`CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, writer int, item text NOT NULL, price numeric, placed timestamptz DEFAULT now(), details jsonb)`,
		`CREATE TABLE totals (writer int PRIMARY KEY, orders bigint NOT NULL, spent numeric NOT NULL)`,
		`CREATE TABLE visits (id serial, day date NOT NULL, what text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)`,
		`CREATE TABLE visits_old PARTITION OF visits FOR VALUES FROM ('2020-01-01') TO ('2026-01-01')`,
		`CREATE TABLE visits_new PARTITION OF visits DEFAULT`,
		`CREATE INDEX orders_by_item ON orders (item)`,
		`INSERT INTO orders (writer, item, price, details) SELECT 0, 'item ' || g, g / 100.0, jsonb_build_object('n', g) FROM generate_series(1, 50000) g`,
		`INSERT INTO totals VALUES (1, 0, 0), (2, 0, 0)`,
		`INSERT INTO visits (day, what) SELECT date '2025-12-31' + g % 3, 'x' FROM generate_series(1, 5000) g`)

	m.guide = newGuide(t, "migrate.md", "PGAPPLY_SOURCE="+m.old, "PGAPPLY_TARGET="+m.new)
	m.at.Store(&m.old)
	ctx, stop := context.WithCancel(t.Context())
	m.stop = func() {
		stop()
		m.running.Wait()
	}
	t.Cleanup(m.stop)
	for i := range m.shops {
		m.shops[i] = &shop{writer: i + 1}
		m.running.Go(func() { m.shops[i].trade(ctx, &m.at) })
	}
	pgtest.WaitFor(t, m.old, `SELECT min(orders) > 20 FROM totals`, "t")
	m.follow("--reverse --yes")
	m.moved(&m.new)
	m.follow("--origin none")
	pgtest.WaitFor(t, m.old, `SELECT sum(orders) > $1::int8 FROM totals`, "t", m.orders())
	return m
}

// moved points the applications elsewhere, and waits until they write there.
func (m *migration) moved(to *string) {
	before := m.orders()
	m.at.Store(to)
	pgtest.WaitFor(m.t, *to, `SELECT sum(orders) > $1::int8 FROM totals`, "t", before+40)
}

// orders are those that the applications were told are committed.
func (m *migration) orders() int64 { return m.shops[0].orders.Load() + m.shops[1].orders.Load() }

// accounted: whatever the applications were told is committed is there, once. The answer
// to the last commit on a server may have been lost.
func (m *migration) accounted(uri string) {
	m.t.Helper()
	for _, shop := range m.shops {
		require.NoError(m.t, shop.broken)
		m.t.Logf("writes: application %d could not write for %.2f s when it moved; %d orders", shop.writer, shop.down, shop.orders.Load())
		require.Equal(m.t, "t|t", pgtest.Query(m.t, uri, `SELECT t.orders BETWEEN $2::int8 AND $2::int8 + 3,
			t.orders = (SELECT count(*) FROM orders o WHERE o.writer = t.writer) FROM totals t WHERE writer = $1::int4`, shop.writer, shop.orders.Load()))
	}
}

// TestMigrationGuide follows docs/migrate.md to its end, and says for how long nobody
// could write.
func TestMigrationGuide(t *testing.T) {
	m := newMigration(t)
	m.follow("pgapply verify --name pgapply_reverse")
	m.stop()
	m.enter(`pgapply wait --name pgapply_reverse --source "$PGAPPLY_TARGET" --target "$PGAPPLY_SOURCE" --for current`)
	m.follow("")
	m.accounted(m.old)
	m.accounted(m.new)
	rows := `SELECT count(*), sum(hashtext(o::text)::int8), (SELECT count(*) FROM visits) FROM orders o`
	require.Equal(t, pgtest.Query(t, m.old, rows), pgtest.Query(t, m.new, rows))
	for _, server := range m.servers {
		require.Equal(t, "0", pgtest.Query(t, server.URI("postgres"), `SELECT count(*) FROM pg_replication_slots`))
	}
}

// TestMigrationGuideBack goes back to the old server, with all that was written on the
// new one.
func TestMigrationGuideBack(t *testing.T) {
	m := newMigration(t)
	m.follow("pgapply verify --name pgapply_reverse")
	t.Log(m.enter(m.back))
	m.moved(&m.old)
	m.stop()
	m.accounted(m.old)
}

// shop is an application that places an order every few milliseconds, wherever it is
// pointed at, and connects again when it has to.
type shop struct {
	writer int
	orders atomic.Int64 // that it was told are committed
	down   []float64    // seconds between the last commit on a server and the first on the next
	broken error        // what no application should see
}

const (
	readOnly     = "25006" // read_only_sql_transaction
	shutdownCode = "57P01" // admin_shutdown
)

func (s *shop) trade(ctx context.Context, at *atomic.Pointer[string]) {
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	var last time.Time
	var where *string
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
			s.orders.Add(1)
			now := time.Now()
			if where != uri && where != nil {
				s.down = append(s.down, now.Sub(last).Seconds())
			}
			last, where = now, uri
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
