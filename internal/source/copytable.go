package source

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// CopyTable is what the initial copy of a published table has to know of it.
type CopyTable struct {
	Table
	OID uint32
	// Partitioned tables hold their rows in Leaves; they come under this name where the
	// publication says so (publish_via_partition_root).
	Partitioned bool
	// Columns are those that are published, in their order.
	Columns []CopyColumn
	// Filter is the condition that rows must meet to be published, as an SQL expression;
	// empty for all rows.
	Filter string
	Storage
	// Leaves of a partitioned table.
	Leaves []CopyLeaf
}

// CopyColumn is a published column.
type CopyColumn struct {
	Name string
	// TypeOID is the type as the publisher knows it: a domain's OID where it is a domain.
	TypeOID uint32
	// Generated columns can be read by a SELECT only.
	Generated bool
}

// CopyLeaf is a partition that holds rows.
type CopyLeaf struct {
	Table
	OID uint32
	Storage
}

// Storage says how much there is to copy.
type Storage struct {
	// Bytes on disk, with TOAST and without indexes. A partitioned table's are those of
	// its leaves.
	Bytes int64
	// Rows is the estimate of the last ANALYZE or VACUUM, -1 where there is none.
	Rows int64
	// Pages of the main fork. They can be read in ranges of ctid if Ranges.
	Pages  int64
	Ranges bool
}

// ColumnListsError says that publications do not agree on the columns of a table, as in
// the native subscription's text (tablesync.c, fetch_remote_table_info).
type ColumnListsError struct{ Table Table }

func (e *ColumnListsError) Error() string {
	return fmt.Sprintf(`cannot use different column lists for table "%s.%s" in different publications`, e.Table.Schema, e.Table.Name)
}

// RewrittenError says that a table's rows were moved after the snapshot was taken, or
// that it was dropped: what the snapshot shows of it now is not what it held then.
type RewrittenError struct{ Table Table }

func (e *RewrittenError) Error() string {
	return fmt.Sprintf(`table "%s.%s" was rewritten, truncated or dropped on the publisher after the snapshot`, e.Table.Schema, e.Table.Name)
}

// rangesSince is the first major that finds a range of ctid without reading the whole table.
const rangesSince = 14

// CopyTables describes those of the wanted tables that the publications publish, in the
// order wanted, as of the transaction's snapshot. Of tables with differing column lists it
// returns a *ColumnListsError each. It does not wait long for a table that is locked
// exclusively, but returns a *TablesLockedError; nor does the rest of the transaction.
func (r *TableReader) CopyTables(publications []string, wanted []Table) ([]*CopyTable, []*ColumnListsError, error) {
	tables, faults, err := r.copyTables(publications, wanted)
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && server.Code == "55P03" {
		return nil, nil, &TablesLockedError{Err: err}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("describe the published tables: %w", err)
	}
	return tables, faults, nil
}

func (r *TableReader) copyTables(publications []string, wanted []Table) (tables []*CopyTable, faults []*ColumnListsError, err error) {
	if len(publications) == 0 || len(wanted) == 0 {
		return nil, nil, nil
	}
	heads, err := r.Query("SELECT pg_catalog.set_config('lock_timeout', '" + tableLockTimeout + "', true); " + r.headsSQL(publications))
	if err != nil {
		return nil, nil, err
	}
	found := make(map[Table]*CopyTable, len(heads))
	byOID := make(map[string]*CopyTable, len(heads))
	different := make(map[Table]bool)
	for row := range heads {
		field := func(column int) string { return text(heads, row, column) }
		table := &CopyTable{Table: Table{Schema: field(0), Name: field(1)}, Partitioned: field(3) == "p", Filter: field(5)}
		if table.OID, err = oid(field(2)); err != nil {
			return nil, nil, err
		}
		if table.Storage, err = r.storage(heads[row][6:]); err != nil {
			return nil, nil, err
		}
		found[table.Table], byOID[field(2)] = table, table
		different[table.Table] = field(4) != "1"
	}
	var oids []string
	for _, name := range wanted {
		switch table := found[name]; {
		case table == nil:
		case different[name]:
			faults = append(faults, &ColumnListsError{Table: name})
		default:
			tables = append(tables, table)
			oids = append(oids, strconv.FormatUint(uint64(table.OID), 10))
		}
	}
	if len(oids) == 0 {
		return tables, faults, nil
	}
	columns, err := r.Query(r.columnsSQL(publications, oids))
	if err != nil {
		return nil, nil, err
	}
	for row := range columns {
		table, kind := byOID[text(columns, row, 0)], uint32(0)
		if kind, err = oid(text(columns, row, 2)); err != nil {
			return nil, nil, err
		}
		table.Columns = append(table.Columns, CopyColumn{Name: text(columns, row, 1), TypeOID: kind, Generated: text(columns, row, 3) == "t"})
	}
	return tables, faults, r.leaves(oids, byOID)
}

// leaves adds the partitions that hold the rows of partitioned tables.
func (r *TableReader) leaves(oids []string, byOID map[string]*CopyTable) error {
	rows, err := r.Query(treeSQL(oids, r.major()) + `
		SELECT t.root, n.nspname, c.relname, c.oid, ` + r.storageSQL() + `
		FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE t.oid <> t.root AND c.relkind <> 'p' ORDER BY t.root, n.nspname, c.relname`)
	if err != nil {
		return err
	}
	for row := range rows {
		leaf := CopyLeaf{Table: Table{Schema: text(rows, row, 1), Name: text(rows, row, 2)}}
		if leaf.OID, err = oid(text(rows, row, 3)); err != nil {
			return err
		}
		if leaf.Storage, err = r.storage(rows[row][4:]); err != nil {
			return err
		}
		root := byOID[text(rows, row, 0)]
		if len(root.Leaves) == 0 {
			root.Rows = 0
		}
		root.Bytes += leaf.Bytes
		if leaf.Rows < 0 || root.Rows < 0 {
			root.Rows = -1
		} else {
			root.Rows += leaf.Rows
		}
		root.Leaves = append(root.Leaves, leaf)
	}
	return nil
}

// Pin locks what is about to be copied against being rewritten and proves that it was
// not since the snapshot. Rows that a rewriting ALTER TABLE has moved are invisible to
// older snapshots (manual, "Caveats" of concurrency control), and a table that was
// truncated is empty for them: without this a copy would lose them without a sign.
// Row ranges stay what they are until the transaction ends. It returns a *RewrittenError.
func (r *TableReader) Pin(table Table, oid uint32, partitioned bool) error {
	only := "ONLY "
	if partitioned {
		only = ""
	}
	// Not LOCK TABLE, which asks for more than the right to read some columns.
	rows, err := r.Query("SELECT FROM " + only + table.quoted() + " LIMIT 0; " +
		treeSQL([]string{strconv.FormatUint(uint64(oid), 10)}, r.major()) + `
		SELECT c.oid FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid
		WHERE c.relkind = 'r' AND c.relfilenode IS DISTINCT FROM pg_catalog.pg_relation_filenode(c.oid)`)
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && (server.Code == "42P01" || server.Code == "3F000") {
		return &RewrittenError{Table: table}
	}
	if err != nil {
		return fmt.Errorf("lock %s on the publisher: %w", table.quoted(), err)
	}
	if len(rows) > 0 {
		return &RewrittenError{Table: table}
	}
	return nil
}

func (t Table) quoted() string { return identifier(t.Schema) + "." + identifier(t.Name) }

// headsSQL gives a row for each published table. A publication without a row filter
// makes all rows of the table published.
func (r *TableReader) headsSQL(publications []string) string {
	lists, filter := "1", "''"
	if r.major() >= 15 {
		lists = "greatest(pg_catalog.count(DISTINCT t.attnames), 1)"
		filter = `CASE WHEN pg_catalog.bool_or(t.rowfilter IS NULL) THEN '' ELSE
			pg_catalog.string_agg(DISTINCT '(' || t.rowfilter || ')', ' OR ') END`
	}
	return `
		SELECT p.schemaname, p.tablename, c.oid, c.relkind, p.lists, p.filter, ` + r.storageSQL() + `
		FROM (SELECT t.schemaname, t.tablename, ` + lists + ` AS lists, ` + filter + ` AS filter
			FROM pg_catalog.pg_publication_tables t WHERE t.pubname IN (` + literals(publications) + `)
			GROUP BY t.schemaname, t.tablename) p
		JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
		JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename`
}

func (r *TableReader) storageSQL() string {
	heap := "c.relkind = 'r'"
	if r.major() >= 12 {
		heap = "c.relam = (SELECT oid FROM pg_catalog.pg_am WHERE amname = 'heap')"
	}
	return `coalesce(pg_catalog.pg_table_size(c.oid), 0), c.reltuples::pg_catalog.int8, c.relpages,
		coalesce(pg_catalog.pg_relation_size(c.oid), 0) / pg_catalog.current_setting('block_size')::pg_catalog.int8, ` + heap
}

// storage reads what storageSQL gives. Before 14 a table that was never looked at has an
// estimate of no rows on no pages.
func (r *TableReader) storage(row [][]byte) (s Storage, err error) {
	if s.Bytes, err = strconv.ParseInt(string(row[0]), 10, 64); err != nil {
		return s, err
	}
	if s.Rows, err = strconv.ParseInt(string(row[1]), 10, 64); err != nil {
		return s, err
	}
	if s.Pages, err = strconv.ParseInt(string(row[3]), 10, 64); err != nil {
		return s, err
	}
	if s.Rows == 0 && string(row[2]) == "0" && s.Pages > 0 {
		s.Rows = -1
	}
	s.Ranges = string(row[4]) == "t" && r.major() >= rangesSince
	return s, nil
}

// columnsSQL gives a row for each published column. Generated columns are published
// from 18 on, where the publication says so.
func (r *TableReader) columnsSQL(publications, oids []string) string {
	published, generated, ordinary := "", "false", "true"
	if r.major() >= 15 {
		published = `
		JOIN (SELECT t.schemaname, t.tablename, pg_catalog.max(t.attnames) AS attnames FROM pg_catalog.pg_publication_tables t
			WHERE t.pubname IN (` + literals(publications) + `) GROUP BY t.schemaname, t.tablename) p
			ON p.schemaname = n.nspname AND p.tablename = c.relname AND a.attname = ANY (p.attnames)`
	}
	if r.major() >= 12 {
		generated = "a.attgenerated <> ''"
	}
	if r.major() >= 12 && r.major() < 18 {
		ordinary = "a.attgenerated = ''"
	}
	return `
		SELECT c.oid, a.attname, a.atttypid, ` + generated + `
		FROM pg_catalog.pg_attribute a
		JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace` + published + `
		WHERE c.oid IN (` + strings.Join(oids, ", ") + `) AND a.attnum > 0 AND NOT a.attisdropped AND ` + ordinary + `
		ORDER BY c.oid, a.attnum`
}

// treeSQL begins a query over the partitions below each of the tables, and the tables
// themselves. A table that others inherit from is no tree: each of them is published alone.
func treeSQL(oids []string, major int) string {
	pending := ""
	if major >= 14 {
		pending = " AND NOT i.inhdetachpending"
	}
	return `
		WITH RECURSIVE tree (root, oid, kind) AS (
			SELECT c.oid, c.oid, c.relkind FROM pg_catalog.pg_class c WHERE c.oid IN (` + strings.Join(oids, ", ") + `)
			UNION ALL
			SELECT t.root, c.oid, c.relkind FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid` + pending + `
			JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
			WHERE t.kind = 'p'
		)`
}

func oid(field string) (uint32, error) {
	number, err := strconv.ParseUint(field, 10, 32)
	return uint32(number), err
}
