package source

import (
	"context"
	"fmt"
	"strings"
)

// ObjectKind says what an Object is.
type ObjectKind string

// The kinds of objects that a table can need.
const (
	SchemaObject         ObjectKind = "schema"
	ExtensionObject      ObjectKind = "extension"
	TypeObject           ObjectKind = "type"
	FunctionObject       ObjectKind = "function" // aggregates too
	CollationObject      ObjectKind = "collation"
	OperatorObject       ObjectKind = "operator"
	OperatorClassObject  ObjectKind = "operator class"
	OperatorFamilyObject ObjectKind = "operator family"
	TableObject          ObjectKind = "table"
	SequenceObject       ObjectKind = "sequence"
)

// Object is something in the publisher's catalogs that has a name. Functions of one
// name are one object. Schema is empty for schemas and extensions.
type Object struct {
	Kind         ObjectKind
	Schema, Name string
}

// Needed returns the tables themselves and everything that must be there for them to be
// created with columns, defaults, indexes and constraints: partitions and what they
// are partitions of, inherited tables, sequences, types, functions, and the schemas of
// all that. A table that only a foreign key refers to is not needed, nor is what only a
// trigger, rule or policy uses. What belongs to an extension is not listed, but the
// extension. The order is by kind and name.
func (c *Conn) Needed(ctx context.Context, tables []Table) ([]Object, error) {
	if len(tables) == 0 {
		return nil, nil
	}
	rows, err := c.Query(ctx, neededSQL(tables))
	if err != nil {
		return nil, fmt.Errorf("look for what the tables need: %w", err)
	}
	objects := make([]Object, len(rows))
	for row := range rows {
		objects[row] = Object{Kind: ObjectKind(text(rows, row, 0)), Schema: text(rows, row, 1), Name: text(rows, row, 2)}
	}
	return objects, nil
}

// neededSQL follows pg_depend from each object to what it refers to, and before that
// from each to its parts, which depend on it: defaults, constraints, indexes.
func neededSQL(tables []Table) string {
	values := make([]string, len(tables))
	for i, table := range tables {
		values[i] = "(" + literal(table.Schema) + ", " + literal(table.Name) + ")"
	}
	return `
		WITH RECURSIVE wanted (oid) AS (
			SELECT c.oid FROM (VALUES ` + strings.Join(values, ", ") + `) v (schema, name)
			JOIN pg_catalog.pg_namespace n ON n.nspname = v.schema::pg_catalog.text
			JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = v.name::pg_catalog.text
		), below (oid) AS (
			SELECT oid FROM wanted UNION SELECT i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid
		), needed (class, oid) AS (
			SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid, oid FROM below
			UNION
			SELECT next.class, next.oid FROM needed CROSS JOIN LATERAL (
				SELECT d.refclassid, d.refobjid FROM pg_catalog.pg_depend d
				WHERE d.classid = needed.class AND d.objid = needed.oid AND d.refclassid <> 0
				UNION ALL
				SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, f.oid FROM pg_catalog.pg_attrdef f
				WHERE needed.class = 'pg_catalog.pg_class'::pg_catalog.regclass AND f.adrelid = needed.oid
				UNION ALL
				SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid FROM pg_catalog.pg_constraint k
				WHERE k.contype <> 'f' AND (needed.class = 'pg_catalog.pg_class'::pg_catalog.regclass AND k.conrelid = needed.oid
					OR needed.class = 'pg_catalog.pg_type'::pg_catalog.regclass AND k.contypid = needed.oid)
				UNION ALL
				SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid FROM pg_catalog.pg_index i
				WHERE needed.class = 'pg_catalog.pg_class'::pg_catalog.regclass AND i.indrelid = needed.oid
				UNION ALL
				SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, t.typrelid FROM pg_catalog.pg_type t
				WHERE needed.class = 'pg_catalog.pg_type'::pg_catalog.regclass AND t.oid = needed.oid AND t.typrelid <> 0
			) next (class, oid)
		), objects (kind, namespace, name, class, oid) AS (
			SELECT CASE c.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, c.relnamespace, c.relname, 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid, c.oid
			FROM pg_catalog.pg_class c WHERE c.relkind IN ('r', 'p', 'f', 'S')
			UNION ALL
			SELECT 'type', typnamespace, typname, 'pg_catalog.pg_type'::pg_catalog.regclass, oid FROM pg_catalog.pg_type t
			WHERE t.typelem = 0 OR t.typlen <> -1
			UNION ALL SELECT 'function', pronamespace, proname, 'pg_catalog.pg_proc'::pg_catalog.regclass, oid FROM pg_catalog.pg_proc
			UNION ALL SELECT 'collation', collnamespace, collname, 'pg_catalog.pg_collation'::pg_catalog.regclass, oid FROM pg_catalog.pg_collation
			UNION ALL SELECT 'operator', oprnamespace, oprname, 'pg_catalog.pg_operator'::pg_catalog.regclass, oid FROM pg_catalog.pg_operator
			UNION ALL SELECT 'operator class', opcnamespace, opcname, 'pg_catalog.pg_opclass'::pg_catalog.regclass, oid FROM pg_catalog.pg_opclass
			UNION ALL SELECT 'operator family', opfnamespace, opfname, 'pg_catalog.pg_opfamily'::pg_catalog.regclass, oid FROM pg_catalog.pg_opfamily
		), named (kind, schema, name) AS (
			SELECT o.kind, n.nspname, o.name FROM needed JOIN objects o ON o.class = needed.class AND o.oid = needed.oid
			JOIN pg_catalog.pg_namespace n ON n.oid = o.namespace
			LEFT JOIN pg_catalog.pg_class of ON o.kind = 'type' AND of.oid = (SELECT typrelid FROM pg_catalog.pg_type WHERE oid = o.oid)
			WHERE coalesce(of.relkind, 'c') = 'c' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
				AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend e WHERE e.classid = o.class AND e.objid = o.oid AND e.deptype = 'e')
		)
		SELECT kind, schema, name FROM named
		UNION SELECT 'schema', '', schema FROM named
		UNION SELECT 'schema', '', n.nspname FROM needed JOIN pg_catalog.pg_extension e ON needed.class = 'pg_catalog.pg_extension'::pg_catalog.regclass AND e.oid = needed.oid
			JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE n.nspname <> 'pg_catalog'
		UNION SELECT 'extension', '', e.extname FROM needed JOIN pg_catalog.pg_extension e ON needed.class = 'pg_catalog.pg_extension'::pg_catalog.regclass AND e.oid = needed.oid
		ORDER BY 1, 2, 3`
}
