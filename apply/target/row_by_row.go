package target

import (
	"cmp"
	"slices"
	"sync"
)

// RowByRow is a table whose changes are not merged, and what on it could tell.
type RowByRow struct{ Schema, Table, Reason string }

// rowByRow knows those of the tables that the session has met, as they were bound last.
type rowByRow struct {
	sync.Mutex
	tables map[[2]string]string
}

// note takes over what the catalogs say now.
func (r *rowByRow) note(schema, table, reason string) {
	r.Lock()
	defer r.Unlock()
	name := [2]string{schema, table}
	if reason == "" {
		delete(r.tables, name)
		return
	}
	if r.tables == nil {
		r.tables = make(map[[2]string]string)
	}
	r.tables[name] = reason
}

// RowByRow lists the tables that the session has met and whose changes it sends one by
// one, by name. It may be called from any goroutine.
func (s *Session) RowByRow() []RowByRow {
	r := &s.rowByRow
	r.Lock()
	defer r.Unlock()
	var list []RowByRow
	for name, reason := range r.tables {
		list = append(list, RowByRow{Schema: name[0], Table: name[1], Reason: reason})
	}
	slices.SortFunc(list, func(a, b RowByRow) int {
		return cmp.Or(cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Table, b.Table))
	})
	return list
}
