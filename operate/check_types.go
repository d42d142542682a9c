package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/source"
)

// columnType is the type of a column as format_type names it.
type columnType struct {
	Schema, Table, Column, Type string
}

// column names a column of a published table.
type column struct {
	source.Table
	name string
}

// gatherTypes reads the types of the publisher's columns.
func (p *publisherFacts) gatherTypes(ctx context.Context, conn *source.Conn) error {
	p.types = make(map[column]string)
	if len(p.published) == 0 {
		return nil
	}
	var tables []string
	for i := range p.published {
		tables = append(tables, "("+literal(p.published[i].Schema)+", "+literal(p.published[i].Name)+")")
	}
	rows, err := conn.Query(ctx, `
		SELECT n.nspname, c.relname, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		WHERE (n.nspname, c.relname) IN (`+strings.Join(tables, ", ")+`)`)
	if err != nil {
		return fmt.Errorf("read the types of the published columns: %w", err)
	}
	for _, row := range rows {
		p.types[column{source.Table{Schema: string(row[0]), Name: string(row[1])}, string(row[2])}] = string(row[3])
	}
	return nil
}

// gatherLocalTypes reads those of the target's, and compares.
func (f *facts) gatherLocalTypes(ctx context.Context, conn *pgx.Conn) error {
	type wanted struct{ Schema, Name string }
	list := []wanted{}
	for i := range f.tables {
		list = append(list, wanted{f.tables[i].Schema, f.tables[i].Name})
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	rows, err := conn.Query(ctx, `
		SELECT n.nspname, c.relname, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)
		FROM pg_catalog.jsonb_to_recordset($1::text::jsonb) AS w ("Schema" text, "Name" text)
		JOIN pg_catalog.pg_namespace n ON n.nspname = w."Schema"
		JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w."Name" AND c.relkind IN ('r', 'p')
		JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY c.oid, a.attnum`, string(text))
	if err != nil {
		return fmt.Errorf("read the types of the target's columns: %w", err)
	}
	types, err := pgx.CollectRows(rows, pgx.RowToStructByPos[columnType])
	if err != nil {
		return fmt.Errorf("read the types of the target's columns: %w", err)
	}
	narrower := make(map[source.Table][]string)
	for _, t := range types {
		table := source.Table{Schema: t.Schema, Name: t.Table}
		theirs, published := f.publisher.types[column{table, t.Column}]
		if published && !holds(t.Type, theirs) {
			narrower[table] = append(narrower[table], fmt.Sprintf("%q (%s, and %s on the target)", t.Column, theirs, t.Type))
		}
	}
	for i := range f.tables {
		f.tables[i].narrower = narrower[f.tables[i].Table]
	}
	return nil
}

// holds tells whether every value of one type is surely one of another, in its text form.
func holds(target, publisher string) bool {
	base := func(name string) string { return modifier.ReplaceAllString(name, "") }
	switch target {
	case publisher, "text", base(publisher):
		return true
	}
	wider := map[string][]string{
		"smallint":         {"integer", "bigint", "numeric", "real", "double precision"},
		"integer":          {"bigint", "numeric", "double precision"},
		"bigint":           {"numeric"},
		"text":             {"character varying"},
		"character":        {"character varying"},
		"date":             {"timestamp without time zone"},
		"real":             {"double precision", "numeric"},
		"double precision": {"numeric"},
	}
	for _, name := range wider[base(publisher)] {
		if target == name {
			return true
		}
	}
	var more, fewer int
	if _, err := fmt.Sscanf(target, "character varying(%d)", &more); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(publisher, "character varying(%d)", &fewer); err != nil {
		return false
	}
	return more >= fewer
}

// modifier is the (10) or (8,2) in the name of a type.
var modifier = regexp.MustCompile(`\(-?\d+(?:,-?\d+)?\)`)

// checkTypes warns of columns that may not take all that comes.
func checkTypes(_ *facts, t *tableFacts) []Finding {
	if len(t.narrower) == 0 {
		return nil
	}
	return warning(t.name(), "give them the publisher's types, or be sure that all values fit",
		"types differ, and a value that does not fit stops the subscription: %s", strings.Join(t.narrower, ", "))
}
