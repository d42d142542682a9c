package oracle

import "strings"

// Rows that no subscription wrote, with the values that they would have anyhow: on
// every end before the subscriptions start, and on the targets while they run. A
// target that tracks commit timestamps tells them from replicated ones.

// load gives a table rows by hand, the same on every end.
func (g *generator) load(t *table) {
	s := &session{} // where each statement commits
	defer g.release(s)
	c := &change{g: g, s: s, t: t, unit: g.unit(rankStep, t.unit)}
	row := c.row("g")
	var onTarget []assignment
	for _, a := range row {
		if !a.column.absent {
			onTarget = append(onTarget, a)
		}
	}
	for _, column := range t.columns {
		if column.generated != "" && !column.regenerate && !column.absent {
			// Plain on the target, where its value has to be given.
			onTarget = append(onTarget, assignment{column, strings.ReplaceAll(column.generated, "n", "(g % 5)")})
		}
	}
	insert := func(on place, row []assignment) {
		g.add(step{unit: c.unit, on: on, text: c.insertMany(row, 0, rowsFilled)})
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
