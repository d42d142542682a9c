package tablesync

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/source"
)

// part is what is copied in one transaction on either end.
type part struct {
	// table and oid are what is read: the table itself, or one of its leaves.
	table       source.Table
	oid         uint32
	partitioned bool
	// from and to are a range of pages, to not included; to is -1 for the end of the
	// table. Without pages all of them are meant.
	from, to int64
	pages    bool
}

func (p *part) String() string {
	var words []string
	if p.pages && p.to < 0 {
		words = append(words, fmt.Sprintf("pages from %d on", p.from))
	} else if p.pages {
		words = append(words, fmt.Sprintf("pages %d to %d", p.from, p.to-1))
	}
	return strings.Join(append(words, "of "+p.table.Schema+"."+p.table.Name), " ")
}

// mostParts bounds how many transactions one table can be.
const mostParts = 1024

// split divides a table that is larger than limit bytes into ranges of pages, and a
// partitioned one into its leaves and ranges of these; a limit of 0 divides none. What
// cannot be divided is one part.
func split(table *source.CopyTable, limit int64) []part {
	whole := part{table: table.Table, oid: table.OID, partitioned: table.Partitioned}
	if limit <= 0 || table.Bytes <= limit {
		return []part{whole}
	}
	if !table.Partitioned {
		return splitPages(whole, table.Storage, limit)
	}
	var parts []part
	for _, leaf := range table.Leaves {
		parts = append(parts, splitPages(part{table: leaf.Table, oid: leaf.OID}, leaf.Storage, limit)...)
	}
	return parts
}

func splitPages(whole part, storage source.Storage, limit int64) []part {
	count := min((storage.Bytes+limit-1)/limit, storage.Pages, mostParts)
	if count < 2 || !storage.Ranges {
		return []part{whole}
	}
	parts := make([]part, count)
	for i := range parts {
		parts[i] = whole
		parts[i].pages = true
		parts[i].from = storage.Pages * int64(i) / count
		parts[i].to = storage.Pages * (int64(i) + 1) / count
	}
	// The table may have grown between snapshot and description.
	parts[count-1].to = -1
	return parts
}

// copyOut is the publisher's statement for a part of a table that has columns. Only a
// plain table without a filter takes the short form: it refuses partitioned and foreign
// tables and generated columns (tablesync.c, copy_table).
func (p *part) copyOut(table *source.CopyTable, binary bool) string {
	short := p.oid == table.OID && !p.partitioned && !p.pages && table.Filter == ""
	names := make([]string, len(table.Columns))
	for i, column := range table.Columns {
		names[i] = quote(column.Name)
		short = short && !column.Generated
	}
	var what string
	if list := strings.Join(names, ", "); short {
		what = quote(p.table.Schema, p.table.Name) + " (" + list + ")"
	} else {
		what = "(SELECT " + list + p.rows(table.Filter) + ")"
	}
	return "COPY " + what + " TO STDOUT" + format(binary)
}

// count is the publisher's statement for a part of a table without columns, of whose rows
// nothing is to be known but how many there are.
func (p *part) count(table *source.CopyTable) string {
	return "SELECT pg_catalog.count(*)" + p.rows(table.Filter)
}

// insert is the target's statement for it: what it has of columns takes the defaults.
func insert(table *source.CopyTable, rows int64) string {
	return fmt.Sprintf("INSERT INTO %s SELECT FROM pg_catalog.generate_series(1, %d)", quote(table.Schema, table.Name), rows)
}

func (p *part) rows(filter string) string {
	only := "ONLY "
	if p.partitioned {
		only = ""
	}
	return " FROM " + only + quote(p.table.Schema, p.table.Name) + p.where(filter)
}

func (p *part) where(filter string) string {
	var conditions []string
	if p.pages {
		if p.from > 0 {
			conditions = append(conditions, fmt.Sprintf("ctid >= '(%d,0)'", p.from))
		}
		if p.to >= 0 {
			conditions = append(conditions, fmt.Sprintf("ctid < '(%d,0)'", p.to))
		}
	}
	if filter != "" {
		conditions = append(conditions, "("+filter+")")
	}
	if len(conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(conditions, " AND ")
}

// copyIn is the target's statement.
func copyIn(table *source.CopyTable, binary bool) string {
	names := make([]string, len(table.Columns))
	for i, column := range table.Columns {
		names[i] = quote(column.Name)
	}
	return "COPY " + quote(table.Schema, table.Name) + " (" + strings.Join(names, ", ") + ") FROM STDIN" + format(binary)
}

func format(binary bool) string {
	if binary {
		return " (FORMAT binary)"
	}
	return ""
}

func quote(names ...string) string { return pgx.Identifier(names).Sanitize() }
