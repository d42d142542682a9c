package target

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply/catalog"
)

// A statement over arrays that looks for rows is to meet as many as it has elements. With a
// target that is near we read how many it has met before COMMIT is sent. With one that is
// far away that round trip for each group costs more than anything else: there the
// statement itself counts, and fails where the number is another, so that COMMIT may follow
// it at once, and does nothing then. Counting takes a tenth of the statement's time.

// netBuilder builds a statement for a number of net changes of one kind. Its parameters
// are arrays, one for each column that it sets or compares.
type netBuilder struct {
	builder
	arrays []string // their names, in order
}

// netStatement is the SQL of one. An update sets the columns that its shape says. One that
// looks for rows counts them, if that is asked for.
func netStatement(bound *catalog.Table, op operation, columns shape, also condition, counts bool) statement {
	b := netBuilder{builder: builder{table: bound}}
	if b.counted = counts && op.looks(); b.counted {
		b.WriteString(countedRows)
	}
	switch op {
	case opCopy:
		// Identity columns take what is given, GENERATED ALWAYS or not.
		b.WriteString("COPY " + bound.QualifiedName())
		for i := range bound.Columns {
			b.WriteString(separator(i, " (", ", ") + quote(bound.Columns[i].Name))
		}
		b.WriteString(") FROM STDIN")
		if columns[0] == 'b' {
			b.WriteString(" (FORMAT binary)")
		}
		return b.build()
	case opInsert:
		b.WriteString("INSERT INTO " + bound.QualifiedName())
		for i := range bound.Columns {
			b.WriteString(separator(i, " (", ", ") + quote(bound.Columns[i].Name))
			b.array(i)
		}
		b.WriteString(") OVERRIDING SYSTEM VALUE " + b.elements())
		return b.build()
	case opUpdate:
		b.WriteString("UPDATE " + reference(bound) + " AS " + rowAlias + " SET ")
		count := 0
		for i, letter := range columns {
			if letter == 's' {
				b.WriteString(separator(count, "", ", ") + quote(bound.Columns[i].Name) + " = " + b.element(i))
				count++
			}
		}
		if count == 0 {
			name := quote(bound.Columns[settable(bound)].Name)
			b.WriteString(name + " = " + rowAlias + "." + name)
		}
		b.find(" FROM ", true)
	case opAbsent:
		b.WriteString("SELECT FROM " + reference(bound) + " AS " + rowAlias)
		b.find(", ", false)
		b.WriteString(" LIMIT 1")
		if b.counted {
			b.WriteString(expect("0"))
		}
		return b.build()
	default:
		b.WriteString("DELETE FROM " + reference(bound) + " AS " + rowAlias)
		b.find(" USING ", false)
	}
	if also != nil {
		also(&b.builder)
	}
	if b.counted {
		b.WriteString(" RETURNING 1" + expect("pg_catalog.cardinality("+b.arrays[0]+")"))
	}
	return b.build()
}

// looks tells whether a statement over arrays looks for rows.
func (o operation) looks() bool { return o == opUpdate || o == opDelete || o == opAbsent }

// countedRows begins a statement whose rows are counted by what expect ends it with.
const countedRows = "WITH pgapply_rows AS ("

// countFault begins what the server says when the rows are not as many as expected.
const countFault = "pgapply expects "

// expect ends a statement that fails unless it has had so many rows: what is cast to a
// number then is the text that people read in the server's log.
func expect(rows string) string {
	return ") SELECT CASE WHEN pg_catalog.count(*) = " + rows + " THEN 0 ELSE ('" + countFault + "' || " + rows +
		" || ' rows and meets ' || pg_catalog.count(*) || ', so it goes on row by row')::pg_catalog.int4 END FROM pgapply_rows"
}

// errMiscounted says that a statement has failed so.
var errMiscounted = fmt.Errorf("%w: it has met more or fewer rows", errNotSure)

// miscounted tells whether that is what the server says: nothing but the rows is at fault.
func miscounted(err error) bool {
	server, ok := errors.AsType[*pgconn.PgError](err)
	return ok && server.Code == "22P02" && strings.Contains(server.Message, countFault)
}

// find writes which rows are meant. It leaves the planner only ways that read no more of
// the table than these, by the key's index, since the plan is kept while the table grows.
// Where the key is one column that is a scan for the whole array. An update that sets
// values joins its rows with the elements, by a hash.
//
// Else one element after the other looks its row up. ANY of one is the same as equal, but
// nothing that the planner could join by: with a plain = it reads small tables from end to
// end, once and for all. So it is on partitioned tables: a scan for the whole array would
// be one of each partition.
func (b *netBuilder) find(keyword string, sets bool) {
	sole, keys := 0, 0
	for i := range b.table.Columns {
		if b.table.Columns[i].Key {
			sole = i
			keys++
		}
	}
	if keys == 1 && !b.table.Partitioned && (!sets || b.table.Columns[sole].Hashed) {
		where := b.compare(sole, "ANY ("+b.array(sole), ")")
		if sets {
			where += " AND " + b.compare(sole, b.element(sole), "")
			b.WriteString(keyword + "(" + b.elements() + ") AS pgapply_net")
		}
		b.WriteString(" WHERE " + where)
		return
	}
	var where string
	for i := range b.table.Columns {
		if b.table.Columns[i].Key {
			where += separator(len(where), " WHERE ", " AND ") + b.compare(i, "ANY (ARRAY["+b.element(i), "])")
		}
	}
	b.WriteString(keyword + "(" + b.elements() + ") AS pgapply_net" + where)
}

// compare is the comparison of a column of the key with value, which ends with end.
func (b *netBuilder) compare(column int, value, end string) string {
	c := &b.table.Columns[column]
	if c.Collation != "" {
		value += " COLLATE " + c.Collation
	}
	return rowAlias + "." + quote(c.Name) + " " + c.Equality + " " + value + end
}

// number is that of the array that has the column's values.
func (b *netBuilder) number(column int) int {
	for i, p := range b.parameters {
		if p.column == column {
			return i
		}
	}
	b.parameters = append(b.parameters, parameter{column: column})
	b.arrays = append(b.arrays, b.extra(b.table.Columns[column].ArrayOID))
	return len(b.arrays) - 1
}

func (b *netBuilder) array(column int) string { return b.arrays[b.number(column)] }

// element is the column's value in one of the elements.
func (b *netBuilder) element(column int) string {
	return "pgapply_net.c" + strconv.Itoa(b.number(column))
}

// elements has a row for each element. All arrays are equally long.
func (b *netBuilder) elements() string {
	query := "SELECT"
	for i, array := range b.arrays {
		query += separator(i, " ", ", ") + "pg_catalog.unnest(" + array + ") AS c" + strconv.Itoa(i)
	}
	return query
}
