package integration

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// Chaos: whatever befalls pgapply, the servers and the links, in whatever order, each
// transaction reaches the target once, in order, with its position, and nothing is
// acknowledged that could be lost.
//
//	chaosLoad ──► publisher ══ proxy ══ pgapply ══ proxy ══► target
//	                  ▲                                        ▲
//	                  └────────────── observer ────────────────┘   and judge, afterwards
//
// Everything that is decided by chance is drawn from the seed of a round (plan).

// chaosSteps is how many things happen in a round, and chaosUnits how many units are
// written for each.
const (
	chaosSteps = 5
	chaosUnits = 40
)

// TestChaos plays rounds, from PGAPPLY_TEST_SEED (1) on, as many as PGAPPLY_TEST_CRASHES
// says.
func TestChaos(t *testing.T) {
	t.Parallel()
	_, err := build() // no round is to wait for it
	require.NoError(t, err)
	first := uint64(1)
	if value := os.Getenv("PGAPPLY_TEST_SEED"); value != "" {
		first, err = strconv.ParseUint(value, 10, 64)
		require.NoError(t, err, "PGAPPLY_TEST_SEED=%q is not a number", value)
	}
	rounds := crashes(t, 10)
	lanes := min(rounds, 3)
	table := &chaosTable{faults: map[string]*chaosCount{}}
	t.Run("rounds", func(t *testing.T) {
		for lane := range lanes {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				publisher := pgtest.Start(t, pgtest.With("wal_sender_timeout", "5s"))
				// The longer the target takes to write its log, the more it loses.
				target := pgtest.Start(t, pgtest.With("wal_writer_delay", "1s"), pgtest.With("wal_writer_flush_after", "64MB"))
				for n := lane; n < rounds; n += lanes {
					p := drawPlan(first+uint64(n), chaosSteps, pgtest.Major(t))
					t.Run(fmt.Sprintf("seed=%d", p.seed), func(t *testing.T) {
						c := &chaos{link: linkOf(t, publisher, target), publisher: publisher, server: target, plan: p}
						defer func() { table.add(c) }()
						c.run()
					})
				}
			})
		}
	})
	t.Logf("%d rounds from seed %d\n%s", rounds, first, table)
}

// chaos is one round.
type chaos struct {
	*link
	publisher, server *cluster.Cluster
	through           struct{ source, target *faultnet.Proxy }
	plan              plan
	began             time.Time
	load              *chaosLoad
	lookout           *lookout
	process           *process // the newest
	processes         int
	rest              *usage // what pgapply holds that nothing has befallen; nil if that was not seen
	end               usage  // and what it holds after all
	missed            int    // faults whose statement did not come
	history           []string
	units, looks      int
}

func (c *chaos) run() {
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.accuse()
			c.t.Logf("%s\n\nWhat happened:\n%s\n\nOnce more: PGAPPLY_TEST_SEED=%d PGAPPLY_TEST_CRASHES=1 go test -run '^TestChaos$' ./integration",
				c.plan, strings.Join(c.history, "\n"), c.plan.seed)
		}
	})
	c.prepare()
	c.began = time.Now()
	c.observe()
	if c.plan.early {
		c.begin()
	}
	c.start()
	if !c.plan.early {
		c.process.says("streaming")
		c.rests()
		c.begin()
	}
	c.mark("load and pgapply run")
	for _, s := range c.plan.steps {
		c.load.issue(chaosUnits)
		if s.heals {
			c.heals()
		}
		c.pause(s.after)
		began := time.Since(c.began)
		s.fault.do(c, s)
		c.history = append(c.history, fmt.Sprintf("  %6.3fs to %6.3fs: %s", began.Seconds(), time.Since(c.began).Seconds(), s))
		c.process.alive()
	}
	c.finish()
	c.compare()
}

// prepare makes the tables, the publication, and the links.
func (c *chaos) prepare() {
	c.both(chaosTables()...)
	c.onSource(chaosRows()...)
	c.onSource(`CREATE PUBLICATION p FOR TABLE ledger, counter, toasted, whole, swap, moving, wiped, bulk, parked, grown`)
	c.onTarget(`ALTER TABLE ledger ADD COLUMN runner text DEFAULT current_setting('chaos.runner', true), ADD COLUMN backend int DEFAULT pg_backend_pid()`)
	c.streamEarly()
	c.through.source = c.proxy(c.source)
}

func (c *chaos) proxy(uri string) *faultnet.Proxy {
	proxy, _, err := faultnet.ListenURI(uri)
	require.NoError(c.t, err)
	c.t.Cleanup(proxy.Close)
	return proxy
}

// via leads to the same database through a proxy, with a setting of the sessions that
// says which process they belong to.
func via(t *testing.T, proxy *faultnet.Proxy, uri string, process int) string {
	parsed, err := url.Parse(uri)
	require.NoError(t, err)
	parsed.Host = proxy.Addr()
	query := parsed.Query()
	query.Set("options", fmt.Sprintf("-c chaos.runner=%d", process))
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return parsed.String()
}

// start starts a process of pgapply, another one each time, with a link of its own to the
// target: what an earlier one has sent may arrive late.
func (c *chaos) start() {
	c.processes++
	c.through.target = c.proxy(c.target)
	if c.plan.far {
		c.through.target.Delay(farAway / 2)
	}
	flags := append([]string{"--copy-data=true", "--http=127.0.0.1:0"}, c.plan.flags...)
	c.process = c.spawn(append(flags,
		"--source", via(c.t, c.through.source, c.source, c.processes), "--target", via(c.t, c.through.target, c.target, c.processes))...)
}

// rests notes what the process holds before anything has happened. Its sessions are there
// already, and what copied the tables goes.
func (c *chaos) rests() {
	pgtest.WaitFor(c.t, c.target, `SELECT status ->> 'state' FROM pgapply.runner`, "streaming")
	rest := c.process.usage()
	c.rest = &rest
}

func (c *chaos) pause(d time.Duration) { pause(c.t.Context(), d) }

// heals waits until pgapply applies something. Whatever was done to a link is over by
// itself.
func (c *chaos) heals() {
	c.load.issue(10)
	const shown = `SELECT count(*) FROM ledger`
	before, err := strconv.Atoi(pgtest.Query(c.t, c.target, shown))
	require.NoError(c.t, err)
	pgtest.WaitFor(c.t, c.target, `SELECT count(*) > $1 FROM ledger`, "t", before)
}

// refresh tells pgapply that there are tables to copy.
func (c *chaos) refresh(ctx context.Context) {
	program, err := build()
	for err == nil && ctx.Err() == nil {
		command := exec.CommandContext(ctx, fmt.Sprintf("/proc/self/fd/%d", program.Fd()), "refresh", "--name", c.name, "--source", c.source, "--target", c.target)
		command.Env = environment()
		if command.Run() == nil {
			return
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// finish ends load and faults, and waits until the target has everything.
func (c *chaos) finish() {
	c.load.end()
	c.mark("the load has ended")
	c.through.source.Calm()
	c.through.target.Calm()
	c.process.alive()
	// Nothing that was published is left out, whoever was to tell.
	c.refresh(c.t.Context())
	c.mark("refreshed")
	pgtest.WaitFor(c.t, c.target, `SELECT count(*) FILTER (WHERE state = 'r') FROM pgapply.subscription_table`, fmt.Sprint(10+c.load.tables.Load()))
	c.mark("all tables are ready")
	// The publisher's log may be flushed up to the middle of a record, and remain so for a while.
	c.onSource(`SELECT pg_logical_emit_message(true, 'flush', '')`)
	c.catchUp()
	c.mark("all is acknowledged")
	c.process.alive()
	if c.rest != nil {
		c.end = c.process.settles(*c.rest)
		c.mark("as few descriptors and goroutines as in the beginning")
	}
	c.process.stop()
	c.mark("stopped")
}

// mark notes that a round has come so far.
func (c *chaos) mark(what string) {
	c.history = append(c.history, fmt.Sprintf("  %6.3fs: %s", time.Since(c.began).Seconds(), what))
}

// judged ends the observation, and judges it. The first few faults tell enough.
func (c *chaos) judged() ([]string, error) {
	samples := c.lookout.end()
	order, err := c.lookout.order(context.WithoutCancel(c.t.Context()))
	c.units, c.looks = len(order), len(samples)
	verdict := judge(order, samples)
	return verdict[:min(len(verdict), 5)], err
}

// accuse adds to a failure what the observer saw, if a server still says in which order
// things came.
func (c *chaos) accuse() {
	if c.lookout == nil || c.units > 0 {
		return
	}
	if verdict, err := c.judged(); err == nil && len(verdict) > 0 {
		c.t.Logf("What the observer saw:\n%s", strings.Join(verdict, "\n"))
	}
}

// compare proves that nothing is missing, twice, made up or left behind.
func (c *chaos) compare() {
	verdict, err := c.judged()
	require.NoError(c.t, err)
	require.Empty(c.t, verdict, "what the observer saw")
	samples := c.lookout.end()
	last := samples[len(samples)-1]
	require.True(c.t, last.ready)
	require.NotZero(c.t, c.units)
	require.Len(c.t, last.ledger, c.units, "units on the target")
	pgtest.Exec(c.t, c.source, `SELECT pg_drop_replication_slot('seen_' || current_database())`)

	tables := []string{"counter", "toasted", "whole", "swap", "moving", "wiped", "bulk", "parked", "grown"}
	for n := range c.load.tables.Load() {
		tables = append(tables, fmt.Sprintf("extra%d", n+1))
	}
	c.same(`SELECT count(*), md5(string_agg(concat(writer, ' ', number, ' ', kind), ',' ORDER BY writer, number)) FROM ledger`)
	for _, table := range tables {
		c.same(`SELECT '` + table + `', count(*), md5(string_agg(t::text, E'\n' ORDER BY t::text COLLATE "C")) FROM ` + table + ` t`)
	}
	require.Equal(c.t, "0", pgtest.Query(c.t, c.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`), "prepared transactions")
	require.Equal(c.t, "0", pgtest.Query(c.t, c.target, `SELECT count(*) FROM pgapply.progress WHERE gid IS NOT NULL`), "progress of prepared transactions")
	require.Equal(c.t, "0", pgtest.Query(c.t, c.target, `SELECT count(*) FROM pgapply.conflict`), "conflicts")
	pgtest.WaitFor(c.t, c.target, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`, "0")
	pgtest.WaitFor(c.t, c.source, `SELECT string_agg(slot_name || ' ' || active, ',') FROM pg_replication_slots WHERE database = current_database()`, c.name+" false")
}

// chaosTable counts what happened in all rounds.
type chaosTable struct {
	mu                    sync.Mutex
	faults                map[string]*chaosCount
	all                   chaosCount
	units, streams, looks int
	tables, columns       int
	missed                int
	held                  []string // descriptors and goroutines, at rest and in the end
	took, longest         time.Duration
}

type chaosCount struct{ times, rounds, failed int }

func (n *chaosCount) round(failed bool) {
	n.rounds++
	if failed {
		n.failed++
	}
}

func (table *chaosTable) add(c *chaos) {
	table.mu.Lock()
	defer table.mu.Unlock()
	seen := map[string]bool{}
	for _, s := range c.plan.steps {
		name := s.fault.name
		if table.faults[name] == nil {
			table.faults[name] = &chaosCount{}
		}
		table.faults[name].times++
		if !seen[name] {
			table.faults[name].round(c.t.Failed())
		}
		seen[name] = true
	}
	table.all.round(c.t.Failed())
	table.units += c.units
	table.looks += c.looks
	table.missed += c.missed
	if c.rest != nil {
		table.held = append(table.held, fmt.Sprintf("%d+%d, %d+%d", c.rest.descriptors, c.rest.goroutines, c.end.descriptors, c.end.goroutines))
	}
	if c.load != nil {
		table.streams += int(c.load.streams.Load())
		table.tables += int(c.load.tables.Load())
		table.columns += int(c.load.columns.Load())
	}
	took := time.Since(c.began)
	table.took += took
	table.longest = max(table.longest, took)
}

func (table *chaosTable) String() string {
	table.mu.Lock()
	defer table.mu.Unlock()
	var text strings.Builder
	out := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "fault\ttimes\trounds\tfailed\n")
	for _, name := range slices.Sorted(maps.Keys(table.faults)) {
		n := table.faults[name]
		fmt.Fprintf(out, "%s\t%d\t%d\t%d\n", name, n.times, n.rounds, n.failed)
	}
	_ = out.Flush() // into memory
	fmt.Fprintf(&text, "%d rounds, %d failed: %d units, %d of them large, %d tables and %d columns added, %d looks, %d statements did not come, %s a round, %s at most",
		table.all.rounds, table.all.failed, table.units, table.streams, table.tables, table.columns, table.looks, table.missed,
		(table.took / time.Duration(max(table.all.rounds, 1))).Round(time.Millisecond), table.longest.Round(time.Millisecond))
	fmt.Fprintf(&text, "\nDescriptors and goroutines before and after %d rounds: %s", len(table.held), strings.Join(table.held, "; "))
	return text.String()
}
