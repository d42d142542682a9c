package oracle

import (
	"fmt"
	"slices"
	"strings"
)

// Rows that no subscription wrote, with the values that they would have anyhow: on
// every end before the subscriptions start, and on the targets while they run. A
// target that tracks commit timestamps tells them from replicated ones.

// load gives a table rows by hand, the same on every end.
func (g *generator) load(t *table) {
	s := &session{} // where each statement commits
	defer g.release(s)
	c := &change{g: g, s: s, t: t, unit: g.unit(rankStep, t.unit)}
	row := c.row("g")
	if g.copies {
		g.add(step{unit: c.unit, on: onPublisher, text: c.insertAll(g.unit(rankDetail, c.unit), row, 0, rowsFilled)})
		t.loaded = true
		g.use("rows to be copied")
		return
	}
	var onTarget []assignment
	for _, a := range row {
		if !a.column.absent {
			onTarget = append(onTarget, a)
		}
	}
	for _, column := range t.columns {
		// Plain on the target, where its value has to be given. Native: what is not sent
		// counts as NULL when a row is searched by all columns.
		if column.generated != "" && !column.regenerate && !column.absent && (t.identity != byFull || g.publishGenerated) {
			onTarget = append(onTarget, assignment{column, strings.ReplaceAll(column.generated, "n", "(g % 5)")})
		}
	}
	all := g.unit(rankDetail, c.unit) // on every end, or on none
	insert := func(on place, row []assignment) {
		g.add(step{unit: c.unit, on: on, text: c.insertAll(all, row, 0, rowsFilled)})
	}
	insert(onPublisher, row)
	insert(onTargets, onTarget)
	if t.filter != "" {
		g.plain(c.unit, onTargets, "", "DELETE FROM "+t.name+" WHERE ("+t.filter+") IS NOT TRUE")
	}
	t.loaded = true
	g.use("rows loaded by hand")
}

// touchOnTarget lets somebody write rows of the target, and change nothing by it.
func (g *generator) touchOnTarget(t *table, u int) bool {
	if t.audited || g.chance(60) {
		// What a trigger makes of it depends on the rows that are there.
		g.sync(u)
		g.ddl(u, onTargets, "", "UPDATE %s SET n = n WHERE n %% 2 = %d", t.name, g.r.IntN(2))
		g.use("rows written by hand")
		return true
	}
	// In the way of changes that are being applied: one row at a time, so that none is
	// held while another one is waited for.
	for range 3 {
		g.ddl(u, onTargets, "", "UPDATE %s SET n = n WHERE (tableoid, ctid) IN (SELECT tableoid, ctid FROM %[1]s WHERE n %% 5 = %d LIMIT 1)", t.name, g.r.IntN(5))
	}
	g.script.raced = true
	g.use("rows written by hand in the way")
	return true
}

// disturb removes or changes some rows of the target, so that changes that come in a
// row miss theirs in the middle. The publisher has other rows then; what native makes
// of it counts.
func (g *generator) disturb(t *table, u int) bool {
	refers := slices.ContainsFunc(t.columns, func(c *column) bool { return c.parent != nil })
	if t.identity == byNone || t.searched() && g.chance(70) || t.notNative || t.child != nil || refers {
		return false
	}
	g.sync(u)
	for range 1 + g.r.IntN(2) {
		some := fmt.Sprintf("n %% %d = %d", 3+g.r.IntN(9), g.r.IntN(3))
		if g.chance(65) {
			g.ddl(u, onTargets, "", "DELETE FROM %s WHERE %s", t.name, some)
			g.use("rows removed by hand")
		} else {
			g.ddl(u, onTargets, "", "UPDATE %s SET n = n + 100 WHERE %s", t.name, some)
			g.use("rows changed by hand")
		}
	}
	t.pinned = true
	for _, name := range append(t.stored(), t.name) {
		g.script.local[name] = true
		for _, r := range g.script.renames {
			g.script.local[r.from.ReplaceAllLiteralString(name, r.to)] = true
		}
	}
	s := &session{} // where each statement commits
	defer g.release(s)
	for range 2 {
		g.touch(s, t)
		c := &change{g: g, s: s, t: t, unit: g.unit(rankStep, t.unit)}
		pick(g, []func(){c.updateSome, c.updateSome, c.deleteSome})()
	}
	return true
}
