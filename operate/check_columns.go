package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/apply/catalog"
	"pgapply/internal/source"
)

// column names a column of a published table.
type column struct {
	source.Table
	name string
}

// columnFacts are what one end says of a column.
type columnFacts struct {
	// Type is as format_type names it.
	Type string
	// Always is an identity column GENERATED ALWAYS, Computed one whose values are made
	// from others.
	Always, Computed bool
	// Unfilled is one that may not be NULL, and to which nothing but the INSERT itself
	// gives a value.
	Unfilled bool
}

// columnsSQL asks for the columns of the tables that from gives as c, in the schema n.
func columnsSQL(version int, from string) string {
	computed := "false"
	if version >= 12_00_00 {
		computed = "a.attgenerated <> ''"
	}
	return `SELECT n.nspname, c.relname, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attidentity = 'a', ` + computed + `,
			(a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = '' AND t.typdefault IS NULL AND NOT EXISTS (
				SELECT FROM pg_catalog.pg_trigger g -- before a row is inserted (pg_trigger.h)
				WHERE g.tgrelid = c.oid AND g.tgtype & 7 = 7 AND g.tgenabled <> 'D')
		` + from + `
		JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
		ORDER BY c.oid, a.attnum`
}

// gatherColumns reads the publisher's.
func (p *publisherFacts) gatherColumns(ctx context.Context, conn *source.Conn) error {
	p.columns = make(map[column]columnFacts)
	if len(p.published) == 0 {
		return nil
	}
	rows, err := conn.Query(ctx, columnsSQL(p.version, `FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		AND (n.nspname, c.relname) IN (`+literalNames(p.published)+`)`))
	if err != nil {
		return fmt.Errorf("read the columns of the published tables: %w", err)
	}
	for _, row := range rows {
		yes := func(i int) bool { return string(row[i]) == "t" }
		name := column{source.Table{Schema: string(row[0]), Name: string(row[1])}, string(row[2])}
		p.columns[name] = columnFacts{Type: string(row[3]), Always: yes(4), Computed: yes(5), Unfilled: yes(6)}
	}
	return nil
}

// literalNames lists the tables as pairs of schema and name.
func literalNames(published []source.Published) string {
	pairs := make([]string, len(published))
	for i := range published {
		pairs[i] = "(" + literal(published[i].Schema) + ", " + literal(published[i].Name) + ")"
	}
	return strings.Join(pairs, ", ")
}

// gatherLocalColumns reads the target's, and compares.
func (f *facts) gatherLocalColumns(ctx context.Context, conn *pgx.Conn) error {
	type wanted struct{ Schema, Name string }
	list := []wanted{}
	place := make(map[source.Table]*tableFacts, len(f.tables))
	for i := range f.tables {
		list = append(list, wanted{f.tables[i].Schema, f.tables[i].Name})
		place[f.tables[i].Table] = &f.tables[i]
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	rows, err := conn.Query(ctx, columnsSQL(f.target.server.Version, `FROM pg_catalog.jsonb_to_recordset($1::text::jsonb) AS w ("Schema" text, "Name" text)
		JOIN pg_catalog.pg_namespace n ON n.nspname = w."Schema"
		JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w."Name" AND c.relkind IN ('r', 'p')`), string(text))
	if err != nil {
		return fmt.Errorf("read the columns of the target: %w", err)
	}
	var name column
	var local columnFacts
	_, err = pgx.ForEachRow(rows, []any{&name.Schema, &name.Name, &name.name, &local.Type, &local.Always, &local.Computed, &local.Unfilled}, func() error {
		if theirs, published := f.publisher.columns[name]; published {
			place[name.Table].compareColumn(name.name, theirs, local)
		} else {
			place[name.Table].addColumn(name.name, local)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the columns of the target: %w", err)
	}
	return nil
}

// compareColumn notes what is to be said of a column that both ends have.
func (t *tableFacts) compareColumn(name string, theirs, local columnFacts) {
	if !t.sends(name) {
		if theirs.Computed && !local.Computed {
			t.uncomputed = append(t.uncomputed, fmt.Sprintf("%q", name))
		}
		t.addColumn(name, local)
		return
	}
	if !holds(local.Type, theirs.Type) {
		t.narrower = append(t.narrower, fmt.Sprintf("%q (%s, and %s on the target)", name, theirs.Type, local.Type))
	}
	if local.Always && !theirs.Always {
		t.settable = append(t.settable, name)
	}
}

// addColumn notes what is to be said of a column whose values do not come from the publisher.
func (t *tableFacts) addColumn(name string, local columnFacts) {
	if local.Unfilled {
		t.unfilled = append(t.unfilled, fmt.Sprintf("%q", name))
	}
}

// sends tells whether the publisher sends the column's values.
func (t *tableFacts) sends(name string) bool {
	return slices.ContainsFunc(t.Columns, func(c source.PublishedColumn) bool { return c.Name == name })
}

// checkIdentityColumns warns where an UPDATE meets an identity column GENERATED ALWAYS,
// which SQL cannot set. An INSERT can, and a key that is one on both ends never changes.
func checkIdentityColumns(_ *facts, t *tableFacts) []Finding {
	if !t.Updates || t.Bound == nil {
		return nil
	}
	var findings []Finding
	for i := range t.Bound.Columns {
		local := &t.Bound.Columns[i]
		if !local.IdentityAlways {
			continue
		}
		remedy := fmt.Sprintf("ALTER TABLE %s ALTER %s SET GENERATED BY DEFAULT", t.Bound.QualifiedName(), pgx.Identifier{local.Name}.Sanitize())
		switch {
		case t.Bound.Search == catalog.ByKey && !local.Key:
			findings = append(findings, warning(t.name(), remedy,
				"column %q is GENERATED ALWAYS AS IDENTITY on the target: inserts write the publisher's value, updates of the table are applied one by one, and one that changes this value stops",
				local.Name)...)
		case slices.Contains(t.settable, local.Name):
			findings = append(findings, warning(t.name(), remedy,
				"column %q is GENERATED ALWAYS AS IDENTITY on the target, and not on the publisher: inserts write the publisher's value, and an update that changes it stops",
				local.Name)...)
		}
	}
	return findings
}

// checkUncomputed warns of values that nobody computes.
func checkUncomputed(f *facts, t *tableFacts) []Finding {
	if len(t.uncomputed) == 0 {
		return nil
	}
	remedy := "make it a generated column on the target too"
	if f.publisher.version >= 18_00_00 {
		remedy += ", or, where its values are stored, publish it: publish_generated_columns = stored"
	}
	return warning(t.name(), remedy, "the publisher computes column %s and does not send it, and on the target it is an ordinary one: rows get its default there",
		strings.Join(t.uncomputed, ", "))
}

// checkUnfilled finds columns of the target alone that an INSERT leaves without a value.
func checkUnfilled(f *facts, t *tableFacts) []Finding {
	if len(t.unfilled) == 0 || !t.Inserts && !f.options.CopyData {
		return nil
	}
	return failure(t.name(), "give it a default on the target, or publish it",
		"the publisher does not send column %s, which is NOT NULL on the target and has no default: every insert fails", strings.Join(t.unfilled, ", "))
}
