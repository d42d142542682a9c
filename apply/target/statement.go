package target

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/apply/catalog"
	"pgapply/decoder"
)

// Types of parameters that are not a column's (pg_type.dat).
const (
	int8Type        = 20
	textType        = 25
	oidType         = 26
	tidType         = 27
	timestamptzType = 1184
	lsnType         = 3220
	jsonbType       = 3802
)

// statement is the SQL text of one shape of change and says which values of the
// change are its parameters.
type statement struct {
	sql   string
	types []uint32
	// parameters in order: a column of the new tuple or, with search set, of the
	// tuple that rows are searched by. Behind them come those that are given with
	// each execution.
	parameters []parameter
	// counted: it fails unless it meets as many rows as it should.
	counted bool
}

type parameter struct {
	search bool
	column int
}

// shape tells apart the changes of one table that need different SQL: a letter
// for each column that is left alone or NULL in the search. Two changes of equal
// shape share a statement. It is a scratch buffer of the caller.
type shape []byte

func appendShape(s shape, table *catalog.Table, search, newer decoder.Tuple) shape {
	for i, value := range newer {
		switch {
		case value.Kind == decoder.Unchanged:
			s = append(s, 'u')
		case keepsIdentity(table, search, newer, i):
			s = append(s, 'i')
		default:
			s = append(s, 's')
		}
	}
	if table.Search == catalog.ByRow {
		for _, value := range search {
			if value.Kind == decoder.Null {
				s = append(s, 'n')
			} else {
				s = append(s, '=')
			}
		}
	}
	return s
}

// sameTuple tells whether an UPDATE came without an old tuple: its row is searched
// by the new one.
func sameTuple(search, newer decoder.Tuple) bool {
	return len(search) > 0 && len(newer) > 0 && &search[0] == &newer[0]
}

func (s shape) equal(other shape) bool { return bytes.Equal(s, other) }

// builder collects the text and the parameters of one statement.
type builder struct {
	strings.Builder
	table *catalog.Table
	statement
}

// condition adds to a WHERE clause what the row must meet besides being the one
// that is searched; nil is nothing.
type condition func(*builder)

func (b *builder) parameter(search bool, column int) {
	b.parameters = append(b.parameters, parameter{search, column})
	// The type is given by OID and never spelt as a cast: a cast would bring a
	// length of its own (character means one character) or none at all.
	b.types = append(b.types, b.table.Columns[column].TypeOID)
	b.WriteByte('$')
	b.WriteString(strconv.Itoa(len(b.types)))
}

// extra adds a parameter that is no value of the change and returns its name. No
// value of the change may follow.
func (b *builder) extra(typeOID uint32) string {
	b.types = append(b.types, typeOID)
	return "$" + strconv.Itoa(len(b.types))
}

// object writes an expression for the JSON object of the values that were sent, as
// text, whichever form they come in.
func (b *builder) object(search bool, tuple decoder.Tuple) {
	if tuple == nil {
		b.WriteString("NULL::pg_catalog.jsonb")
		return
	}
	var names []string
	b.WriteString("pg_catalog.jsonb_object(ARRAY[")
	for i, value := range tuple {
		if value.Kind != decoder.Unchanged {
			names = append(names, literal(b.table.Columns[i].Name))
		}
	}
	b.WriteString(strings.Join(names, ", ") + "]::pg_catalog.text[], ARRAY[")
	count := 0
	for i, value := range tuple {
		if value.Kind == decoder.Unchanged {
			continue
		}
		b.WriteString(separator(count, "", ", "))
		b.parameter(search, i)
		b.WriteString("::pg_catalog.text")
		count++
	}
	b.WriteString("]::pg_catalog.text[])")
}

func (b *builder) build() statement {
	b.sql = b.String()
	return b.statement
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// reference names the table in UPDATE, DELETE and SELECT: without the children
// that it may have by inheritance, but with the partitions.
func reference(table *catalog.Table) string {
	if table.Partitioned {
		return table.QualifiedName()
	}
	return "ONLY " + table.QualifiedName()
}

func insertStatement(table *catalog.Table) statement {
	b := builder{table: table}
	b.WriteString("INSERT INTO " + table.QualifiedName())
	if len(table.Columns) == 0 {
		b.WriteString(" DEFAULT VALUES")
		return b.build()
	}
	for i := range table.Columns {
		b.WriteString(separator(i, " (", ", ") + quote(table.Columns[i].Name))
	}
	// Without identity columns the clause changes nothing.
	b.WriteString(") OVERRIDING SYSTEM VALUE VALUES ")
	for i := range table.Columns {
		b.WriteString(separator(i, "(", ", "))
		b.parameter(false, i)
	}
	b.WriteString(")")
	return b.build()
}

func separator(i int, first, later string) string {
	if i == 0 {
		return first
	}
	return later
}

// updateStatement sets every column that was sent, also those whose value did not
// change: triggers on UPDATE OF a column fire for it as they do natively.
func updateStatement(table *catalog.Table, also condition, search, newer decoder.Tuple) statement {
	b := builder{table: table}
	end := b.update(search, newer)
	b.where(search, also)
	b.WriteString(end)
	return b.build()
}

// update writes everything before the WHERE clause and returns what comes behind it.
func (b *builder) update(search, newer decoder.Tuple) (end string) {
	set := 0
	for i, value := range newer {
		if value.Kind == decoder.Unchanged || keepsIdentity(b.table, search, newer, i) {
			continue
		}
		b.WriteString(separator(set, "UPDATE "+reference(b.table)+" SET ", ", ") + quote(b.table.Columns[i].Name) + " = ")
		b.parameter(false, i)
		set++
	}
	if set > 0 {
		return ""
	}
	// Nothing to set is still an update: a new row version, and triggers.
	if i := settable(b.table); i >= 0 {
		name := quote(b.table.Columns[i].Name)
		b.WriteString("UPDATE " + reference(b.table) + " SET " + name + " = " + name)
		return ""
	}
	// But it cannot be where all that is published may not be set: the row must be there.
	b.WriteString("SELECT FROM " + reference(b.table))
	return " FOR UPDATE"
}

// settable returns a column that an UPDATE may set, or -1.
func settable(table *catalog.Table) int {
	return slices.IndexFunc(table.Columns, func(c catalog.Column) bool { return !c.IdentityAlways })
}

// keepsIdentity tells whether column i is an identity column GENERATED ALWAYS,
// which an UPDATE may not name, and keeps its value: the row is searched by the new
// tuple itself, or the old tuple has the same value.
func keepsIdentity(table *catalog.Table, search, newer decoder.Tuple, i int) bool {
	column := &table.Columns[i]
	if !column.IdentityAlways {
		return false
	}
	if sameTuple(search, newer) {
		return column.Key && table.Search == catalog.ByKey
	}
	return search[i].Kind == newer[i].Kind && bytes.Equal(search[i].Data, newer[i].Data)
}

func deleteStatement(table *catalog.Table, also condition, search decoder.Tuple) statement {
	b := builder{table: table}
	b.WriteString("DELETE FROM " + reference(table))
	b.where(search, also)
	return b.build()
}

// where adds the condition that names the row. By key it is the key's own
// equality. By row it is one row out of those that are equal in every column.
func (b *builder) where(search decoder.Tuple, also condition) {
	b.WriteString(" WHERE ")
	switch {
	case b.table.Search == catalog.ByKey:
		b.conditions(search)
	case b.table.Partitioned:
		b.oneOf("tableoid, ctid", "(tableoid, ctid)", search)
	default:
		b.oneOf("ctid", "ctid", search)
	}
	if also != nil {
		also(b)
	}
}

// oneOf picks one row. A concurrent update of it makes the statement find nothing
// although another row may be equal: the caller takes 0 rows as "not sure".
func (b *builder) oneOf(columns, row string, search decoder.Tuple) {
	b.WriteString(row + " = (SELECT " + columns + " FROM " + reference(b.table) + " WHERE ")
	b.conditions(search)
	b.WriteString(" LIMIT 1 FOR UPDATE)")
}

func (b *builder) conditions(search decoder.Tuple) {
	count := 0
	for i := range b.table.Columns {
		column := &b.table.Columns[i]
		if b.table.Search == catalog.ByKey && !column.Key {
			continue
		}
		b.WriteString(separator(count, "", " AND "))
		count++
		name := quote(column.Name)
		switch {
		case b.table.Search == catalog.ByRow && search[i].Kind == decoder.Null:
			b.WriteString(name + " IS NULL")
		case column.Equality == "":
			// The type has no equality of its own. The same bytes are the same value.
			b.WriteString("pg_catalog.record_image_eq(ROW(" + name + "), ROW(")
			b.parameter(true, i)
			b.WriteString("))")
		default:
			b.WriteString(name + " " + column.Equality + " ")
			b.parameter(true, i)
			if column.Collation != "" {
				b.WriteString(" COLLATE " + column.Collation)
			}
		}
	}
	if count == 0 {
		b.WriteString("true")
	}
}

// updateFoundStatement and deleteFoundStatement change the row that was found and
// locked before: their last two parameters are its tableoid and ctid.
func updateFoundStatement(table *catalog.Table, search, newer decoder.Tuple) statement {
	b := builder{table: table}
	end := b.update(search, newer)
	b.whereFound()
	b.WriteString(end)
	return b.build()
}

func deleteFoundStatement(table *catalog.Table) statement {
	b := builder{table: table}
	b.WriteString("DELETE FROM " + reference(table))
	b.whereFound()
	return b.build()
}

func (b *builder) whereFound() {
	b.WriteString(" WHERE tableoid = " + b.extra(oidType) + " AND ctid = " + b.extra(tidType))
}
