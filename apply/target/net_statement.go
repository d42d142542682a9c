package target

import (
	"strconv"

	"pgapply/apply/catalog"
)

// netStatement is the SQL for a number of net changes of one kind. Its parameters are
// arrays, one for each column that it sets or compares. An update sets the columns that
// its shape says.
func netStatement(bound *catalog.Table, op operation, columns shape, also condition) statement {
	b := builder{table: bound}
	var from []string
	element := func(column int) string {
		for i, p := range b.parameters {
			if p.column == column {
				return "pgapply_net.c" + strconv.Itoa(i)
			}
		}
		b.parameters = append(b.parameters, parameter{column: column})
		from = append(from, "pg_catalog.unnest("+b.extra(bound.Columns[column].ArrayOID)+")")
		return "pgapply_net.c" + strconv.Itoa(len(from)-1)
	}
	keyword := " USING "
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
			element(i)
		}
		b.WriteString(") OVERRIDING SYSTEM VALUE SELECT *")
		b.elements(" FROM ", from)
		return b.build()
	case opUpdate:
		keyword = " FROM "
		b.WriteString("UPDATE " + reference(bound) + " AS " + rowAlias + " SET ")
		count := 0
		for i, letter := range columns {
			if letter == 's' {
				b.WriteString(separator(count, "", ", ") + quote(bound.Columns[i].Name) + " = " + element(i))
				count++
			}
		}
		if count == 0 {
			name := quote(bound.Columns[settable(bound)].Name)
			b.WriteString(name + " = " + rowAlias + "." + name)
		}
	case opAbsent:
		b.WriteString("SELECT FROM " + reference(bound) + " AS " + rowAlias)
		keyword, also = ", ", nil
	default:
		b.WriteString("DELETE FROM " + reference(bound) + " AS " + rowAlias)
	}
	// ANY of one is the same as equal, but nothing that the planner could join by in
	// another way than taking one element after the other and finding its row by the
	// index. With a plain = it reads small tables from end to end instead, once and for
	// all: the plan is kept while they grow. So the rows change in the batch's order, too.
	var where string
	for i := range bound.Columns {
		if column := &bound.Columns[i]; column.Key {
			where += separator(len(where), " WHERE ", " AND ") + rowAlias + "." + quote(column.Name) + " " + column.Equality + " ANY (ARRAY[" + element(i)
			if column.Collation != "" {
				where += " COLLATE " + column.Collation
			}
			where += "])"
		}
	}
	b.elements(keyword, from)
	b.WriteString(where)
	if also != nil {
		also(&b)
	}
	if op == opAbsent {
		b.WriteString(" LIMIT 1")
	}
	return b.build()
}

// elements writes the arrays as the rows of a table.
func (b *builder) elements(keyword string, from []string) {
	b.WriteString(keyword + "ROWS FROM (")
	for i, array := range from {
		b.WriteString(separator(i, "", ", ") + array)
	}
	b.WriteString(") AS pgapply_net (")
	for i := range from {
		b.WriteString(separator(i, "", ", ") + "c" + strconv.Itoa(i))
	}
	b.WriteString(")")
}
