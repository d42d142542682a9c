package oracle

import (
	"fmt"
	"slices"
	"strings"
)

// identity is how the publisher says which row it changed.
type identity uint8

const (
	byPrimaryKey identity = iota
	byIndex               // REPLICA IDENTITY USING INDEX
	byFullWithKey
	byFull   // without any key
	byNone   // rows are only inserted, and truncated away
	noColumn // a table without columns, REPLICA IDENTITY FULL
)

// table is the generator's knowledge of one table as of the step that it writes.
// Columns that are gone stay in the list.
type table struct {
	name     string // qualified and quoted
	unit     int
	identity identity
	columns  []*column
	key      []*column // finds a row; by these the generator chooses rows, too
	counter  *column   // an int that statements count up; never renamed or dropped
	unique   *column   // an int with a unique index beside the key
	parts    *partitioning
	// order holds the target's columns in their order there.
	order []*column
	// pinned tables keep name and key: something else refers to them. The child does
	// so by a foreign key.
	pinned  bool
	renamed bool
	child   *table
	// fresh is the next number that no row of the table has been given yet.
	fresh int
	// loaded says that it has had rows before the subscriptions started.
	loaded bool
	// audited says that a trigger notes each change on the target.
	audited bool
	// filter restricts what is published; listed, the columns that are.
	filter string
	listed bool
	// compared with the publisher only: the native subscription cannot apply it.
	notNative bool
	// busy counts the open transactions that have touched the table, holder is
	// the one that has locked it against all others.
	busy   map[string]bool
	holder string
}

// column is a column of a table, on either end.
type column struct {
	name       string
	renames    []rename
	kind       *kind
	unit       int
	sqlType    string // on the publisher, and on the target unless targetType says otherwise
	targetType string
	notNull    bool
	identity   string // ALWAYS or BY DEFAULT
	skipped    bool   // INSERT leaves it to its identity
	generated  string // expression of $key and $n columns on the publisher
	regenerate bool   // the target generates it as well
	virtual    bool
	defaults   string
	external   bool // STORAGE EXTERNAL on both ends
	targetOnly bool
	unlisted   bool // left out by the publication's column list
	absent     bool // not on the target, possible for what is not published
	dropped    bool
	filtered   bool // part of the row filter
	parent     *table
}

type rename struct {
	unit, clock int
	name        string
}

// ref is the column's name as it is called in a statement.
func (v view) ref(c *column) string {
	name := c.name
	for _, r := range c.renames {
		if r.clock <= v.clock && v.alive(r.unit) {
			name = r.name
		}
	}
	return quote(name)
}

func (v view) refs(columns []*column) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = v.ref(c)
	}
	return strings.Join(names, ", ")
}

func quote(name string) string {
	plain := name != ""
	for i, r := range name {
		if (r < 'a' || r > 'z') && r != '_' && (i == 0 || r < '0' || r > '9') {
			plain = false
		}
	}
	if plain {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// in tells whether a column takes part in statements on the publisher.
func (c *column) in() bool { return !c.dropped && !c.targetOnly }

// writable columns are those that INSERT names.
func (c *column) writable() bool { return c.in() && c.generated == "" && !c.skipped }

// settable columns are those that UPDATE may name.
func (t *table) settable() []*column {
	var columns []*column
	for _, c := range t.columns {
		if c.writable() && c.identity != "ALWAYS" && c != t.counter && c != t.unique && !slices.Contains(t.key, c) {
			columns = append(columns, c)
		}
	}
	return columns
}

// definition writes the column out for one end.
func (c *column) definition(target bool) string {
	sqlType := c.sqlType
	if target && c.targetType != "" {
		sqlType = c.targetType
	}
	text := quote(c.name) + " " + sqlType
	if c.generated != "" && (!target || c.regenerate) {
		if c.virtual {
			return text + " GENERATED ALWAYS AS (" + c.generated + ") VIRTUAL"
		}
		return text + " GENERATED ALWAYS AS (" + c.generated + ") STORED"
	}
	if c.identity != "" {
		text += " GENERATED " + c.identity + " AS IDENTITY"
	}
	if c.notNull {
		text += " NOT NULL"
	}
	if c.defaults != "" {
		text += " DEFAULT " + c.defaults
	}
	return text
}

// create is CREATE TABLE on one end. What the table becomes later does not change it.
func (t *table) create(target bool) func(view) string {
	var definitions []string
	var units []int
	columns := t.columns
	if target {
		columns = t.order
	}
	for _, c := range columns {
		if target && !c.absent || !target && !c.targetOnly {
			definitions, units = append(definitions, c.definition(target)), append(units, c.unit)
		}
	}
	if t.identity == byPrimaryKey || t.identity == byFullWithKey {
		definitions, units = append(definitions, "PRIMARY KEY ("+view{}.refs(t.key)+")"), append(units, t.unit)
	}
	end := ")"
	if p := t.parts; p != nil && (target && p.onTarget || !target && p.onPublisher) {
		end = fmt.Sprintf(") PARTITION BY %s (%s)", p.method, p.column.name)
	}
	return func(v view) string {
		return "CREATE TABLE " + t.name + " (" + v.join(definitions, units) + end
	}
}

// join lists the texts whose units are left.
func (v view) join(texts []string, units []int) string {
	var left []string
	for i, text := range texts {
		if v.alive(units[i]) {
			left = append(left, text)
		}
	}
	return strings.Join(left, ", ")
}

// partitioning of a table by an int column with values from 0 to 9, on one end or
// on both. The bounds may differ where the root is what is published.
type partitioning struct {
	method                string // RANGE, LIST or HASH
	column                *column
	onPublisher, onTarget bool
	published, targets    []leaf
	next                  int
	replaced              bool
}

type leaf struct {
	name   string
	bounds string
	unit   int
}

func (l leaf) create(t *table) string {
	return fmt.Sprintf("CREATE TABLE %s PARTITION OF %s %s", l.name, t.name, l.bounds)
}

// stored are the publisher's tables that hold the rows: the table, or its partitions.
func (t *table) stored() []string {
	if t.parts == nil || !t.parts.onPublisher {
		return []string{t.name}
	}
	names := make([]string, len(t.parts.published))
	for i, l := range t.parts.published {
		names[i] = l.name
	}
	return names
}

// bounds divides 0 to 9 at random.
func (g *generator) bounds(method string) []string {
	switch method {
	case "HASH":
		n := 2 + g.r.IntN(2)
		all := make([]string, n)
		for i := range n {
			all[i] = fmt.Sprintf("FOR VALUES WITH (MODULUS %d, REMAINDER %d)", n, i)
		}
		return all
	case "LIST":
		cut := 1 + g.r.IntN(8)
		var low, high []string
		for i := range 10 {
			if i <= cut {
				low = append(low, fmt.Sprint(i))
			} else {
				high = append(high, fmt.Sprint(i))
			}
		}
		return []string{"FOR VALUES IN (" + strings.Join(low, ", ") + ")", "FOR VALUES IN (" + strings.Join(high, ", ") + ")"}
	}
	cut := 2 + g.r.IntN(6)
	return []string{fmt.Sprintf("FOR VALUES FROM (0) TO (%d)", cut), fmt.Sprintf("FOR VALUES FROM (%d) TO (10)", cut)}
}

// leaves makes the partitions of one end.
func (g *generator) leaves(t *table, bounds []string, suffix string) []leaf {
	leaves := make([]leaf, len(bounds))
	for i, bound := range bounds {
		leaves[i] = leaf{name: partition(t.name, fmt.Sprint(suffix, i)), bounds: bound, unit: t.unit}
	}
	return leaves
}

// partition is the name of a table that goes with another one.
func partition(table, suffix string) string {
	if strings.HasSuffix(table, `"`) {
		return strings.TrimSuffix(table, `"`) + "_" + suffix + `"`
	}
	return table + "_" + suffix
}
