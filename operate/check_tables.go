package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/apply/catalog"
	"pgapply/apply/privilege"
	"pgapply/apply/schema"
	"pgapply/apply/state"
	"pgapply/internal/source"
)

// tableFacts are a published table and what the target has under its name.
type tableFacts struct {
	schema.Comparison
	// local is nil where the target has no such table.
	local *localTable
	// narrower names the columns whose type may not take all values of the publisher's,
	// uncomputed those that only the publisher computes and does not send, unfilled those
	// that inserts leave without a value, and settable identity columns GENERATED ALWAYS
	// that are no such on the publisher.
	narrower, uncomputed, unfilled, settable []string

	sideEffects []catalog.SideEffect
	// toCreate is what the role lacks where the table is to be created.
	toCreate []privilege.Grant
	// fires is what would answer to changes, where the role may not prevent it.
	fires []catalog.SideEffect
}

func (t *tableFacts) name() string { return t.Schema + "." + t.Name }

// localTable is what matters of the target's table beside its columns and its key.
type localTable struct {
	Schema, Name string
	Owner        string
	// TrustedOwner is the role itself, or a superuser.
	TrustedOwner bool
	Unlogged     bool
	UsesSchema   bool
	// MissingRights are those that changes need and the role has not: for all
	// published columns, where it has not the table's.
	MissingRights []string
	// RowSecurity applies to the role.
	RowSecurity bool
	// Triggers fire for replicated rows, here or on a partition.
	Triggers []string
	// Deferrable unique constraints.
	Deferrable []string
}

func gatherTables(ctx context.Context, conn *pgx.Conn, role string, copied bool, published []source.Published) ([]tableFacts, error) {
	local, err := gatherLocal(ctx, conn, role, copied, published)
	if err != nil {
		return nil, err
	}
	effects, err := catalog.LoadSideEffects(querier(ctx, conn))
	if err != nil {
		return nil, err
	}
	sideEffects := make(map[source.Table][]catalog.SideEffect)
	for _, effect := range effects {
		table := source.Table{Schema: effect.Schema, Name: effect.Table}
		sideEffects[table] = append(sideEffects[table], effect)
	}
	comparison, err := schema.Compare(ctx, conn, published)
	if err != nil {
		return nil, err
	}
	tables := make([]tableFacts, len(published))
	for i, c := range comparison {
		tables[i] = tableFacts{Comparison: c, local: local[c.Table], sideEffects: sideEffects[c.Table]}
	}
	return tables, nil
}

// gatherLocal reads all tables in one query, which takes their names as JSON, and what the
// role may do with them.
func gatherLocal(ctx context.Context, conn *pgx.Conn, role string, copied bool, published []source.Published) (map[source.Table]*localTable, error) {
	type wanted struct {
		Schema  string   `json:"schema"`
		Name    string   `json:"name"`
		Columns []string `json:"columns"`
		Rights  []string `json:"rights"`
	}
	list := make([]wanted, len(published))
	for i := range published {
		p := &published[i]
		list[i] = wanted{Schema: p.Schema, Name: p.Name, Columns: []string{}, Rights: rights(p, copied)}
		for _, column := range p.Columns {
			list[i].Columns = append(list[i].Columns, column.Name)
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, `
		SELECT w.schema, w.name, o.rolname, o.rolsuper OR o.rolname = current_user,
		       c.relpersistence = 'u', pg_catalog.has_schema_privilege($2::text::name, n.oid, 'USAGE'),
		       ARRAY(SELECT p FROM pg_catalog.jsonb_array_elements_text(w.rights) p
		             WHERE NOT pg_catalog.has_table_privilege($2::text::name, c.oid, p)
		               AND (p = 'DELETE' OR p = 'TRUNCATE' OR pg_catalog.jsonb_array_length(w.columns) = 0 OR EXISTS (
		                    SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		                      AND w.columns ? a.attname::text AND NOT pg_catalog.has_column_privilege($2::text::name, c.oid, a.attnum, p)))),
		       pg_catalog.row_security_active(c.oid),
		       ARRAY(SELECT DISTINCT t.tgname::text FROM pg_catalog.pg_trigger t
		             WHERE t.tgrelid IN (SELECT c.oid UNION SELECT relid FROM pg_catalog.pg_partition_tree(c.oid))
		               AND t.tgenabled IN ('A', 'R') AND NOT t.tgisinternal ORDER BY 1),
		       ARRAY(SELECT k.conname::text FROM pg_catalog.pg_constraint k
		             WHERE k.conrelid = c.oid AND k.contype IN ('p', 'u') AND k.condeferrable ORDER BY 1)
		FROM pg_catalog.jsonb_to_recordset($1::text::jsonb) AS w (schema text, name text, columns jsonb, rights jsonb)
		JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
		JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p')
		JOIN pg_catalog.pg_roles o ON o.oid = c.relowner`, string(text), role)
	if err != nil {
		return nil, fmt.Errorf("look at the tables of the target: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[localTable])
	if err != nil {
		return nil, fmt.Errorf("look at the tables of the target: %w", err)
	}
	tables := make(map[source.Table]*localTable, len(found))
	for _, table := range found {
		tables[source.Table{Schema: table.Schema, Name: table.Name}] = table
	}
	return tables, nil
}

// rights are what the published changes of a table need.
func rights(p *source.Published, copied bool) []string {
	return privilege.OfTable(privilege.Changes{Inserts: p.Inserts, Updates: p.Updates, Deletes: p.Deletes, Truncates: p.Truncates, Copied: copied})
}

// checkTables asks about each table, and sums up those of which nothing is to be said.
func checkTables(f *facts) []Finding {
	var findings []Finding
	fine := int64(0)
	for i := range f.tables {
		before := len(findings)
		for _, ask := range tableQuestions() {
			findings = append(findings, ask(f, &f.tables[i])...)
		}
		if len(findings) == before {
			fine++
		}
	}
	if fine > 0 {
		findings = append(findings, ok("tables", "%s: columns, keys and rights fit", counted(fine, "table"))...)
	}
	return findings
}

// tableQuestions are asked about every published table. They find nothing where all
// is well.
func tableQuestions() []func(*facts, *tableFacts) []Finding {
	return []func(*facts, *tableFacts) []Finding{
		checkColumnLists, checkMismatch, checkCreating, checkTypes, checkIdentityColumns, checkUncomputed, checkUnfilled, checkIdentity, checkPublishedRights, checkRights, checkRowSecurity,
		checkFiring, checkSideEffects, checkForeignTriggers, checkDeferrable, checkEquality, checkUnlogged,
	}
}

func checkColumnLists(_ *facts, t *tableFacts) []Finding {
	if t.ColumnLists <= 1 {
		return nil
	}
	return failure(t.name(), "give it one column list in all publications", "the publications have different column lists for it, which the publisher cannot decode")
}

func checkMismatch(f *facts, t *tableFacts) []Finding {
	switch {
	case t.Mismatch == nil:
		return nil
	case f.creates(t):
		return nil // it is no misfit
	case t.Mismatch.Missing && f.options.MissingTable == "skip":
		return warning(t.name(), "create it on the target if its changes are wanted: --missing-table skip leaves them out", "%s", t.Mismatch)
	}
	return failure(t.name(), t.Mismatch.Hint, "%s", t.Mismatch)
}

// begun tells whether the rows of a table are, or were, on the target: it is not created
// again without them.
func (f *facts) begun(t *tableFacts) bool {
	return slices.Contains(f.target.begun, state.Member(t.Table))
}

// checkIdentity asks how rows are found that are updated or deleted.
func checkIdentity(_ *facts, t *tableFacts) []Finding {
	if !t.Updates && !t.Deletes || t.ColumnLists > 1 {
		return nil
	}
	if !t.HasIdentity() {
		return warning(t.name(), "give it a primary key, or ALTER TABLE ... REPLICA IDENTITY on the publisher",
			"it has no replica identity: the publisher itself refuses its updates and deletes")
	}
	if t.Bound == nil || t.Bound.SearchFault() == nil {
		return nil
	}
	remedy := ""
	if mismatch, is := catalog.AsMismatch(t.Bound.SearchFault()); is {
		remedy = mismatch.Hint
	}
	return failure(t.name(), remedy, "%s", t.Bound.SearchFault())
}

func checkRights(f *facts, t *tableFacts) []Finding {
	if t.local == nil {
		return nil
	}
	role := pgx.Identifier{f.target.server.Role}.Sanitize()
	var findings []Finding
	if !t.local.UsesSchema {
		findings = append(findings, failure(t.name(), fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", pgx.Identifier{t.Schema}.Sanitize(), role),
			"the role has no right to use schema %q", t.Schema)...)
	}
	if missing := strings.Join(t.local.MissingRights, ", "); missing != "" {
		findings = append(findings, failure(t.name(), fmt.Sprintf("GRANT %s ON %s TO %s", missing, pgx.Identifier{t.Schema, t.Name}.Sanitize(), role),
			"the role has no right to %s", missing)...)
	}
	return findings
}

func checkRowSecurity(_ *facts, t *tableFacts) []Finding {
	if t.local == nil || !t.local.RowSecurity {
		return nil
	}
	return failure(t.name(), "use a role with BYPASSRLS, or the table's owner where row security is not forced",
		"row-level security applies to the role, and changes of rows that it hides would be refused")
}

// checkSideEffects warns of what fires here and would not natively.
func checkSideEffects(_ *facts, t *tableFacts) []Finding {
	var findings []Finding
	for _, effect := range t.sideEffects {
		kind := "TRIGGER"
		if effect.Kind == "rule" {
			kind = "RULE"
		}
		remedy := fmt.Sprintf("let it fire in ordinary sessions only: ALTER TABLE %s ENABLE %s %s",
			pgx.Identifier{t.Schema, t.Name}.Sanitize(), kind, pgx.Identifier{effect.Name}.Sanitize())
		findings = append(findings, warning(t.name(), remedy,
			"%s is enabled for replicated changes and will fire, as it would not in the built-in subscription", effect)...)
	}
	return findings
}

// checkForeignTriggers warns where the owner of a table could make a superuser run code.
func checkForeignTriggers(f *facts, t *tableFacts) []Finding {
	if t.local == nil || !f.target.server.Superuser || t.local.TrustedOwner || len(t.local.Triggers) == 0 {
		return nil
	}
	return warning(t.name(), "apply as a role that is no superuser",
		"trigger %s fires for replicated rows and runs what %s has written, as superuser %s",
		strings.Join(t.local.Triggers, ", "), t.local.Owner, f.target.server.Role)
}

func checkDeferrable(_ *facts, t *tableFacts) []Finding {
	if t.local == nil || len(t.local.Deferrable) == 0 {
		return nil
	}
	return warning(t.name(), "make it NOT DEFERRABLE", "constraint %s is deferrable: as in the built-in subscription it is not enforced for replicated changes",
		strings.Join(t.local.Deferrable, ", "))
}

// checkEquality warns where rows are searched by columns that cannot be compared.
func checkEquality(_ *facts, t *tableFacts) []Finding {
	if t.Bound == nil || t.Bound.Search != catalog.ByRow {
		return nil
	}
	var columns []string
	for _, column := range t.Bound.Columns {
		if column.Equality == "" {
			columns = append(columns, column.Name)
		}
	}
	if len(columns) == 0 {
		return nil
	}
	return warning(t.name(), "give the table a primary key on the target",
		"rows are searched by all columns, and %s has a type without equality: its values are compared byte by byte", strings.Join(columns, ", "))
}

func checkUnlogged(_ *facts, t *tableFacts) []Finding {
	if t.local == nil || !t.local.Unlogged {
		return nil
	}
	return warning(t.name(), "ALTER TABLE ... SET LOGGED on the target",
		"it is unlogged on the target: a crash there empties it, and what was applied is not applied again")
}
