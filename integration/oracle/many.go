package oracle

import (
	"fmt"
	"slices"
	"strings"
)

// Statements that change many rows, and loops that do so row by row: consecutive
// changes that are alike, which an engine may make as one statement, with what must not
// go into that, or has to be told apart in the middle of it.

// sizes of such statements, around the bounds that engines have and far above.
var sizes = []int{3, 4, 5, 9, 30, 30, 100, 250}

// many changes many rows.
func (c *change) many() {
	g, t := c.g, c.t
	if t.identity == byNone {
		c.insertSome()
		return
	}
	fits := []func(){c.insertSome, c.updateSome, c.updateSome, c.updateSome, c.deleteSome, c.deleteSome}
	if len(t.key) > 0 {
		fits = append(fits, c.again, c.again)
		if !slices.ContainsFunc(t.key, func(k *column) bool { return k.identity == "ALWAYS" }) {
			fits = append(fits, c.swapKeys)
		}
		if !c.s.open {
			fits = append(fits, c.burst, c.burst, c.burst, c.burst, c.burst)
		}
	}
	if t.unique != nil {
		fits = append(fits, c.shift, c.shift)
	}
	if t.parts != nil {
		fits = append(fits, c.moveSome)
	}
	pick(g, fits)()
}

func (c *change) insertSome() {
	many := pick(c.g, sizes)
	c.add(c.insertMany(c.row("g"), c.t.fresh+1, many))
	c.t.fresh += many
	c.g.use("some inserts")
}

// some is a condition that some rows fulfil, from a few to most of them.
func (c *change) some() string {
	modulus := 2 + c.g.r.IntN(5)
	return fmt.Sprintf("n %% %d %s %d", modulus, pick(c.g, []string{"=", "=", "<>"}), c.g.r.IntN(modulus))
}

func (c *change) updateSome() {
	name, where := c.t.name, c.some()
	set := c.set(pick(c.g, []string{"n", "0"}))
	c.add(func(v view) string { return "UPDATE " + name + " SET " + v.setText(set) + " WHERE " + where })
	c.g.use("some updates")
}

func (c *change) deleteSome() {
	sql := "DELETE FROM " + c.t.name + " WHERE " + c.some()
	c.add(func(view) string { return sql })
	c.g.use("some deletes")
}

func (c *change) moveSome() {
	sql := fmt.Sprintf("UPDATE %s SET part = (part + %d) %% 10, n = n + 1 WHERE %s", c.t.name, 1+c.g.r.IntN(9), c.some())
	c.add(func(view) string { return sql })
	c.g.use("some moves between partitions")
}

// shift gives each row the unique value that the one before it has just left. Done in
// another order it fails.
func (c *change) shift() {
	name := c.t.name
	order, by := "DESC", "+ 1"
	if c.g.chance(40) {
		order, by = "ASC", "- 1"
	}
	c.add(func(view) string {
		return fmt.Sprintf("DO $do$ DECLARE this int; BEGIN FOR this IN SELECT u FROM %s WHERE u IS NOT NULL ORDER BY u %s LOOP "+
			"UPDATE %[1]s SET u = u %[3]s WHERE u = this; END LOOP; END $do$", name, order, by)
	})
	c.g.use("unique values shift")
}

// loop runs statements for each number g.
func loop(from, to int, statements ...string) string {
	return fmt.Sprintf("DO $do$ BEGIN FOR g IN %d..%d LOOP %s; END LOOP; END $do$", from, to, strings.Join(statements, "; "))
}

// swapKeys lets neighbours swap their keys, through one that is free.
func (c *change) swapKeys() {
	t := c.t
	free := fmt.Sprint(c.newNumber())
	from, many := c.g.r.IntN(rowsFilled), 1+c.g.r.IntN(8)
	give := func(v view, old, number string) string {
		var set []string
		for _, k := range t.key {
			if t.parts == nil || k != t.parts.column {
				set = append(set, v.ref(k)+" = "+k.kind.at(number))
			}
		}
		return "UPDATE " + t.name + " SET " + strings.Join(set, ", ") + " WHERE " + c.whereNumbers(old)(v)
	}
	c.add(func(v view) string {
		return loop(from, from+many, give(v, "g", free), give(v, "(g + 1)", "g"), give(v, free, "(g + 1)"))
	})
	c.g.use("keys are swapped")
}

// again changes the same few rows again and again.
func (c *change) again() {
	where := c.whereNumbers(fmt.Sprintf("(g %% %d)", 2+c.g.r.IntN(30)))
	many := pick(c.g, sizes)
	name := c.t.name
	if c.g.chance(70) {
		set := c.set("g")
		c.add(func(v view) string { return loop(1, many, "UPDATE "+name+" SET "+v.setText(set)+" WHERE "+where(v)) })
		c.g.use("updated again and again")
		return
	}
	number := fmt.Sprintf("(g %% %d)", 2+c.g.r.IntN(30))
	where = c.whereNumbers(number)
	row, override := c.row(number), c.override()
	c.add(func(v view) string {
		return loop(1, many, "DELETE FROM "+name+" WHERE "+where(v),
			"INSERT INTO "+name+" ("+v.names(row)+")"+override+" VALUES ("+v.values(row)+") ON CONFLICT DO NOTHING")
	})
	c.g.use("deleted and inserted again")
}

// burst is a number of transactions with a change each.
func (c *change) burst() {
	many := 4 + c.g.r.IntN(40)
	name, end := c.t.name, "COMMIT"
	switch c.g.r.IntN(3) {
	case 0:
		from := c.t.fresh + 1
		c.t.fresh += many
		row, override := c.row("g"), c.override()
		c.add(func(v view) string {
			return loop(from, from+many-1, "INSERT INTO "+name+" ("+v.names(row)+")"+override+" VALUES ("+v.values(row)+") ON CONFLICT DO NOTHING", end)
		})
	case 1:
		where := c.whereNumbers("g")
		from := c.g.r.IntN(rowsFilled)
		c.add(func(v view) string { return loop(from, from+many, "DELETE FROM "+name+" WHERE "+where(v), end) })
	default:
		where := c.whereNumbers(fmt.Sprintf("(g %% %d)", 2+c.g.r.IntN(rowsFilled)))
		set := c.set("g")
		c.add(func(v view) string {
			return loop(1, many, "UPDATE "+name+" SET "+v.setText(set)+" WHERE "+where(v), end)
		})
	}
	c.g.use("burst of transactions")
}
