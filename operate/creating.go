package operate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgapply/apply/privilege"
)

// creatingIn are the grants that a role lacks for making a table in a schema, or the
// schema itself where there is none.
func creatingIn(ctx context.Context, conn *pgx.Conn, schema string, rights *privilege.Rights) ([]privilege.Grant, error) {
	var there, may bool
	err := conn.QueryRow(ctx, `SELECT pg_catalog.count(*) > 0, coalesce(pg_catalog.bool_and(
			pg_catalog.has_schema_privilege($2::text::name, oid, 'CREATE') AND pg_catalog.has_schema_privilege($2::text::name, oid, 'USAGE')), false)
		FROM pg_catalog.pg_namespace WHERE nspname = $1`, schema, rights.Role).Scan(&there, &may)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look at schema %q of the target: %w", schema, err)
	case may:
		return nil, nil
	case there:
		return []privilege.Grant{privilege.On("USAGE, CREATE", "SCHEMA "+privilege.Quote(schema), rights.Role)}, nil
	case rights.MayCreate:
		return nil, nil
	}
	return []privilege.Grant{privilege.On("CREATE", "DATABASE "+privilege.Quote(rights.Database), rights.Role)}, nil
}

// gatherCreating looks at what --copy-schema needs.
func (f *facts) gatherCreating(ctx context.Context, conn *pgx.Conn) (err error) {
	known := make(map[string][]privilege.Grant)
	for i := range f.tables {
		t := &f.tables[i]
		if !f.creates(t) {
			continue
		}
		lacks, asked := known[t.Schema]
		if !asked {
			if lacks, err = creatingIn(ctx, conn, t.Schema, f.target.rights); err != nil {
				return err
			}
			known[t.Schema] = lacks
		}
		t.toCreate = lacks
	}
	return nil
}

// creates tells whether --copy-schema makes the table.
func (f *facts) creates(t *tableFacts) bool {
	return f.options.CopySchema && t.Mismatch != nil && t.Mismatch.Missing && !f.begun(t)
}

func checkCreating(f *facts, t *tableFacts) []Finding {
	if !f.creates(t) {
		return nil
	}
	if len(t.toCreate) > 0 {
		return failure(t.name(), privilege.SQL(t.toCreate), "the target lacks it, and the role may not create it: it has no %s", t.toCreate[0].Privilege)
	}
	return ok(t.name(), "the target lacks it: --copy-schema creates it")
}
