package oracle

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// structural changes a table's definition while the workload goes on, in an order
// that is right wherever a subscription stands: what widens the target goes there
// first, and what both ends must do at once waits until everybody has caught up.
// Only tables that no open transaction has touched are changed, so that nothing
// waits for a lock.
func (g *generator) structural() {
	if g.copying {
		g.sync(g.unit(rankStep))
	}
	if g.unsettled {
		g.sync(g.unit(rankStep))
		g.unsettled = false
	}
	if g.joinable() && g.chance(8) {
		g.newTable()
		return
	}
	var idle []*table
	for _, t := range g.tables {
		if len(t.busy) == 0 && t.identity != noColumn {
			idle = append(idle, t)
		}
	}
	if len(idle) == 0 {
		return
	}
	t := pick(g, idle)
	u := g.unit(rankStep, t.unit)
	g.changeRows(t)
	defer g.changeRows(t)
	if g.chance(35) && g.disturb(t, u) {
		return
	}
	for range 4 { // what does not fit the table is drawn again
		if pick(g, []func(*table, int) bool{
			g.addColumn, g.addColumn, g.dropColumn, g.renameColumn, g.widenColumn, g.widenColumn, g.changeIdentity,
			g.addPartition, g.dropPartition, g.addOnTarget, g.touchOnTarget, g.touchOnTarget, g.rebuildOnTarget, g.alterPublication,
			g.shortenList, g.renameTable, g.dropTable, g.growEnum,
		})(t, u) {
			return
		}
	}
}

// changeRows changes rows of a table, so that something is under way when its definition
// changes, and comes right behind.
func (g *generator) changeRows(t *table) {
	closed := slices.IndexFunc(g.sessions, func(s *session) bool { return !s.open })
	if closed < 0 || t.holder != "" || !slices.Contains(g.tables, t) {
		return
	}
	s := g.sessions[closed]
	g.touch(s, t)
	defer g.release(s)
	(&change{g: g, s: s, t: t, unit: g.unit(rankStep, t.unit)}).insert()
	if t.identity != byNone {
		(&change{g: g, s: s, t: t, unit: g.unit(rankStep, t.unit)}).update()
	}
}

func (g *generator) ddl(u int, on place, session, format string, arguments ...any) {
	g.plain(u, on, session, fmt.Sprintf(format, arguments...))
}

// addColumn adds a column on both ends, in the order that the table can take.
func (g *generator) addColumn(t *table, u int) bool {
	k := pick(g, g.kindsFor(func(k *kind) bool { return !k.incomparable && k.make == nil }))
	g.clock++
	c := &column{name: fmt.Sprintf("d%d", g.clock), kind: k, sqlType: k.name, unit: u}
	add := "ALTER TABLE " + t.name + " ADD COLUMN " + c.name + " " + c.sqlType
	if len(k.odd) > 0 && g.chance(50) {
		add += " DEFAULT " + k.odd[0]
		g.use("add column with default")
	} else {
		g.use("add column")
	}
	switch {
	case t.identity == byFull:
		// Native: until the publisher sends the column it would count as NULL when a
		// row is searched, so both ends get it at once.
		g.sync(u)
		g.plain(u, onTargets, "", add)
		g.plain(u, onPublisher, "", add)
	case t.listed:
		// Not in the list, so it only has to be on one end.
		c.unlisted, c.absent = true, true
		g.plain(u, onPublisher, "", add)
	case g.chance(35):
		g.plain(u, onTargets, "", add)
		g.inTransaction(t, c, add)
		return true
	default:
		g.plain(u, onTargets, "", add)
		g.plain(u, onPublisher, "", add)
	}
	t.columns = append(t.columns, c)
	return true
}

// inTransaction adds the publisher's column in the middle of a transaction. Should
// that roll back, the column is added again behind it.
func (g *generator) inTransaction(t *table, c *column, add string) {
	s := pick(g, g.sessions)
	if !s.open {
		g.begin(s)
	}
	g.lock(s, t)
	insert := func(needs ...int) {
		(&change{g: g, s: s, t: t, unit: g.unit(rankStep, append(needs, t.unit)...)}).insert()
	}
	insert()
	g.plain(c.unit, onPublisher, s.name, add)
	columns := t.columns
	t.columns = append(slices.Clone(columns), c)
	insert(c.unit)
	t.columns = columns
	s.after = append(s.after, func() {
		g.plain(c.unit, onPublisher, "", strings.Replace(add, "ADD COLUMN", "ADD COLUMN IF NOT EXISTS", 1))
		t.columns = append(t.columns, c)
	})
	g.use("definition changed in a transaction")
}

// free columns can be dropped, renamed or given another type.
func (g *generator) free(t *table, fits func(*column) bool) *column {
	var free []*column
	for _, c := range t.columns {
		if c.in() && c != t.counter && c != t.unique && !c.filtered && c.generated == "" && (t.parts == nil || c != t.parts.column) && fits(c) {
			free = append(free, c)
		}
	}
	if len(free) == 0 {
		return nil
	}
	return pick(g, free)
}

func (g *generator) dropColumn(t *table, u int) bool {
	c := g.free(t, func(c *column) bool {
		// A foreign key that goes with its column locks the other table, too.
		return !slices.Contains(t.key, c) && (!t.listed || c.unlisted) && (c.parent == nil || len(c.parent.busy) == 0)
	})
	if c == nil {
		return false
	}
	g.script.units[u].needs = append(g.script.units[u].needs, c.unit)
	drop := func(v view) string { return "ALTER TABLE " + t.name + " DROP COLUMN " + v.ref(c) }
	if t.identity == byFull {
		// Native: as for a column that is added.
		g.sync(u)
	}
	g.add(step{unit: u, on: onPublisher, text: drop})
	if !c.absent {
		// The changes from before name it.
		g.sync(u)
		g.add(step{unit: u, on: onTargets, text: drop})
	}
	c.dropped = true
	g.use("drop column")
	return true
}

func (g *generator) renameColumn(t *table, u int) bool {
	if t.pinned {
		return false
	}
	c := g.free(t, func(c *column) bool { return !c.absent })
	if c == nil {
		return false
	}
	g.script.units[u].needs = append(g.script.units[u].needs, c.unit)
	g.sync(u)
	g.clock++
	name := fmt.Sprintf("r%d", g.clock)
	g.add(step{unit: u, on: onBoth, text: func(v view) string {
		return "ALTER TABLE " + t.name + " RENAME " + v.ref(c) + " TO " + name
	}})
	c.renames = append(c.renames, rename{unit: u, clock: g.clock + 1, name: name})
	g.clock++
	g.use("rename column")
	return true
}

// widenColumn gives a column a type that takes all values of the old one: on the
// target first, which must take the new values when they come.
func (g *generator) widenColumn(t *table, u int) bool {
	if t.pinned {
		return false
	}
	c := g.free(t, func(c *column) bool {
		return len(c.kind.wider) > 0 && c.identity == "" && c.targetType == "" && !c.absent
	})
	if c == nil {
		return false
	}
	at := slices.Index(c.kind.wider, c.sqlType) + 1
	if at == len(c.kind.wider) {
		return false
	}
	wider := c.kind.wider[at]
	if !widens(c.sqlType, wider) && g.script.binary && len(g.script.Modes) > 0 {
		return false // an engine may ask for binary values
	}
	g.script.units[u].needs = append(g.script.units[u].needs, c.unit)
	retype := func(v view) string { return "ALTER TABLE " + t.name + " ALTER " + v.ref(c) + " TYPE " + wider }
	g.add(step{unit: u, on: onTargets, text: retype})
	g.script.raced = true // all rows are written anew
	if g.chance(50) {
		// In between the ends differ.
		for range g.r.IntN(3) {
			g.statement(pick(g, g.sessions))
		}
	}
	if len(t.busy) == 0 {
		g.add(step{unit: u, on: onPublisher, text: retype})
		c.sqlType = wider
	} else {
		c.targetType = wider
	}
	g.use("widen column")
	return true
}

// changeIdentity changes what the publisher sends of old rows.
func (g *generator) changeIdentity(t *table, u int) bool {
	switch {
	case t.parts != nil || t.filter != "" || t.listed || t.pinned:
		return false
	case t.identity == byPrimaryKey && !slices.ContainsFunc(t.columns, func(c *column) bool { return c.generated != "" }):
		g.ddl(u, onPublisher, "", "ALTER TABLE %s REPLICA IDENTITY FULL", t.name)
		t.identity = byFullWithKey
	case t.identity == byFullWithKey:
		g.ddl(u, onPublisher, "", "ALTER TABLE %s REPLICA IDENTITY DEFAULT", t.name)
		t.identity = byPrimaryKey
	default:
		return false
	}
	g.use("change replica identity")
	return true
}

func (g *generator) addPartition(t *table, u int) bool {
	p := t.parts
	if p == nil || p.method == "HASH" || g.leafPublished(t) && !g.joinable() {
		return false
	}
	// Beyond what is there no row goes, so that the new one stays empty; it is the
	// definition that changes.
	p.next++
	bounds := fmt.Sprintf("FOR VALUES FROM (%d) TO (%d)", p.next*10, p.next*10+10)
	if p.method == "LIST" {
		bounds = fmt.Sprintf("FOR VALUES IN (%d)", p.next*10)
	}
	l := leaf{name: partition(t.name, fmt.Sprint("more", p.next)), bounds: bounds, unit: u}
	if p.onTarget {
		g.plain(u, onTargets, "", l.create(t))
	}
	if p.onPublisher {
		g.plain(u, onPublisher, "", l.create(t))
		if g.leafPublished(t) && (t.identity == byFull || t.identity == byFullWithKey) {
			g.ddl(u, onPublisher, "", "ALTER TABLE %s REPLICA IDENTITY FULL", l.name)
		}
	}
	if g.leafPublished(t) {
		g.join(u)
	}
	g.use("add partition")
	return true
}

// joinable tells whether tables can join now. The publisher does not say what it
// publishes while a table is locked exclusively, and whoever asks waits.
func (g *generator) joinable() bool {
	// Native: it refuses to copy later tables once it prepares transactions.
	if g.copies && strings.Contains(g.script.native, nativePrepares) {
		return false
	}
	return !slices.ContainsFunc(g.tables, func(t *table) bool { return t.holder != "" })
}

// join makes tables that are published now part of the subscriptions.
func (g *generator) join(u int) {
	g.plain(u, onNative, "", "ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = false)")
	for i := range g.script.Modes {
		if _, stopped := g.pauses[i]; !stopped {
			g.add(step{verb: stop, unit: u, engine: i})
			g.add(step{verb: startAgain, unit: u, engine: i})
		}
	}
	g.sync(u) // before anything is locked
}

// joinCopied is join with a copy of a table, beside which the workload goes on: at first
// between the copy's snapshot and its end, which a lock on the targets holds up.
func (g *generator) joinCopied(u int, t *table) {
	g.copying = true
	g.settle()
	lock := "LOCK TABLE " + t.name + " IN SHARE MODE"
	g.add(step{verb: hold, unit: u, text: func(view) string { return lock }})
	for i := range g.script.Modes {
		g.resume(i)
		g.add(step{verb: stop, unit: u, engine: i})
		g.add(step{verb: startAgain, unit: u, engine: i})
	}
	g.plain(u, onNative, "", "ALTER SUBSCRIPTION s REFRESH PUBLICATION")
	g.add(step{verb: joined, unit: u}) // before anything is locked
	g.add(step{verb: held, unit: u})
	g.copying = true
	for range 2 + g.r.IntN(3) {
		s := pick(g, g.sessions)
		g.touch(s, t)
		(&change{g: g, s: s, t: t, unit: g.unit(rankStep, t.unit)}).write()
		if !s.open {
			g.release(s)
		}
		g.besideCopy(pick(g, g.sessions))
	}
	g.add(step{verb: letGo, unit: u})
	g.use("held copy")
}

// dropPartition empties a partition, which is replicated, and drops it, which is
// not, on the ends that have it.
func (g *generator) dropPartition(t *table, u int) bool {
	p := t.parts
	if p == nil || p.method == "HASH" || g.leafPublished(t) || p.replaced || t.identity == byNone {
		return false
	}
	p.replaced = true
	g.ddl(u, onPublisher, "", "DELETE FROM %s", t.name)
	g.sync(u)
	if p.onPublisher {
		l := p.published[0]
		g.ddl(u, onPublisher, "", "DROP TABLE %s", l.name)
		g.plain(u, onPublisher, "", l.create(t))
		if t.identity == byFull || t.identity == byFullWithKey {
			g.ddl(u, onPublisher, "", "ALTER TABLE %s REPLICA IDENTITY FULL", l.name)
		}
	}
	if p.onTarget {
		l := p.targets[0]
		g.ddl(u, onTargets, "", "DROP TABLE %s", l.name)
		g.plain(u, onTargets, "", l.create(t))
	}
	g.use("drop partition")
	return true
}

// addOnTarget changes the target alone, which nothing in the stream tells of.
func (g *generator) addOnTarget(t *table, u int) bool {
	g.clock++
	name := fmt.Sprintf("e%d", g.clock)
	g.ddl(u, onTargets, "", "ALTER TABLE %s ADD COLUMN %s text", t.name, name)
	switch g.r.IntN(3) {
	case 0:
		g.ddl(u, onTargets, "", "ALTER TABLE %s DROP COLUMN %s", t.name, name)
	case 1:
		g.ddl(u, onTargets, "", "ALTER TABLE %s ALTER %s TYPE int USING NULL", t.name, name)
		g.script.raced = true // all rows are written anew
	}
	g.use("target changed alone")
	return true
}

// rebuildOnTarget rewrites the target's table, or its key.
func (g *generator) rebuildOnTarget(t *table, u int) bool {
	if t.parts != nil || t.pinned {
		return false
	}
	if t.identity != byPrimaryKey || g.chance(40) {
		g.ddl(u, onTargets, "", "VACUUM FULL %s", t.name)
		g.script.frozen = true
		g.use("target rewritten")
		return true
	}
	// A table without key is no place to apply an update to.
	g.sync(u)
	name := partition(t.name, "pkey")[strings.Index(t.name, ".")+1:]
	g.add(step{unit: u, on: onTargets, text: func(v view) string {
		return fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s, ADD CONSTRAINT %[2]s PRIMARY KEY (%s)", t.name, name, v.refs(t.key))
	}})
	g.use("key made again on the target")
	return true
}

// alterPublication takes a table out of the publication and puts it in again, which
// makes the publisher describe all tables anew.
func (g *generator) alterPublication(t *table, u int) bool {
	if g.allTables || t.filter != "" || t.listed || t.notNative {
		return false
	}
	g.ddl(u, onPublisher, "", "BEGIN; ALTER PUBLICATION p DROP TABLE %s; ALTER PUBLICATION p ADD TABLE %[1]s; COMMIT", t.name)
	g.use("alter publication")
	return true
}

// shortenList takes a column out of what is published of a table.
func (g *generator) shortenList(t *table, u int) bool {
	if g.servers.Publisher < 15 || g.allTables || t.filter != "" || t.notNative || g.leafPublished(t) ||
		t.identity != byPrimaryKey && t.identity != byIndex {
		return false
	}
	c := g.free(t, func(c *column) bool { return !slices.Contains(t.key, c) && !c.unlisted && c.parent == nil })
	if c == nil {
		return false
	}
	g.script.units[u].needs = append(g.script.units[u].needs, c.unit)
	c.unlisted, t.listed = true, true
	var listed []*column
	for _, c := range t.columns {
		if c.in() && !c.unlisted && c.generated == "" {
			listed = append(listed, c)
		}
	}
	g.add(step{unit: u, on: onPublisher, text: func(v view) string {
		left := slices.DeleteFunc(slices.Clone(listed), func(c *column) bool { return !v.alive(c.unit) })
		return fmt.Sprintf("BEGIN; ALTER PUBLICATION p DROP TABLE %s; ALTER PUBLICATION p ADD TABLE %[1]s (%s); COMMIT", t.name, v.refs(left))
	}})
	g.use("shorten the column list")
	return true
}

// renameTable gives a table another name or schema, once everybody has caught up.
// Native knows tables by OID and pgapply by name, so that the engines have to take
// the new one in.
func (g *generator) renameTable(t *table, u int) bool {
	schema, name, _ := strings.Cut(t.name, ".")
	if g.copies || schema != "s" || quote(name) != name || t.pinned || t.renamed || !g.joinable() {
		return false
	}
	t.renamed = true
	g.sync(u)
	from := regexp.MustCompile(`\bs\.` + name + `\b`)
	to := `"other schema".` + name
	if g.chance(50) {
		to = `s."` + name + ` New"`
		g.ddl(u, onBoth, "", `ALTER TABLE %s RENAME TO "%s New"`, t.name, name)
	} else {
		g.ddl(u, onBoth, "", `ALTER TABLE %s SET SCHEMA "other schema"`, t.name)
	}
	g.script.renames = append(g.script.renames, tableRename{unit: u, clock: g.clock, from: from, to: to})
	g.join(u)
	g.use("rename table")
	return true
}

// dropTable drops a table on all ends.
func (g *generator) dropTable(t *table, u int) bool {
	if t.pinned || len(g.tables) < 3 || g.chance(70) {
		return false
	}
	g.sync(u)
	g.ddl(u, onBoth, "", "DROP TABLE %s", t.name)
	g.tables = slices.DeleteFunc(g.tables, func(other *table) bool { return other == t })
	g.use("drop table")
	return true
}

// newTable makes a table while the subscriptions run, and has it join them.
func (g *generator) newTable() {
	t := g.addTable()
	if g.copies && t.identity != noColumn {
		g.load(t)
	}
	if g.copies {
		g.joinCopied(t.unit, t)
	} else {
		g.join(t.unit)
	}
	g.use("new table")
}

// growEnum gives an enum another value, on the targets first.
func (g *generator) growEnum(*table, int) bool {
	made := slices.IndexFunc(kinds, func(k *kind) bool { return k.name == "s.mood" })
	u, ok := g.made[kinds[made].make[0]]
	if !ok || g.grown {
		return false
	}
	const grow = `ALTER TYPE s.mood ADD VALUE 'later' BEFORE 'sad'`
	g.plain(u, onTargets, "", grow)
	g.plain(u, onPublisher, "", grow)
	g.grown = true
	g.use("enum grows")
	return true
}
