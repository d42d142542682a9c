package oracle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"pgapply/apply"
	"pgapply/apply/stream"
)

// Servers are what a script can count on.
type Servers struct {
	Publisher, Target int             // majors
	Extensions        map[string]bool // that both have, and "icu" and "xml" where both were built with them
}

// both tells whether both ends are of a major or a newer one.
func (s Servers) both(major int) bool { return min(s.Publisher, s.Target) >= major }

func (s Servers) knows(k *kind) bool {
	return s.both(k.since) && (k.extension == "" || s.Extensions[k.extension])
}

// generator writes a script. All that it decides comes from r, so that a seed
// always gives the same script.
type generator struct {
	r       *rand.Rand
	servers Servers
	script  *draft
	clock   int
	made    map[string]int // units of types and the like, by what makes them
	tables  []*table

	viaRoot, publishGenerated, allTables bool
	// late is set once the subscriptions have started: their publications are given.
	late bool
	// numbered counts the tables, also those that are gone.
	numbered int
	// grown says that the enum has got a value more.
	grown bool

	// copies says that the subscriptions copy, and copying that they may be at it still.
	copies, copying bool

	sessions []*session
	// prepared transactions that wait for their end.
	prepared []*session
	gids     int
	// unsettled says that a target may still hold what has ended on the publisher, and
	// with it locks that nobody sees there.
	unsettled bool
	// pauses are the engines that are stopped, by index: the unit of the pause.
	pauses map[int]int
}

// draft is a script that is being written.
type draft struct {
	Script
	// binary says that values in binary form can be applied to the target's types.
	binary bool
}

func (g *generator) chance(percent int) bool { return g.r.IntN(100) < percent }

func pick[T any](g *generator, from []T) T { return from[g.r.IntN(len(from))] }

// use counts a feature.
func (g *generator) use(feature string) { g.script.Features[feature]++ }

func (g *generator) unit(rank int, needs ...int) int {
	g.script.units = append(g.script.units, unit{rank: rank, needs: needs})
	return len(g.script.units) - 1
}

func (g *generator) add(s step) {
	g.clock++
	s.clock = g.clock
	g.script.steps = append(g.script.steps, s)
}

// plain adds a statement that never looks different.
func (g *generator) plain(unit int, on place, session, sql string) {
	g.add(step{unit: unit, on: on, session: session, text: func(view) string { return sql }})
}

// Generate writes the script of a seed.
func Generate(seed uint64, servers Servers) *Script { return generate(seed, servers, false) }

// GenerateCopying writes one whose tables have rows on the publisher alone when they join
// the subscriptions, which copy them while the workload goes on.
func GenerateCopying(seed uint64, servers Servers) *Script { return generate(seed, servers, true) }

func generate(seed uint64, servers Servers, copies bool) *Script {
	g := &generator{
		copies: copies,
		r:      rand.New(rand.NewPCG(seed, 0)), servers: servers, made: map[string]int{}, pauses: map[int]int{},
		script: &draft{Script: Script{Seed: seed, copies: copies, Features: map[string]int{}, local: map[string]bool{}, units: []unit{{fixed: true}}}, binary: true},
	}
	g.schema()
	g.engines()
	g.add(step{verb: start})
	g.late, g.copying = true, copies
	for i := range g.script.Modes {
		if g.script.Modes[i].Name == "backlog" {
			g.pause(i)
		}
	}
	g.workload()
	g.finish()
	return &g.script.Script
}

// schema makes everything that is there before the subscriptions start.
func (g *generator) schema() {
	g.viaRoot = g.servers.Publisher >= 13 && g.chance(60)
	g.allTables = g.chance(12)
	// Both would send the columns that a target of its own generates.
	g.publishGenerated = g.servers.Publisher >= 18 && g.chance(20)
	g.plain(0, onBoth, "", `CREATE SCHEMA s`)
	g.plain(0, onBoth, "", `CREATE SCHEMA "other schema"`)
	g.settings()
	if g.allTables {
		g.use("all tables")
		g.script.publications = []string{"p"}
		g.plain(0, onPublisher, "", "CREATE PUBLICATION p FOR ALL TABLES"+g.publicationOptions())
	}
	for range 2 + g.r.IntN(3) {
		g.addTable()
	}
	g.addReference()
	if !slices.Contains(g.script.publications, "p") {
		g.script.publications = append(g.script.publications, "p")
		g.plain(0, onPublisher, "", "CREATE PUBLICATION p"+g.publicationOptions())
	}
	slices.Sort(g.script.publications)
	for _, t := range g.tables {
		if t.identity != noColumn && (g.chance(40) || g.copies && g.chance(60)) {
			g.load(t)
		}
	}
}

// settings gives the databases defaults that must not matter.
func (g *generator) settings() {
	set := func(on place, setting string) {
		g.plain(g.unit(rankStep), on, "", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+setting+`', current_database()); END $$`)
	}
	if g.servers.Publisher >= 16 && g.chance(30) {
		set(onPublisher, `debug_logical_replication_streaming = immediate`)
		g.use("streamed at once")
	}
	if !g.chance(25) {
		return
	}
	g.use("odd settings")
	for range 3 {
		where := pick(g, []place{onBoth, onPublisher, onTargets})
		if g.servers.Target < 15 {
			where = onTargets // the native subscription of 14 takes values as the publisher's settings write them
		}
		set(where, pick(g, []string{
			`datestyle = ''SQL, DMY''`, `datestyle = ''German''`, `intervalstyle = sql_standard`, `intervalstyle = iso_8601`,
			`extra_float_digits = -5`, `bytea_output = escape`, `timezone = ''Asia/Kathmandu''`, `search_path = ''nowhere''`,
			`default_transaction_isolation = serializable`, `quote_all_identifiers = on`,
		}))
	}
}

// atOnce makes a publisher's session stream whatever it can.
const atOnce = "debug_logical_replication_streaming = immediate"

// engines chooses the modes in which pgapply takes part. To ahead and tiny nearly all
// transactions come while they are in progress.
func (g *generator) engines() {
	streaming := []string{"off", "on", "parallel"}
	modes := []string{"live", "backlog", "tiny", "ahead"}
	prepares := g.r.IntN(len(modes)) // one always does, where the publisher can
	for i, name := range modes {
		way, binary := pick(g, streaming), g.script.binary && g.chance(40)
		limits, memory, workers := apply.DefaultOptions().MaxGroup, apply.DefaultOptions().MemoryLimit, apply.DefaultOptions().Workers
		batch := [...]int64{apply.DefaultOptions().MaxBatch, apply.DefaultOptions().MaxBatch, 0, 100, 700}[(g.script.Seed+uint64(i))%5]
		mode := Mode{Name: name, Far: (g.script.Seed+uint64(i))%3 == 0}
		var more string
		switch {
		case name == "ahead":
			way, workers, mode.AtOnce = "parallel", 3, true
			more = ", workers=3"
		case name == "tiny":
			limits = stream.Limits{Transactions: 1 + g.r.IntN(7), Rows: 50, Bytes: 2000, Age: 50 * time.Millisecond}
			memory, workers, mode.AtOnce = 1<<20, 2, g.chance(70)
			binary = g.script.binary
			more = fmt.Sprintf(", workers=2, memory-limit=1MiB, max-group-transactions=%d, max-group-rows=50, max-group-bytes=2000, max-group-age=50ms", limits.Transactions)
		case name == "backlog" && g.chance(30):
			limits.Transactions = 1
			more = ", max-group-transactions=1"
		}
		mode.Options = "streaming=" + way
		if binary {
			mode.Options += ", binary"
			g.use("binary")
		}
		twoPhase := g.servers.Publisher >= 15 && (i == prepares || g.chance(25))
		if twoPhase {
			mode.Options += ", two-phase"
			g.use(name + " two-phase")
		}
		if batch != apply.DefaultOptions().MaxBatch {
			more += fmt.Sprintf(", max-batch=%d", batch)
		}
		mode.Options += more
		g.use(name + " streaming " + way)
		if mode.Far {
			g.use("far away")
		}
		jobs, deferring := 1+(int(g.script.Seed)+i)%3, (int(g.script.Seed)+i)%2 == 0
		if g.copies {
			mode.Options += fmt.Sprintf(", copy-data, table-jobs=%d, defer-indexes=%t", jobs, deferring)
		}
		copies := g.copies
		immediate := mode.AtOnce && g.servers.Publisher >= 16
		mode.Change = func(o *apply.Options) {
			o.Streaming, o.Binary, o.MaxGroup, o.MaxBatch, o.MemoryLimit, o.Workers, o.TwoPhase = way, binary, limits, batch, memory, workers, twoPhase
			if o.CopyData = copies; copies {
				o.TableJobs, o.DeferIndexes, o.OnError = jobs, deferring, "retry"
			}
			if immediate {
				o.Source += "&options=-c%20debug_logical_replication_streaming%3Dimmediate"
			}
		}
		g.script.Modes = append(g.script.Modes, mode)
	}
	if g.servers.Target < 16 || g.servers.Publisher < 16 {
		streaming = streaming[:2]
	}
	if g.servers.Publisher < 14 || g.servers.Target < 14 {
		streaming = streaming[:1]
	}
	g.script.native = "streaming = " + pick(g, streaming)
	if g.servers.both(15) && g.chance(40) && (!g.copies || g.chance(30)) {
		g.script.native += ", " + nativePrepares
		g.use("native two-phase")
	}
	g.script.nativePublishes = []string{"p"}
}

// nativePrepares makes the native subscription prepare what the publisher does.
const nativePrepares = "two_phase = true"

// pause stops an engine until resume.
func (g *generator) pause(engine int) {
	if _, stopped := g.pauses[engine]; stopped {
		return
	}
	u := g.unit(rankStep)
	g.pauses[engine] = u
	g.add(step{verb: stop, unit: u, engine: engine})
}

func (g *generator) resume(engine int) {
	u, stopped := g.pauses[engine]
	if !stopped {
		return
	}
	delete(g.pauses, engine)
	g.add(step{verb: startAgain, unit: u, engine: engine})
}

// sync lets every subscription catch up, and holds the backlog's engine again.
func (g *generator) sync(unit int) {
	g.settle()
	var held []int
	for i := range g.script.Modes {
		if _, stopped := g.pauses[i]; stopped {
			g.resume(i)
			held = append(held, i)
		}
	}
	g.add(step{verb: catchUp, unit: unit})
	for _, i := range held {
		if g.script.Modes[i].Name == "backlog" {
			g.pause(i)
		}
	}
}

// settle ends all transactions where tables may still be copied: the slots for it wait
// for them.
func (g *generator) settle() {
	if !g.copying {
		return
	}
	for _, s := range g.sessions {
		if s.open {
			g.end(s)
		}
	}
	for len(g.prepared) > 0 {
		g.endPrepared()
	}
	g.copying = false
}

// finish ends all transactions, lets everybody catch up and asks for all rows.
func (g *generator) finish() {
	g.copying = true
	g.settle()
	for i := range g.script.Modes {
		g.resume(i)
	}
	g.add(step{verb: catchUp})
	for _, t := range g.tables {
		g.add(step{verb: check, unit: t.unit, text: func(v view) string {
			var shared []*column
			for _, c := range t.columns {
				if c.in() && !c.absent && !c.unlisted && c.generated == "" && v.alive(c.unit) {
					shared = append(shared, c)
				}
			}
			text := "SELECT " + v.refs(shared) + " FROM " + t.name
			if t.filter != "" {
				return text + " -- on the publisher: WHERE " + t.filter
			}
			return text
		}})
	}
}
