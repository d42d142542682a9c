package verify

import (
	"context"
	"fmt"
	"strings"
)

// Differences are those of one table, for a repair.
type Differences struct {
	comparison *comparison
	table      *table
	list       []*candidate
	report     *TableReport
}

// Print puts the statements into the report that would make the target's rows what the
// publisher's are now. Those beyond the limit of the report are left out. The report
// then holds the values of rows.
func (d *Differences) Print(ctx context.Context) error {
	for i := range d.report.Differences {
		candidate := d.list[i]
		if !d.repairable(candidate) {
			continue
		}
		err := d.comparison.on(ctx, sourceEnd, func(s *session) error {
			values, _, err := d.table.read(ctx, s, candidate, "")
			if err == nil {
				d.report.Differences[i].Repair = d.table.statement(candidate, values)
			}
			return err
		})
		if err != nil {
			return &EndError{Err: err}
		}
	}
	return nil
}

// repairable: the key tells which row is meant.
func (d *Differences) repairable(c *candidate) bool {
	return len(d.table.key) > 0 && c.source.n <= 1 && c.target.n <= 1
}

// value is a field of a row; nil is NULL.
type value []byte

func (v value) literal() string {
	if v == nil {
		return "NULL"
	}
	return literal(string(v))
}

// read reads the values of the publisher's row, nil where there is none, and the image
// of it. lock is a clause that locks the row, or empty.
func (t *table) read(ctx context.Context, s *session, c *candidate, lock string) (values []value, is image, err error) {
	list := make([]string, 0, 2*len(t.columns))
	for place := range t.columns {
		list = append(list, output(identifier(t.columns[place].name)))
	}
	for place := range t.columns {
		list = append(list, t.dialect.hashOf(&t.columns[place], place, true))
	}
	filter := ""
	if t.filter != "" {
		filter = " AND (" + t.filter + ")"
	}
	sql := fmt.Sprintf("SELECT %s FROM %s WHERE %s%s%s", strings.Join(list, ", "), t.whole(sourceEnd), t.keyCondition([]*candidate{c}), filter, lock)
	err = s.each(ctx, sql, func(row [][]byte) error {
		values = make([]value, len(t.columns))
		for place := range values {
			if row[place] != nil {
				values[place] = append(value{}, row[place]...)
			}
		}
		is = is.with(1, "", row[len(t.columns):])
		return nil
	})
	return values, is, err
}

// statement is SQL for the target that makes its row the publisher's.
func (t *table) statement(c *candidate, values []value) string {
	var names, list, set []string
	where := t.keyCondition([]*candidate{c})
	for place, v := range values {
		name := identifier(t.columns[place].name)
		names, list = append(names, name), append(list, v.literal())
		if len(c.source.columns) == 0 || len(c.target.columns) == 0 || c.source.columns[place] != c.target.columns[place] {
			set = append(set, name+" = "+v.literal())
		}
	}
	switch {
	case values == nil:
		return fmt.Sprintf("DELETE FROM %s WHERE %s;", t.whole(targetEnd), where)
	case c.target.n == 0:
		return fmt.Sprintf("INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE VALUES (%s);", t.quoted(), strings.Join(names, ", "), strings.Join(list, ", "))
	}
	return fmt.Sprintf("UPDATE %s SET %s WHERE %s;", t.whole(targetEnd), strings.Join(set, ", "), where)
}
