package oracle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// change writes one statement that changes a table's rows.
type change struct {
	g    *generator
	s    *session
	t    *table
	unit int
}

// assignment is a column and an SQL expression for it.
type assignment struct {
	column *column
	value  string
}

func (c *change) add(text func(view) string) {
	c.g.add(step{unit: c.unit, on: onPublisher, session: c.s.name, text: text})
}

// write chooses what to do.
func (c *change) write() {
	g, t := c.g, c.t
	if t.identity == noColumn {
		c.withoutColumns()
		return
	}
	choice := g.r.IntN(100)
	switch {
	case choice < 7 && c.truncate():
	case t.identity == byNone && choice < 70 || choice < 25:
		c.insert()
	case t.identity == byNone || choice < 43:
		c.many()
	case choice < 46:
		c.bulk()
	case choice < 49:
		c.subtransactions()
	case choice < 68:
		c.update()
	case choice < 80:
		c.changeKey()
	case choice < 84 && t.unique != nil:
		c.handOver()
	default:
		c.delete()
	}
}

func (c *change) withoutColumns() {
	name := c.t.name
	sql := "INSERT INTO " + name + " DEFAULT VALUES"
	if c.g.chance(25) {
		sql = "DELETE FROM " + name + " WHERE ctid = (SELECT ctid FROM " + name + " LIMIT 1)"
	}
	c.add(func(view) string { return sql })
	c.g.use("row without columns")
}

// value is a random value for a column of a row with a number.
func (c *change) value(column *column, number string) string {
	g, k := c.g, column.kind
	if slices.Contains(c.t.key, column) {
		return c.keyValue(column, number)
	}
	if c.t.parts != nil && column == c.t.parts.column {
		return remainder(number)
	}
	if !column.notNull && g.chance(14) {
		return "NULL"
	}
	if p := column.parent; p != nil {
		g.touch(c.s, p)
		// A key that is there, if any is.
		return fmt.Sprintf("(SELECT %s FROM %s ORDER BY 1 LIMIT 1 OFFSET %d)", p.key[0].name, p.name, g.r.IntN(4))
	}
	if g.grown && strings.HasPrefix(k.name, "s.mood") && g.chance(30) {
		return map[string]string{"s.mood": "'later'", "s.mood[]": "'{sad,later}'"}[k.name]
	}
	odd := k.odd
	if c.t.identity != byFull {
		odd = slices.Concat(k.odd, k.alike)
	}
	if len(odd) > 0 && g.chance(18) {
		return pick(g, odd)
	}
	if c.t.identity == byFull {
		return k.at(fmt.Sprint(g.r.IntN(4))) // so that rows are equal
	}
	if strings.ContainsAny(number, "gn") { // each row's own
		return k.at(number)
	}
	return k.at(fmt.Sprint(g.r.IntN(40)))
}

func (c *change) keyValue(column *column, number string) string {
	if c.t.parts != nil && column == c.t.parts.column {
		return remainder(number)
	}
	return column.kind.at(number)
}

// remainder chooses the partition of a row with a number.
func remainder(number string) string {
	if n, err := strconv.Atoi(number); err == nil {
		return strconv.Itoa(n % 10)
	}
	return number + " % 10"
}

// number is that of a row which may be there, mostly one that no other session
// cares for.
func (c *change) number() int {
	n := c.g.r.IntN(rowsFilled)
	if !c.g.chance(80) {
		return n
	}
	i := slices.Index(c.g.sessions, c.s)
	return n/3*3 + i
}

func (c *change) newNumber() int {
	c.t.fresh++
	return c.t.fresh
}

// row gives values to all columns that INSERT names.
func (c *change) row(number string) []assignment {
	var row []assignment
	for _, column := range c.t.columns {
		switch {
		case !column.writable():
		case column == c.t.unique:
			value := "NULL"
			if c.g.chance(60) {
				value = "10000 + " + number
			}
			row = append(row, assignment{column, value})
		case column == c.t.counter && strings.Contains(number, "g"):
			row = append(row, assignment{column, "g % 5"})
		case column == c.t.counter:
			row = append(row, assignment{column, fmt.Sprint(c.g.r.IntN(5))})
		default:
			row = append(row, assignment{column, c.value(column, number)})
		}
	}
	return row
}

// names and values of the columns that are left.
func (v view) names(row []assignment) string {
	var names []string
	for _, a := range row {
		if v.alive(a.column.unit) {
			names = append(names, v.ref(a.column))
		}
	}
	return strings.Join(names, ", ")
}

func (v view) values(row []assignment) string {
	var values []string
	for _, a := range row {
		if v.alive(a.column.unit) {
			values = append(values, a.value)
		}
	}
	return strings.Join(values, ", ")
}

// override lets INSERT give an identity column its value.
func (c *change) override() string {
	for _, column := range c.t.columns {
		if column.identity == "ALWAYS" && column.writable() {
			return " OVERRIDING SYSTEM VALUE"
		}
	}
	return ""
}

func (c *change) insert() {
	g, t := c.g, c.t
	type numbered struct {
		unit int
		row  []assignment
	}
	var rows []numbered
	var first []assignment
	for i := range pick(g, []int{1, 1, 2, 3}) {
		number := c.number()
		if g.chance(20) {
			number = c.newNumber()
		}
		row := numbered{unit: c.unit, row: c.row(fmt.Sprint(number))}
		if i > 0 {
			row.unit = g.unit(rankDetail, c.unit)
		} else {
			first = row.row
		}
		rows = append(rows, row)
	}
	end := ""
	if len(t.key) > 0 && !g.chance(5) {
		end = " ON CONFLICT DO NOTHING"
		if len(rows) == 1 && t.unique == nil && g.chance(20) {
			end = "upsert"
			g.use("upsert")
		}
	}
	override := c.override()
	c.add(func(v view) string {
		text := "INSERT INTO " + t.name + " (" + v.names(first) + ")" + override + " VALUES "
		separator := ""
		for _, row := range rows {
			if v.alive(row.unit) {
				text += separator + "(" + v.values(row.row) + ")"
				separator = ", "
			}
		}
		if end == "upsert" {
			return text + " ON CONFLICT (" + v.refs(t.key) + ") DO UPDATE SET n = excluded.n + 1"
		}
		return text + end
	})
	g.use("insert")
}

// set chooses columns to set, and values for them.
func (c *change) set(number string) []assignment {
	var set []assignment
	settable := c.t.settable()
	if len(settable) > 0 && !c.g.chance(20) {
		for range 1 + c.g.r.IntN(2) {
			column := pick(c.g, settable)
			if !slices.ContainsFunc(set, func(a assignment) bool { return a.column == column }) {
				set = append(set, assignment{column, c.value(column, number)})
			}
		}
	}
	return set
}

// setText is the SET list: what is left of the assignments, and always the counter.
func (v view) setText(set []assignment) string {
	text := "n = n + 1"
	for _, a := range set {
		if v.alive(a.column.unit) {
			text += ", " + v.ref(a.column) + " = " + a.value
		}
	}
	return text
}

// where names a few rows.
func (c *change) where() func(view) string {
	g, t := c.g, c.t
	if len(t.key) == 0 || g.chance(12) {
		remainder := g.r.IntN(5)
		limit := 1 + g.r.IntN(3)
		row := "ctid"
		if t.parts != nil {
			row = "tableoid, ctid"
		}
		return func(view) string {
			return fmt.Sprintf("(%s) IN (SELECT %[1]s FROM %s WHERE n %% 5 = %d LIMIT %d)", row, t.name, remainder, limit)
		}
	}
	numbers := []int{c.number()}
	for g.chance(30) {
		numbers = append(numbers, c.number())
	}
	return c.whereKey(numbers...)
}

// whereKey names the rows with these numbers.
func (c *change) whereKey(numbers ...int) func(view) string {
	texts := make([]string, len(numbers))
	for i, number := range numbers {
		texts[i] = fmt.Sprint(number)
	}
	return c.whereNumbers(texts...)
}

// whereNumbers does so with expressions for the numbers. A partition's column is left
// out: it changes, and the rest of the key does without it.
func (c *change) whereNumbers(numbers ...string) func(view) string {
	key := slices.DeleteFunc(slices.Clone(c.t.key), func(k *column) bool { return c.t.parts != nil && k == c.t.parts.column })
	return func(v view) string {
		var rows []string
		for _, number := range numbers {
			var conditions []string
			for _, k := range key {
				conditions = append(conditions, v.ref(k)+" = "+k.kind.at(number))
			}
			rows = append(rows, strings.Join(conditions, " AND "))
		}
		return strings.Join(rows, " OR ")
	}
}

func (c *change) update() {
	t := c.t
	where := c.where()
	if t.parts != nil && (len(t.key) == 0 || c.g.chance(40)) {
		move := 1 + c.g.r.IntN(9)
		c.add(func(v view) string {
			return fmt.Sprintf("UPDATE %s SET part = (part + %d) %% 10, n = n + 1 WHERE %s", t.name, move, where(v))
		})
		c.g.use("move between partitions")
		return
	}
	set := c.set(fmt.Sprint(c.number()))
	c.add(func(v view) string { return "UPDATE " + t.name + " SET " + v.setText(set) + " WHERE " + where(v) })
	c.g.use("update")
}

// changeKey gives a row another key, or an equal one that looks different.
func (c *change) changeKey() {
	g, t := c.g, c.t
	if len(t.key) == 0 {
		c.update()
		return
	}
	from := c.number()
	where := c.whereKey(from)
	var vary []*column
	for _, k := range t.key {
		if k.kind.vary != "" {
			vary = append(vary, k)
		}
		if k.identity == "ALWAYS" {
			c.update()
			return
		}
	}
	if len(vary) > 0 && g.chance(40) {
		k := pick(g, vary)
		c.add(func(v view) string {
			return fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s", t.name, v.ref(k), strings.ReplaceAll(k.kind.vary, "$c", v.ref(k)), where(v))
		})
		g.use("key that only looks different")
		return
	}
	to := c.newNumber()
	if g.chance(25) {
		to = c.number()
	}
	// At times only a part of the key.
	var key []*column
	for i, k := range t.key {
		if i == 0 || g.chance(60) {
			key = append(key, k)
		}
	}
	set := c.set(fmt.Sprint(to))
	c.add(func(v view) string {
		text := "UPDATE " + t.name + " SET " + v.setText(set)
		for _, k := range key {
			text += ", " + v.ref(k) + " = " + c.keyValue(k, fmt.Sprint(to))
		}
		return text + " WHERE " + where(v)
	})
	g.use("key change")
}

// handOver lets a unique value go from one row to another.
func (c *change) handOver() {
	t := c.t
	value := 10000 + c.number()
	where := c.whereKey(c.number())
	c.add(func(view) string { return fmt.Sprintf("UPDATE %s SET u = NULL WHERE u = %d", t.name, value) })
	c.add(func(v view) string {
		return fmt.Sprintf("UPDATE %s SET u = %d WHERE %s AND NOT EXISTS (SELECT FROM %[1]s WHERE u = %[2]d)", t.name, value, where(v))
	})
	c.g.use("unique value changes hands")
}

func (c *change) delete() {
	where := c.where()
	name := c.t.name
	c.add(func(v view) string { return "DELETE FROM " + name + " WHERE " + where(v) })
	c.g.use("delete")
	if c.g.chance(30) && len(c.t.key) > 0 {
		c.unit = c.g.unit(rankStep, c.t.unit)
		c.insert()
	}
}

// bulk changes enough rows for a transaction to be streamed.
func (c *change) bulk() {
	g, t := c.g, c.t
	switch g.r.IntN(4) {
	case 0:
		set := c.set("0")
		modulus := 1 + g.r.IntN(3)
		c.add(func(v view) string {
			return fmt.Sprintf("UPDATE %s SET %s WHERE n %% %d = 0", t.name, v.setText(set), modulus)
		})
		g.use("bulk update")
	case 1:
		remainder := g.r.IntN(3)
		c.add(func(view) string { return fmt.Sprintf("DELETE FROM %s WHERE n %% 3 = %d", t.name, remainder) })
		g.use("bulk delete")
	default:
		many := 100 + g.r.IntN(400)
		c.add(c.insertMany(c.row("g"), t.fresh+1, many))
		t.fresh += many
		g.use("bulk insert")
	}
}

// insertMany inserts rows with consecutive numbers g, with which row says their values.
func (c *change) insertMany(row []assignment, from, many int) func(view) string {
	return c.insertAll(c.g.unit(rankDetail, c.unit), row, from, many)
}

// insertAll does so where only two rows are left when the unit all is gone.
func (c *change) insertAll(all int, row []assignment, from, many int) func(view) string {
	override := c.override()
	name := c.t.name
	return func(v view) string {
		to := from + many - 1
		if !v.alive(all) {
			to = from + 1
		}
		return fmt.Sprintf("INSERT INTO %s (%s)%s SELECT %s FROM generate_series(%d, %d) g", name, v.names(row), override, v.values(row), from, to)
	}
}

// subtransactions inserts rows, each in a subtransaction of its own, of which every
// third rolls back.
func (c *change) subtransactions() {
	t := c.t
	from, many := t.fresh+1, 5+c.g.r.IntN(80)
	t.fresh += many
	row, override := c.row("g"), c.override()
	c.add(func(v view) string {
		return fmt.Sprintf("DO $do$ BEGIN FOR g IN %d..%d LOOP BEGIN INSERT INTO %s (%s)%s VALUES (%s); "+
			"IF g %% 3 = 0 THEN RAISE EXCEPTION 'no'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $do$",
			from, from+many-1, t.name, v.names(row), override, v.values(row))
	})
	c.g.use("subtransactions")
}

func (c *change) truncate() bool {
	g := c.g
	// Native: where one refers to the other, and one of them is copied still, it cannot
	// truncate the other alone, and waits for ever.
	refers := func(t *table) bool {
		return g.copying && (t.child != nil || slices.ContainsFunc(t.columns, func(c *column) bool { return c.parent != nil }))
	}
	if refers(c.t) || !g.lock(c.s, c.t) {
		return false
	}
	names := []string{c.t.name}
	needs := []int{}
	for _, other := range g.tables {
		if len(names) == 1 && other != c.t && !refers(other) && (other == c.t.child || g.chance(30)) && g.lock(c.s, other) {
			names = append(names, other.name)
			needs = append(needs, other.unit)
			g.use("truncate several")
		}
	}
	second := 0
	if len(needs) > 0 {
		second = g.unit(rankDetail, append(needs, c.unit)...)
	}
	end := pick(g, []string{"", "", " RESTART IDENTITY", " CASCADE"})
	if end == " RESTART IDENTITY" {
		g.use("truncate restart identity")
	}
	c.add(func(v view) string {
		if len(names) > 1 && !v.alive(second) {
			return "TRUNCATE " + names[0] + end
		}
		return "TRUNCATE " + strings.Join(names, ", ") + end
	})
	g.use("truncate")
	return true
}
