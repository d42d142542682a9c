package catalog

import (
	"fmt"
	"strings"
)

// UniqueIndex is an index that lets no two rows have equal keys.
type UniqueIndex struct {
	// Name is schema.index, for people.
	Name string
	// Expressions are the key's columns and expressions as SQL over the table's
	// columns, and Equalities how two values of each compare.
	Expressions, Equalities []string
	// Labels call them by the column's name, or the expression's text, as SQL literals.
	Labels []string
	// Predicate is the condition of a partial index, or "true".
	Predicate string
	// NullsEqual: NULLS NOT DISTINCT (15 and later).
	NullsEqual bool
}

// LoadUniqueIndexes returns the immediate unique indexes of a table: those that
// conflicts are detected on. Deferrable constraints and exclusion constraints are
// not among them, as in the native subscription.
func LoadUniqueIndexes(querier Querier, table *Table) ([]UniqueIndex, error) {
	rows, err := querier.Query(`
		SELECT pg_catalog.quote_ident(ns.nspname) || '.' || pg_catalog.quote_ident(c.relname),
			coalesce(pg_catalog.pg_get_expr(i.indpred, i.indrelid), 'true'),
			coalesce((pg_catalog.to_jsonb(i.*) ->> 'indnullsnotdistinct')::pg_catalog.bool, false),
			pg_catalog.pg_get_indexdef(i.indexrelid, k.position::pg_catalog.int4, true), n.nspname, o.oprname,
			(SELECT ' COLLATE ' || pg_catalog.quote_ident(cn.nspname) || '.' || pg_catalog.quote_ident(co.collname)
			 FROM pg_catalog.pg_collation co JOIN pg_catalog.pg_namespace cn ON cn.oid = co.collnamespace WHERE co.oid = k.coll),
			pg_catalog.quote_literal(coalesce(
				(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = i.indkey[k.position - 1]),
				pg_catalog.pg_get_indexdef(i.indexrelid, k.position::pg_catalog.int4, true)))
		FROM pg_catalog.pg_index i
		JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
		JOIN pg_catalog.pg_namespace ns ON ns.oid = c.relnamespace
		CROSS JOIN LATERAL ROWS FROM (
			pg_catalog.unnest(i.indclass::pg_catalog.oid[]), pg_catalog.unnest(i.indcollation::pg_catalog.oid[])
		) WITH ORDINALITY k(opclass, coll, position)
		JOIN pg_catalog.pg_opclass oc ON oc.oid = k.opclass
		JOIN pg_catalog.pg_am am ON am.oid = oc.opcmethod AND am.amname = 'btree'
		JOIN pg_catalog.pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amoppurpose = 's'
			AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype AND ao.amopstrategy = 3
		JOIN pg_catalog.pg_operator o ON o.oid = ao.amopopr
		JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
		WHERE i.indrelid = $1::pg_catalog.oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indislive
			AND NOT i.indisexclusion AND k.position <= i.indnkeyatts
		ORDER BY i.indisprimary DESC, c.relname, k.position`, table.Version.Table)
	if err != nil {
		return nil, fmt.Errorf("read the unique indexes of %s: %w", table.QualifiedName(), err)
	}
	var indexes []UniqueIndex
	for _, row := range rows {
		name := string(row[0])
		if len(indexes) == 0 || indexes[len(indexes)-1].Name != name {
			indexes = append(indexes, UniqueIndex{Name: name, Predicate: string(row[1]), NullsEqual: string(row[2]) == "t"})
		}
		index := &indexes[len(indexes)-1]
		index.Expressions = append(index.Expressions, "("+string(row[3])+")"+string(row[6]))
		index.Equalities = append(index.Equalities, operator(row[4], row[5]))
		index.Labels = append(index.Labels, string(row[7]))
	}
	return indexes, nil
}

// Computed is a column of the target that does not come from the publisher.
type Computed struct {
	Name string
	// Expression over the other columns makes its value in a new row; it is empty
	// where the value cannot be known beforehand.
	Expression string
	// Generated columns are made again by an update too.
	Generated bool
}

// LoadComputed returns the columns that the target fills itself: generated ones, and
// those that are not published, with the defaults that are plain values.
func LoadComputed(querier Querier, table *Table) ([]Computed, error) {
	rows, err := querier.Query(`
		SELECT a.attname, coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), ''), a.attgenerated <> ''
		FROM pg_catalog.pg_attribute a
		LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid = $1::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY a.attnum`, table.Version.Table)
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", table.QualifiedName(), err)
	}
	var columns []Computed
	for _, row := range rows {
		column := Computed{Name: string(row[0]), Expression: string(row[1]), Generated: string(row[2]) == "t"}
		if table.position(column.Name) >= 0 {
			continue
		}
		if !column.Generated && strings.Contains(column.Expression, "(") {
			column.Expression = "" // a function may give something else each time
		}
		columns = append(columns, column)
	}
	return columns, nil
}

// Keys returns the expressions as a select list with the names k1, k2 ...
func (u *UniqueIndex) Keys() string {
	var list strings.Builder
	for i, expression := range u.Expressions {
		if i > 0 {
			list.WriteString(", ")
		}
		fmt.Fprintf(&list, "%s AS k%d", expression, i+1)
	}
	return list.String()
}

// Key returns the keys of the relation, which has the columns k1, k2 ..., as one JSON object,
// for people.
func (u *UniqueIndex) Key(relation string) string {
	pairs := make([]string, len(u.Labels))
	for i, label := range u.Labels {
		pairs[i] = fmt.Sprintf("%s, %s.k%d", label, relation, i+1)
	}
	return "pg_catalog.jsonb_build_object(" + strings.Join(pairs, ", ") + ")"
}

// Matches returns the condition that the keys of the relations a and b, which have
// the columns k1, k2 ..., are equal.
func (u *UniqueIndex) Matches(a, b string) string {
	var condition strings.Builder
	for i, equality := range u.Equalities {
		if i > 0 {
			condition.WriteString(" AND ")
		}
		pair := fmt.Sprintf("%s.k%d %s %s.k%[2]d", a, i+1, equality, b)
		if u.NullsEqual {
			pair = fmt.Sprintf("(%s OR %s.k%d IS NULL AND %s.k%[3]d IS NULL)", pair, a, i+1, b)
		}
		condition.WriteString(pair)
	}
	return condition.String()
}
