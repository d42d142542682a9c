package oracle

import (
	"fmt"
	"slices"
	"strings"
)

// makeKind creates the type that a kind needs, once, and returns its units.
func (g *generator) makeKind(k *kind) []int {
	var needs []int
	for _, statement := range k.make {
		made, ok := g.made[statement]
		if !ok {
			made = g.unit(rankTable)
			g.made[statement] = made
			g.plain(made, onBoth, "", statement)
		}
		needs = append(needs, made)
	}
	return needs
}

// kindsFor are the kinds that a column can have on these servers.
func (g *generator) kindsFor(fits func(*kind) bool) []*kind {
	var fitting []*kind
	for _, k := range kinds {
		if g.servers.knows(k) && fits(k) {
			fitting = append(fitting, k)
		}
	}
	return fitting
}

// addTable makes a random table, with all that belongs to it on either end.
func (g *generator) addTable() *table {
	g.numbered++
	number := g.numbered
	t := &table{unit: g.unit(rankTable), name: fmt.Sprintf("s.t%d", number), busy: map[string]bool{}, fresh: 100}
	switch {
	case g.chance(10):
		t.name = fmt.Sprintf(`s."Odd ta'b""le %d"`, number)
		g.use("odd name")
	case g.chance(8):
		t.name = fmt.Sprintf(`"other schema".t%d`, number)
		g.use("other schema")
	}
	t.identity = pick(g, []identity{
		byPrimaryKey, byPrimaryKey, byPrimaryKey, byPrimaryKey, byPrimaryKey, byPrimaryKey,
		byIndex, byIndex, byIndex, byFullWithKey, byFullWithKey, byFullWithKey,
		byFull, byFull, byFull, byFull, byNone, noColumn,
	})
	g.use([...]string{"primary key", "index", "full with key", "full", "insert only", "no columns"}[t.identity])
	if t.identity != noColumn {
		g.addKey(t)
		g.addParts(t)
		g.addPayload(t)
	}
	g.tables = append(g.tables, t)
	g.createTable(t)
	return t
}

func (g *generator) addKey(t *table) {
	if t.identity == byFull || t.identity == byNone {
		return
	}
	count := pick(g, []int{1, 1, 1, 2, 2, 3})
	for i := range count {
		c := &column{name: fmt.Sprintf("k%d", i+1), unit: t.unit, notNull: true}
		switch {
		case count == 1 && g.chance(12):
			c.kind = kindInt
			c.identity = pick(g, []string{"ALWAYS", "BY DEFAULT"})
			g.use("identity key")
		case g.chance(8):
			c.kind = kindLong
			g.use("toasted key")
		default:
			c.kind = pick(g, g.kindsFor(func(k *kind) bool { return k.key }))
		}
		c.sqlType = c.kind.name
		g.script.units[t.unit].needs = append(g.script.units[t.unit].needs, g.makeKind(c.kind)...)
		g.otherType(t, c)
		t.key = append(t.key, c)
		t.columns = append(t.columns, c)
		g.use("key " + c.kind.name)
	}
	if count > 1 {
		g.use("several key columns")
	}
}

// otherType gives a column another type on the target, one that takes every value
// in text form.
func (g *generator) otherType(t *table, c *column) {
	if len(c.kind.wider) == 0 || c.identity != "" || !g.chance(15) {
		return
	}
	wider := pick(g, c.kind.wider)
	if !widens(c.sqlType, wider) {
		if g.late {
			return // an engine may ask for binary values already
		}
		g.script.binary = false
	}
	c.targetType = wider
	g.use("other type on the target")
}

// widens tells whether a value in binary form of one type does for the other.
func widens(from, to string) bool {
	switch from {
	case "smallint":
		return to == "int" || to == "bigint"
	case "int":
		return to == "bigint"
	}
	return strings.HasPrefix(from, "varchar") && (to == "text" || strings.HasPrefix(to, "varchar"))
}

// addParts makes the table partitioned, on one end or both.
func (g *generator) addParts(t *table) {
	if t.identity == byIndex || !g.chance(22) {
		return
	}
	c := &column{name: "part", unit: t.unit, kind: kindInt, sqlType: "int", notNull: true}
	p := &partitioning{method: pick(g, []string{"RANGE", "RANGE", "LIST", "HASH"}), column: c, onPublisher: true, onTarget: true}
	bounds := g.bounds(p.method)
	p.published, p.targets = g.leaves(t, bounds, "p"), g.leaves(t, bounds, "p")
	switch {
	case g.chance(25):
		p.onPublisher, p.published = false, nil
		g.use("partitioned on the target")
	case !g.viaRoot:
		g.use("partitions published")
	case g.chance(35):
		p.onTarget, p.targets = false, nil
		g.use("partitioned on the publisher")
	case g.chance(50):
		p.targets = g.leaves(t, g.bounds(p.method), "q")
		g.use("other partitions on the target")
	default:
		g.use("root published")
	}
	t.parts = p
	t.columns = append(t.columns, c)
	if len(t.key) > 0 {
		t.key = append(t.key, c)
	}
}

// leafPublished tells whether the table's partitions are published, not itself.
func (g *generator) leafPublished(t *table) bool {
	return t.parts != nil && t.parts.onPublisher && !g.viaRoot
}

func (g *generator) addPayload(t *table) {
	t.counter = &column{name: "n", unit: t.unit, kind: kindInt, sqlType: "int"}
	t.columns = append(t.columns, t.counter)
	incomparable := t.identity != byFull || !g.allTables && !g.late && g.chance(25)
	for i := range 1 + g.r.IntN(5) {
		c := &column{name: fmt.Sprintf("c%d", i+1), kind: pick(g, g.kindsFor(func(k *kind) bool { return incomparable || !k.incomparable }))}
		if g.chance(10) {
			c.name = fmt.Sprintf(`C "%d`, i+1)
		}
		c.unit = g.unit(rankDetail, append(g.makeKind(c.kind), t.unit)...)
		c.sqlType = c.kind.name
		// Native: a type without an equality ends the apply worker when a row has to
		// be found by all of its columns.
		t.notNative = t.notNative || t.identity == byFull && c.kind.incomparable
		g.otherType(t, c)
		t.columns = append(t.columns, c)
		g.use("column " + c.kind.name)
	}
	if t.notNative {
		g.use("full without equality")
	}
	g.addFilter(t)
	// Native: a row that a filter lets in again comes as an INSERT, and its values
	// that are stored out of line as NULL, unless the old row was sent whole.
	if (t.filter == "" || t.identity == byFull || t.identity == byFullWithKey) && g.chance(50) {
		c := &column{name: "pad", unit: g.unit(rankDetail, t.unit), kind: pick(g, []*kind{kindPad, kindPad, kindBytes}), external: true}
		c.sqlType = c.kind.name
		t.columns = append(t.columns, c)
		g.use("stored out of line")
	}
	if t.parts == nil && t.identity != byFull && t.identity != byNone && g.chance(20) {
		t.unique = &column{name: "u", unit: t.unit, kind: kindInt, sqlType: "int"}
		t.columns = append(t.columns, t.unique)
		g.use("unique column")
	}
	if g.chance(12) {
		c := &column{name: "ident", unit: g.unit(rankDetail, t.unit), kind: kindInt, sqlType: "int", skipped: true, identity: pick(g, []string{"ALWAYS", "BY DEFAULT"})}
		t.columns = append(t.columns, c)
		g.use("identity column")
	}
	g.addGenerated(t)
	g.addList(t)
	if g.chance(20) {
		g.r.Shuffle(len(t.columns), func(i, j int) { t.columns[i], t.columns[j] = t.columns[j], t.columns[i] })
	}
	g.addTargetOnly(t)
}

func (g *generator) addGenerated(t *table) {
	// Since 18 a publisher refuses to update a table whose whole rows identify them
	// when a part of these is not published.
	full := t.identity == byFull || t.identity == byFullWithKey
	if !g.chance(20) || full && g.servers.Publisher >= 18 && !g.publishGenerated {
		return
	}
	c := &column{name: "gen", unit: g.unit(rankDetail, t.unit), kind: kindInt, sqlType: "int", generated: "n * 2"}
	switch {
	case g.publishGenerated:
		g.use("generated column published")
	case g.chance(35):
		c.regenerate = true
		c.virtual = g.servers.both(18) && g.chance(40)
		g.use("generated column on both ends")
	case g.chance(50):
		c.absent = true
		g.use("generated column on the publisher")
	default:
		g.use("generated column plain on the target")
	}
	t.columns = append(t.columns, c)
}

func (g *generator) addFilter(t *table) {
	if g.servers.Publisher < 15 || g.allTables || g.leafPublished(t) || !g.chance(15) {
		return
	}
	candidates := t.key
	if t.identity == byFull || t.identity == byFullWithKey {
		candidates = t.columns
	}
	for _, c := range candidates {
		if c.kind.filter != "" && c != t.counter {
			c.filtered = true
			// The filter's column goes with the table, as the filter is part of it.
			g.script.units[t.unit].needs = append(g.script.units[t.unit].needs, g.makeKind(c.kind)...)
			c.unit = t.unit
			t.filter = strings.ReplaceAll(c.kind.filter, "$c", quote(c.name))
			g.use("row filter")
			return
		}
	}
}

func (g *generator) addList(t *table) {
	if g.servers.Publisher < 15 || g.allTables || g.leafPublished(t) || t.identity == byFull || t.identity == byFullWithKey || !g.chance(15) {
		return
	}
	for _, c := range t.columns {
		partition := t.parts != nil && c == t.parts.column
		if c != t.counter && !slices.Contains(t.key, c) && !c.filtered && !partition && g.chance(40) {
			c.unlisted = true
			c.absent = c.absent || c.generated == "" && c != t.unique && g.chance(50)
			t.listed = true
		}
	}
	if t.listed {
		g.use("column list")
	}
}

func (g *generator) addTargetOnly(t *table) {
	for _, c := range t.columns {
		if !c.absent {
			t.order = append(t.order, c)
		}
	}
	if g.chance(25) {
		c := &column{name: "extra", unit: g.unit(rankDetail, t.unit), kind: kindInt, sqlType: "int", targetOnly: true}
		// Native: what the publisher does not send counts as NULL when a row is
		// searched by all columns, so that a row with a default is never found.
		if t.identity != byFull {
			c.defaults = "7"
		}
		t.columns, t.order = append(t.columns, c), append(t.order, c)
		g.use("extra column on the target")
	}
	if g.chance(30) {
		g.r.Shuffle(len(t.order), func(i, j int) { t.order[i], t.order[j] = t.order[j], t.order[i] })
		g.use("other order on the target")
	}
}

// createTable writes the steps that make the table.
func (g *generator) createTable(t *table) {
	g.add(step{unit: t.unit, on: onPublisher, text: t.create(false)})
	g.add(step{unit: t.unit, on: onTargets, text: t.create(true)})
	if p := t.parts; p != nil {
		for _, l := range p.published {
			g.plain(t.unit, onPublisher, "", l.create(t))
		}
		for _, l := range p.targets {
			g.plain(t.unit, onTargets, "", l.create(t))
		}
	}
	for _, c := range t.columns {
		if c.external {
			on := onBoth
			if c.absent {
				on = onPublisher
			}
			g.plain(c.unit, on, "", "ALTER TABLE "+t.name+" ALTER "+quote(c.name)+" SET STORAGE EXTERNAL")
		}
		if c.kind == kindLong {
			g.plain(c.unit, onBoth, "", "ALTER TABLE "+t.name+" ALTER "+quote(c.name)+" SET STORAGE EXTERNAL")
			for _, name := range t.stored() {
				g.plain(c.unit, onPublisher, "", "ALTER TABLE "+name+" SET (toast_tuple_target = 128)")
			}
		}
	}
	g.identify(t)
	if t.unique != nil {
		g.plain(t.unit, onBoth, "", "CREATE UNIQUE INDEX ON "+t.name+" (u)")
	}
	if t.identity == byFull && g.chance(50) {
		g.addDecoys(t)
	}
	g.publish(t)
	// What a trigger does with a copied row depends on when it was copied.
	if t.identity != noColumn && t.parts == nil && !t.notNative && !g.copies && g.chance(10) {
		g.addTrigger(t)
	}
}

// identify says which row a change means.
func (g *generator) identify(t *table) {
	switch t.identity {
	case byIndex:
		// As in the table the columns may be in another order.
		index := partition(t.name, "ri")[strings.Index(t.name, ".")+1:]
		key := slices.Clone(t.key)
		g.r.Shuffle(len(key), func(i, j int) { key[i], key[j] = key[j], key[i] })
		g.add(step{unit: t.unit, on: onBoth, text: func(v view) string {
			return "CREATE UNIQUE INDEX " + index + " ON " + t.name + " (" + v.refs(key) + ")"
		}})
		g.plain(t.unit, onBoth, "", "ALTER TABLE "+t.name+" REPLICA IDENTITY USING INDEX "+index)
	case byFullWithKey, byFull, noColumn:
		for _, name := range t.stored() {
			g.plain(t.unit, onPublisher, "", "ALTER TABLE "+name+" REPLICA IDENTITY FULL")
		}
		if t.parts != nil && t.parts.onPublisher {
			g.plain(t.unit, onPublisher, "", "ALTER TABLE "+t.name+" REPLICA IDENTITY FULL")
		}
	}
}

// addDecoys gives a table that is searched by all columns indexes on the target
// which a search may use, or only seems to be able to.
func (g *generator) addDecoys(t *table) {
	for _, c := range t.columns {
		if c.kind.key && !c.absent && !c.targetOnly && !c.virtual && g.chance(50) {
			u := g.unit(rankStep, t.unit, c.unit)
			name := c.name
			g.plain(u, onTargets, "", pick(g, []string{
				"CREATE INDEX ON " + t.name + " (" + quote(name) + ")",
				"CREATE INDEX ON " + t.name + " (" + quote(name) + ", n)",
				"CREATE INDEX ON " + t.name + " ((n + 1), " + quote(name) + ")",
				"CREATE INDEX ON " + t.name + " (" + quote(name) + ") WHERE n > 3",
			}))
			g.use("index for a search by all columns")
		}
	}
}

func (g *generator) publish(t *table) {
	if g.allTables {
		return
	}
	name := "p"
	if t.notNative {
		name = "q"
	}
	if !slices.Contains(g.script.publications, name) {
		g.script.publications = append(g.script.publications, name)
		g.plain(0, onPublisher, "", "CREATE PUBLICATION "+name+g.publicationOptions())
	}
	var listed []string
	var units []int
	for _, c := range t.columns {
		if c.in() && !c.unlisted && c.generated == "" {
			listed, units = append(listed, quote(c.name)), append(units, c.unit)
		}
	}
	some, filter := t.listed, t.filter
	g.add(step{unit: t.unit, on: onPublisher, text: func(v view) string {
		text := "ALTER PUBLICATION " + name + " ADD TABLE " + t.name
		if some {
			text += " (" + v.join(listed, units) + ")"
		}
		if filter != "" {
			text += " WHERE (" + filter + ")"
		}
		return text
	}})
}

func (g *generator) publicationOptions() string {
	var options []string
	if g.viaRoot {
		options = append(options, "publish_via_partition_root = true")
	}
	if g.publishGenerated {
		options = append(options, "publish_generated_columns = stored")
	}
	if options == nil {
		return ""
	}
	return " WITH (" + strings.Join(options, ", ") + ")"
}

// addTrigger lets an ALWAYS trigger on the target write into a table of its own.
func (g *generator) addTrigger(t *table) {
	const audit = "audit"
	made, ok := g.made[audit]
	if !ok {
		made = g.unit(rankTable)
		g.made[audit] = made
		g.plain(made, onTargets, "", `CREATE TABLE s.audit (name text, op text)`)
		g.plain(made, onTargets, "", `CREATE FUNCTION s.audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO s.audit VALUES (TG_RELNAME, TG_OP); RETURN NULL; END $$`)
	}
	t.audited = true
	u := g.unit(rankStep, t.unit, made)
	if t.name == fmt.Sprintf("s.t%d", g.numbered) && t.filter == "" && g.chance(40) {
		g.addRefusal(t)
	}
	g.plain(u, onTargets, "", "CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON "+t.name+" FOR EACH ROW EXECUTE FUNCTION s.audit()")
	g.plain(u, onTargets, "", "ALTER TABLE "+t.name+" ENABLE ALWAYS TRIGGER audit")
	g.use("trigger on the target")
}

// addRefusal lets a trigger on the target keep some rows out, so that the publisher's
// table is another one. What native makes of it counts.
func (g *generator) addRefusal(t *table) {
	const refuse = "refuse"
	made, ok := g.made[refuse]
	if !ok {
		made = g.unit(rankTable)
		g.made[refuse] = made
		g.plain(made, onTargets, "", `CREATE FUNCTION s.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.n = 3 THEN RETURN NULL; END IF; RETURN NEW; END $$`)
	}
	u := g.unit(rankStep, t.unit, made)
	g.plain(u, onTargets, "", "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON "+t.name+" FOR EACH ROW EXECUTE FUNCTION s.refuse()")
	g.plain(u, onTargets, "", "ALTER TABLE "+t.name+" ENABLE ALWAYS TRIGGER refuse")
	g.script.local[t.name] = true
	t.pinned = true
	g.use("trigger that refuses rows")
}

// addReference lets a column of one table refer to the key of another one, so that
// the publisher's cascades write more than its statements say.
func (g *generator) addReference() {
	if !g.chance(35) {
		return
	}
	for _, parent := range g.tables {
		for _, child := range g.tables {
			plain := parent.parts == nil && child.parts == nil && !parent.notNative && !child.notNative &&
				parent.filter == "" && !parent.listed && !child.listed && child != parent && !g.script.local[parent.name] && !g.script.local[child.name]
			if !plain || parent.identity != byPrimaryKey || len(parent.key) != 1 || parent.key[0].targetType != "" ||
				child.identity == byNone || child.identity == byFull || child.identity == noColumn {
				continue
			}
			u := g.unit(rankStep, parent.unit, child.unit)
			c := &column{name: "ref", kind: parent.key[0].kind, sqlType: parent.key[0].sqlType, unit: u, parent: parent}
			child.columns = append(child.columns, c)
			child.pinned, parent.pinned = true, true
			parent.child = child
			g.plain(u, onBoth, "", "ALTER TABLE "+child.name+" ADD COLUMN ref "+c.sqlType)
			constraint := fmt.Sprintf("ALTER TABLE %s ADD FOREIGN KEY (ref) REFERENCES %s ON DELETE %s ON UPDATE CASCADE",
				child.name, parent.name, pick(g, []string{"CASCADE", "SET NULL"}))
			g.plain(u, pick(g, []place{onBoth, onPublisher}), "", constraint)
			g.use("foreign key")
			return
		}
	}
}
