package oracle

import (
	"fmt"
	"slices"
)

// session is one of the publisher's sessions that run the workload at once. The
// script says which of them is next, so nothing is left to chance when it is
// played: a statement that would have to wait for another session's lock fails
// after a moment, and its transaction with it.
type session struct {
	name string
	open bool
	// begin is the unit of the transaction's BEGIN and end. Without it the
	// statements commit one by one.
	begin int
	// savepoints that are open, with their units.
	savepoints []savepoint
	touched    []*table
	changed    bool
	gid        string
	// after runs when the transaction has ended, either way.
	after []func()
}

type savepoint struct {
	name string
	unit int
}

// lockTimeout is what a session waits for a lock at most. Only another session of
// the script can hold one, and that one waits for this one.
const lockTimeout = `SET lock_timeout = '20ms'`

// workload writes the steps between the start and the end.
func (g *generator) workload() {
	for _, name := range []string{"A", "B", "C"} {
		g.sessions = append(g.sessions, &session{name: name})
		g.plain(0, onPublisher, name, lockTimeout)
	}
	for _, t := range g.tables {
		if t.identity != noColumn && !t.loaded && g.chance(80) {
			g.fill(t)
		}
	}
	for range 40 + g.r.IntN(50) {
		s := pick(g, g.sessions)
		switch {
		case g.copying && g.chance(92):
			g.besideCopy(s)
		case g.copying:
			g.sync(g.unit(rankStep))
			if g.script.Features["held copy"] == 0 && g.joinable() {
				g.newTable()
			}
		case g.chance(7):
			g.structural()
		case g.chance(4):
			g.sync(g.unit(rankStep))
			g.use("catch up")
		case g.chance(4):
			g.restart()
		case g.chance(1):
			g.cut()
		case g.chance(4):
			g.stepBack(s)
		case len(g.prepared) > 0 && g.chance(15):
			g.endPrepared()
		case !s.open && g.chance(30):
			g.statement(s)
		case !s.open:
			g.begin(s)
			g.statement(s)
		case g.chance(18):
			g.end(s)
		case g.chance(20):
			g.savepoint(s)
		default:
			g.statement(s)
		}
	}
}

// besideCopy goes on with the workload while tables are copied.
func (g *generator) besideCopy(s *session) {
	switch {
	case g.chance(5):
		g.restart()
	case g.chance(3):
		g.cut()
	case len(g.prepared) > 0 && g.chance(15):
		g.endPrepared()
	case s.open && g.chance(25):
		g.end(s)
	case s.open && g.chance(15):
		g.savepoint(s)
	default:
		if !s.open && g.chance(60) {
			g.begin(s)
		}
		g.statement(s)
	}
	g.use("statements beside a copy")
}

// rowsFilled is how many rows a table begins with. Statements look for their numbers.
const rowsFilled = 36

// fill gives a table the rows that statements will look for.
func (g *generator) fill(t *table) {
	s := g.sessions[0]
	g.touch(s, t)
	defer g.release(s)
	c := &change{g: g, s: s, t: t, unit: g.unit(rankStep, t.unit)}
	c.add(c.insertMany(c.row("g"), 0, rowsFilled))
}

// restart ends an engine, and starts it again now or later.
func (g *generator) restart() {
	i := g.r.IntN(len(g.script.Modes))
	if _, stopped := g.pauses[i]; stopped {
		if g.script.Modes[i].Name != "backlog" {
			g.resume(i)
		}
		return
	}
	g.pause(i)
	if g.script.Modes[i].Name == "backlog" || g.chance(50) {
		g.resume(i)
	}
	g.use("restart")
}

// cut ends an engine's connections behind its back.
func (g *generator) cut() {
	i := g.r.IntN(len(g.script.Modes))
	if _, stopped := g.pauses[i]; !stopped {
		g.add(step{verb: cut, unit: g.unit(rankStep), engine: i, on: pick(g, []place{onPublisher, onTargets})})
		g.use("connections cut")
	}
}

func (g *generator) begin(s *session) {
	s.open, s.begin = true, g.unit(rankStep)
	g.plain(s.begin, onPublisher, s.name, "BEGIN")
}

// end ends the session's transaction in one of several ways.
func (g *generator) end(s *session) {
	for _, open := range s.savepoints {
		if g.chance(30) {
			g.plain(open.unit, onPublisher, s.name, "RELEASE "+open.name)
			break // and with it those after it
		}
	}
	switch {
	case g.chance(15):
		g.plain(s.begin, onPublisher, s.name, "ROLLBACK")
		g.use("rollback")
	case s.changed && len(g.prepared) < 3 && g.chance(18) && g.preparable(s):
		g.gids++
		gid := fmt.Sprintf("gid '' %d", g.gids)
		// Its end goes first in shrinking, and then nothing is left behind: a
		// prepared transaction without end holds its locks for ever.
		g.plain(s.begin, onPublisher, s.name, "PREPARE TRANSACTION '"+gid+"'")
		g.use("prepared")
		waiting := &session{name: s.name + gid, begin: s.begin, gid: gid, touched: s.touched, after: s.after}
		s.after = nil
		for _, t := range s.touched {
			t.busy[waiting.name] = true
			if t.holder == s.name || t.searched() {
				t.holder = waiting.name
			}
		}
		g.prepared = append(g.prepared, waiting)
		s.touched = slices.Clone(s.touched)
	default:
		g.plain(s.begin, onPublisher, s.name, "COMMIT")
		g.use("commit")
	}
	s.open, s.savepoints, s.changed = false, nil, false
	g.release(s)
}

// preparable tells whether the session's transaction can wait prepared for its end.
// Where rows are searched by all their columns, the target may take another one of
// several that are equal than the publisher did, and with it one that a prepared
// transaction holds. Such a table is for the prepared one alone.
func (g *generator) preparable(s *session) bool {
	return !slices.ContainsFunc(s.touched, func(t *table) bool { return t.searched() && len(t.busy) > 1 })
}

// searched tells whether rows are searched by all their columns.
func (t *table) searched() bool { return t.identity == byFull || t.identity == noColumn }

// preparedRolledBack is a feature that matters for what native logs.
const preparedRolledBack = "prepared and rolled back"

// endPrepared ends a prepared transaction, in another session than its own.
func (g *generator) endPrepared() {
	i := g.r.IntN(len(g.prepared))
	waiting := g.prepared[i]
	g.prepared = slices.Delete(g.prepared, i, i+1)
	end := "COMMIT"
	if g.chance(30) {
		end = "ROLLBACK"
		g.use(preparedRolledBack)
	}
	g.plain(waiting.begin, onPublisher, "", end+" PREPARED '"+waiting.gid+"'")
	g.release(waiting)
	g.unsettled = true
}

// release forgets what the session's transaction has touched.
func (g *generator) release(s *session) {
	for _, t := range s.touched {
		delete(t.busy, s.name)
		if t.holder == s.name {
			t.holder = ""
		}
	}
	s.touched = nil
	after := s.after
	s.after = nil
	for _, run := range after {
		run()
	}
}

// touch notes that the session's transaction holds locks on a table, also when it
// goes back to before it: a streamed transaction may be applied as it comes. What
// refers to the table changes along with it.
func (g *generator) touch(s *session, t *table) {
	if !t.busy[s.name] {
		t.busy[s.name] = true
		s.touched = append(s.touched, t)
	}
	s.changed = true
	if t.child != nil {
		g.touch(s, t.child)
	}
}

// lock takes a table for the session alone, if nobody else is in it.
func (g *generator) lock(s *session, t *table) bool {
	for name := range t.busy {
		if name != s.name {
			return false
		}
	}
	g.touch(s, t)
	t.holder = s.name
	return true
}

func (g *generator) savepoint(s *session) {
	if n := len(s.savepoints); n > 0 && g.chance(55) {
		i := g.r.IntN(n)
		to := s.savepoints[i]
		if g.chance(70) {
			g.plain(to.unit, onPublisher, s.name, "ROLLBACK TO "+to.name)
			s.savepoints = s.savepoints[:i+1]
			g.use("rollback to savepoint")
			return
		}
		g.plain(to.unit, onPublisher, s.name, "RELEASE "+to.name)
		s.savepoints = s.savepoints[:i]
		g.use("release savepoint")
		return
	}
	point := savepoint{name: fmt.Sprintf("p%d", len(s.savepoints)+1), unit: g.unit(rankStep, s.begin)}
	s.savepoints = append(s.savepoints, point)
	g.plain(point.unit, onPublisher, s.name, "SAVEPOINT "+point.name)
	if len(s.savepoints) > 1 {
		g.use("nested savepoint")
	}
}

// stepBack rolls back to a savepoint what an engine that takes the transaction in
// progress has applied by then, and goes on from there.
func (g *generator) stepBack(s *session) {
	if g.copying {
		g.sync(g.unit(rankStep))
	}
	if !s.open {
		g.begin(s)
	}
	point := savepoint{name: fmt.Sprintf("p%d", len(s.savepoints)+1), unit: g.unit(rankStep, s.begin)}
	s.savepoints = append(s.savepoints, point)
	g.plain(point.unit, onPublisher, s.name, "SAVEPOINT "+point.name)
	for range 1 + g.r.IntN(3) {
		g.statement(s)
	}
	g.sync(point.unit)
	g.plain(point.unit, onPublisher, s.name, "ROLLBACK TO "+point.name)
	g.statement(s)
	if g.chance(60) {
		g.end(s)
	}
	g.use("rollback of what was streamed")
}

// statement writes one statement, or a few that belong together.
func (g *generator) statement(s *session) {
	if !s.open {
		defer g.release(s)
	}
	var free []*table
	for _, t := range g.tables {
		if t.holder == "" || t.holder == s.name {
			free = append(free, t)
		}
	}
	if len(free) == 0 {
		return
	}
	if g.chance(3) {
		g.plain(g.unit(rankStep), onPublisher, s.name, pick(g, []string{
			`SELECT pg_logical_emit_message(true, 'p', 'transactional')`, `SELECT pg_logical_emit_message(false, 'p', 'at once')`,
		}))
		g.use("logical message")
		return
	}
	t := pick(g, free)
	g.touch(s, t)
	c := &change{g: g, s: s, t: t, unit: g.unit(rankStep, t.unit)}
	c.write()
}
