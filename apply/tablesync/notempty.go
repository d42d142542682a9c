package tablesync

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pgapply/origin"
)

// Filled is a table of the target that has rows.
type Filled struct {
	Table Table
	// Rows is an estimate, and at least 1.
	Rows int64
}

// Estimate says how many they are, for people.
func (f *Filled) Estimate() string {
	if f.Rows == 1 {
		return "about 1 row"
	}
	return fmt.Sprintf("about %d rows", f.Rows)
}

// checkedAtOnce bounds how many tables one statement looks into.
const checkedAtOnce = 100

// Missing returns those of the tables that the target does not have, in the order given.
// The session reads and gives names in the encoding of its database.
func Missing(session origin.Session, tables []Table) ([]Table, error) {
	found, err := locals(session, tables)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(tables), func(table Table) bool {
		return found[Table{Schema: table.Schema, Name: table.Name}] != nil
	}), nil
}

// NotEmpty returns those of the tables that have rows on the target, in the order given.
// Tables that the target does not have are left out. The session reads and gives names in
// the encoding of its database.
func NotEmpty(session origin.Session, tables []Table) ([]Filled, error) {
	var filled []Filled
	for some := range slices.Chunk(tables, checkedAtOnce) {
		found, err := notEmpty(session, some)
		if err != nil {
			return nil, fmt.Errorf("look for rows on the target: %w", err)
		}
		filled = append(filled, found...)
	}
	return filled, nil
}

func notEmpty(session origin.Session, tables []Table) ([]Filled, error) {
	found, err := locals(session, tables)
	if err != nil {
		return nil, err
	}
	var queries []string
	for i, table := range tables {
		local := found[Table{Schema: table.Schema, Name: table.Name}]
		if local == nil || local.kind != "r" && local.kind != "p" {
			continue
		}
		only, members := "ONLY ", fmt.Sprintf("SELECT %d::pg_catalog.oid", local.oid)
		if local.kind == "p" {
			only, members = "", fmt.Sprintf("SELECT relid FROM pg_catalog.pg_partition_tree(%d)", local.oid)
		}
		queries = append(queries, fmt.Sprintf(`SELECT %d, (
			SELECT greatest(pg_catalog.sum(reltuples) FILTER (WHERE reltuples > 0 AND relkind = 'r')::pg_catalog.int8, 1)
			FROM pg_catalog.pg_class WHERE oid IN (%s)) WHERE EXISTS (SELECT FROM %s%s)`, i, members, only, quote(table.Schema, table.Name)))
	}
	if len(queries) == 0 {
		return nil, nil
	}
	rows, err := session.Query(strings.Join(queries, " UNION ALL ") + " ORDER BY 1")
	if err != nil {
		return nil, err
	}
	filled := make([]Filled, len(rows))
	for i, row := range rows {
		place, err := strconv.Atoi(string(row[0]))
		if err != nil {
			return nil, err
		}
		filled[i].Table = tables[place]
		if filled[i].Rows, err = strconv.ParseInt(string(row[1]), 10, 64); err != nil {
			return nil, err
		}
	}
	return filled, nil
}
