package operate

import (
	"context"
	"fmt"
	"strings"

	"pgapply/apply/privilege"
	"pgapply/internal/source"
)

// publishedRights are what the role of --source may not do with a table that it is to read.
type publishedRights struct {
	source.Table
	// role is quoted, for SQL.
	role                    string
	lacksUsage, lacksSelect bool
	// rowSecurity applies to the role.
	rowSecurity bool
}

// gatherPublishedRights looks at what a copy and a comparison need. That the role may
// connect and replicate it has proved. SELECT on all published columns is as good as on
// the table. Tables of which nothing is to be said are left out.
func gatherPublishedRights(ctx context.Context, conn *source.Conn, published []source.Published) ([]publishedRights, error) {
	if len(published) == 0 {
		return nil, nil
	}
	var wanted []string
	for i := range published {
		names := make([]string, len(published[i].Columns))
		for c, column := range published[i].Columns {
			names[c] = literal(column.Name)
		}
		wanted = append(wanted, fmt.Sprintf("(%s, %s, ARRAY[%s]::pg_catalog.text[])", literal(published[i].Schema), literal(published[i].Name), strings.Join(names, ", ")))
	}
	rows, err := conn.Query(ctx, `
		SELECT * FROM (
			SELECT w.schema, w.name, pg_catalog.quote_ident(current_user::text), NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS usage,
				NOT pg_catalog.has_table_privilege(c.oid, 'SELECT') AND (pg_catalog.cardinality(w.columns) = 0 OR EXISTS (
					SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
						AND a.attname::text = ANY (w.columns) AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT'))) AS selects,
				pg_catalog.row_security_active(c.oid) AS hidden
			FROM (VALUES `+strings.Join(wanted, ", ")+`) AS w (schema, name, columns)
			JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
		) AS r WHERE usage OR selects OR hidden`)
	if err != nil {
		return nil, fmt.Errorf("read the rights on the publisher: %w", err)
	}
	list := make([]publishedRights, len(rows))
	for i, row := range rows {
		yes := func(column int) bool { return string(row[column]) == "t" }
		list[i] = publishedRights{
			Table: source.Table{Schema: string(row[0]), Name: string(row[1])}, role: string(row[2]),
			lacksUsage: yes(3), lacksSelect: yes(4), rowSecurity: yes(5),
		}
	}
	return list, nil
}

func (r *publishedRights) grantUsage() string {
	return fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", privilege.Quote(r.Schema), r.role)
}

func (r *publishedRights) grantSelect() string {
	return fmt.Sprintf("GRANT SELECT ON TABLE %s TO %s", privilege.Quote(r.Schema, r.Name), r.role)
}

func (r *publishedRights) bypassRowSecurity() string { return "ALTER ROLE " + r.role + " BYPASSRLS" }

// checkPublishedRights looks at tables that are still to be copied.
func checkPublishedRights(f *facts, t *tableFacts) []Finding {
	if !f.options.CopyData || f.begun(t) {
		return nil
	}
	var findings []Finding
	for i := range f.publisher.rights {
		lacks := &f.publisher.rights[i]
		if lacks.Table != t.Table {
			continue
		}
		if lacks.lacksUsage {
			findings = append(findings, failure(t.name(), "on the publisher: "+lacks.grantUsage(), "the role of --source has no right to use schema %q, and cannot copy", t.Schema)...)
		}
		if lacks.lacksSelect {
			findings = append(findings, failure(t.name(), "on the publisher: "+lacks.grantSelect(), "the role of --source has no right to SELECT, and cannot copy")...)
		}
		if lacks.rowSecurity {
			findings = append(findings, failure(t.name(), "on the publisher: "+lacks.bypassRowSecurity(),
				"row-level security on the publisher applies to the role of --source, and a copy without the rows that it hides is refused")...)
		}
	}
	return findings
}
