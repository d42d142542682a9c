package oracle

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"pgapply/apply"
)

// place is where a statement runs.
type place uint8

const (
	onBoth      place = iota // on the publisher and on every target
	onPublisher              // in a session of the workload
	onTargets                // on every target, the native one included
	onNative                 // on the native subscription's target alone
)

func (p place) String() string { return [...]string{"both", "pub", "tgt", "native"}[p] }

// verb is what a step does.
type verb uint8

const (
	runSQL     verb = iota
	start           // create the subscriptions and wait until all of them stream
	stop            // stop one engine in order
	cut             // end one engine's connections on the publisher or on its target
	startAgain      // start one engine and do not wait for it
	hold            // lock a table on every target
	held            // wait until somebody waits for that lock, on every target
	letGo           // end the lock
	joined          // wait until every subscription knows all published tables
	catchUp         // wait until every subscription has confirmed what was written
	check           // a query that gives the same rows on every end; for print only
)

// Mode is a way to run an engine that must make no difference.
type Mode struct {
	Name    string
	Options string // as a START step of the field examples says them
	AtOnce  bool   // the publisher streams it all that it can, from the first change on
	Far     bool   // its target is far away
	Change  func(*apply.Options)
}

// step is one line of a script.
type step struct {
	verb    verb
	unit    int
	on      place
	session string // of the workload; "" is one where each statement commits
	engine  int    // of stop, startAgain and cut, an index into Script.Modes
	text    func(view) string
	clock   int // says which of the renames came before
}

// view is the script as a statement sees it when it is written out.
type view struct {
	alive func(unit int) bool
	clock int
}

// unit is what shrinking takes out as a whole: steps that make sense together, or a
// part of steps such as a column.
type unit struct {
	needs []int // units without which it makes no sense
	fixed bool  // never taken out by itself
	rank  int   // units of a lower rank are tried first
}

// The ranks of units: whole tables go before statements, and what is inside of
// statements goes last.
const (
	rankTable = iota
	rankStep
	rankDetail
)

// Script is a schema and a workload. It is immutable: shrinking makes another one
// that shares the steps.
type Script struct {
	Seed     uint64
	Modes    []Mode
	Features map[string]int // how often each feature was used

	// copies says that the subscriptions copy the rows that tables have when they join.
	copies          bool
	native          string // options of CREATE SUBSCRIPTION
	publications    []string
	nativePublishes []string

	// local tables differ from the publisher's: triggers on the target keep rows out,
	// or somebody has written there.
	local map[string]bool

	// raced says that the target's rows are written by hand when some of the changes
	// before it may have been applied and others not.
	raced bool
	// frozen says that rows are written anew as they are, which freezes them. Native
	// does not see any more who wrote them.
	frozen bool

	units   []unit
	steps   []step
	renames []tableRename
	dropped map[int]bool
	engines map[int]bool // that take part; nil is all
}

// tableRename gives a table another name in the steps that come after it.
type tableRename struct {
	unit, clock int
	from        *regexp.Regexp
	to          string
}

func (s *Script) alive(unit int) bool { return !s.dropped[unit] }

// runs tells whether an engine takes part.
func (s *Script) runs(engine int) bool { return s.engines == nil || s.engines[engine] }

// line is a step written out.
type line struct {
	verb    verb
	on      place
	session string
	engine  int
	sql     string
}

// lines writes out what is left of the script.
func (s *Script) lines() []line {
	lines := make([]line, 0, len(s.steps))
	for i := range s.steps {
		step := &s.steps[i]
		ofEngine := step.verb == stop || step.verb == startAgain || step.verb == cut
		if !s.alive(step.unit) || ofEngine && !s.runs(step.engine) {
			continue
		}
		l := line{verb: step.verb, on: step.on, session: step.session, engine: step.engine}
		if step.text != nil {
			if l.sql = step.text(view{s.alive, step.clock}); l.sql == "" {
				continue
			}
			for _, r := range s.renames {
				if r.clock < step.clock && s.alive(r.unit) {
					l.sql = r.from.ReplaceAllLiteralString(l.sql, r.to)
				}
			}
		}
		lines = append(lines, l)
	}
	return lines
}

// without is the script less some units and all that needs them.
func (s *Script) without(units []int) *Script {
	less := *s
	less.dropped = make(map[int]bool, len(s.dropped)+len(units))
	for u := range s.dropped {
		less.dropped[u] = true
	}
	for _, u := range units {
		less.dropped[u] = true
	}
	for before := -1; before < len(less.dropped); {
		before = len(less.dropped)
		for u := range s.units {
			if slices.ContainsFunc(s.units[u].needs, func(needed int) bool { return less.dropped[needed] }) {
				less.dropped[u] = true
			}
		}
	}
	return &less
}

// only is the script with some of its engines.
func (s *Script) only(engines ...int) *Script {
	less := *s
	less.engines = make(map[int]bool, len(engines))
	for _, engine := range engines {
		less.engines[engine] = true
	}
	return &less
}

// String prints the script as a field example.
func (s *Script) String() string {
	p := &printer{}
	var names []string
	for i, mode := range s.Modes {
		if s.runs(i) {
			names = append(names, mode.Name)
		}
	}
	p.text("### Seed %d", s.Seed)
	if s.copies {
		p.text(", with copies")
	}
	p.text("\n")
	if len(names) > 1 {
		p.text("Variants: %s\n", strings.Join(names, " | "))
	}
	tag := func(engine int) string {
		if len(names) > 1 {
			return "[" + s.Modes[engine].Name + "] "
		}
		return ""
	}
	lines := s.lines()
	busy := map[string]bool{"": true}
	for _, l := range lines {
		busy[l.session] = busy[l.session] || l.sql != lockTimeout
	}
	for _, l := range lines {
		switch l.verb {
		case runSQL:
			if busy[l.session] {
				p.sql(l)
			}
		case check:
			p.sql(line{verb: check, sql: l.sql})
		case start:
			p.text("Publications: %s. Native: %s, publications %s.\n", strings.Join(s.publications, ", "), s.native, strings.Join(s.nativePublishes, ", "))
			for i, mode := range s.Modes {
				if s.runs(i) && mode.AtOnce {
					p.text("%sFrom 16 on its sessions on the publisher have %s.\n", tag(i), atOnce)
				}
				if s.runs(i) && mode.Far {
					p.text("%sIts target is %v away.\n", tag(i), farAway)
				}
				if s.runs(i) {
					p.text("> %sSTART(%s)\n", tag(i), mode.Options)
				}
			}
		case stop:
			p.text("> %sSTOP\n", tag(l.engine))
		case cut:
			p.text("> %sDO kill-%s-backends\n", tag(l.engine), map[place]string{onPublisher: "publisher", onTargets: "target"}[l.on])
		case startAgain:
			p.text("> %sSTART AGAIN\n", tag(l.engine))
		case hold:
			p.text("Held on every target: `%s`.\n", l.sql)
		case held:
			p.text("Wait until the copies wait for that.\n")
		case letGo:
			p.text("Let go.\n")
		case joined:
			p.text("Wait until all subscriptions know all tables.\n")
		case catchUp:
			p.text("> CATCHUP\n")
		}
	}
	p.close()
	return p.String()
}

// printer joins the statements of one place and session into one block.
type printer struct {
	strings.Builder
	open string
}

func (p *printer) sql(l line) {
	if l.on == onNative {
		p.text("Native only: `%s`.\n", l.sql)
		return
	}
	head := "sql " + l.on.String()
	if l.verb == check {
		head = "sql check"
	}
	if l.session != "" {
		head += " " + l.session
	}
	if p.open != head {
		p.close()
		p.WriteString("```" + head + "\n")
		p.open = head
	}
	p.WriteString(l.sql + ";\n")
}

func (p *printer) close() {
	if p.open != "" {
		p.WriteString("```\n")
		p.open = ""
	}
}

func (p *printer) text(format string, arguments ...any) {
	p.close()
	fmt.Fprintf(p, format, arguments...)
}
