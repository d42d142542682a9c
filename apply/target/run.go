package target

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"strconv"

	"pgapply/apply/catalog"
	"pgapply/decoder"
	"pgapply/decoder/txn"
)

// A run is a number of consecutive changes, of one or several transactions, that are
// alike: they insert, update or delete rows of one table, set the same columns, and no
// two of them mean the same row. One statement over arrays applies all of them.
//
//	change, change, change ──► run ──► INSERT .. SELECT FROM unnest($1), unnest($2) ..
//	                                   UPDATE .. FROM unnest(..) WHERE key = ..
//
// It must change exactly as many rows as there are changes. Where it does not, or fails,
// the exact replay, which knows no runs, finds out which change it was. The count is
// enough: an element of the arrays meets at most one row, since the key's index is
// unique by the very equality that it is compared with, and a row that several elements
// meet is changed, and counted, once.

const (
	// runRows, runBytes and runCells bound a run, in what the server has to hold for it
	// as in what remains here after it: no run is larger in any of the three. A change
	// that has more by itself is sent by itself.
	runRows  = 1000
	runBytes = 256 << 10
	runCells = 32 << 10
	// shortRun is a run whose changes are sent one by one.
	shortRun = 4
)

// run holds the changes that were taken and not sent yet. Its memory is used again.
type run struct {
	table   *table
	op      operation
	shape   shape
	changes []runChange
	// cells are the values, change after change, as many as the table has columns.
	cells []cell
	data  []byte
	// formats tells for each column in which form its values are: 0 while all are NULL.
	formats []decoder.ValueKind
	// rows are the hashes of the keys.
	rows map[uint64]struct{}
	seed maphash.Seed

	// scratch is the shape of the change at hand, name that of the run's statement.
	scratch, name shape
	arrays        [][]byte
	tuple         decoder.Tuple
}

// runChange says where a change belongs.
type runChange struct {
	transaction *txn.Transaction
	ordinal     int
}

// cell is a value, whose bytes are data[start:end].
type cell struct {
	kind       decoder.ValueKind
	start, end int32
}

// join takes the change into the run, perhaps a new one, if it is one that runs are made
// of. Else it has sent what was taken before, and the change is to follow by itself.
func (s *Session) join(t *table, op operation, search, newer decoder.Tuple) (joined bool, err error) {
	if !s.runnable(t, op, search, newer) {
		return false, s.sendRun()
	}
	r := &s.gathered
	r.scratch = r.scratch[:0]
	tuple := newer
	switch op {
	case opUpdate:
		r.scratch = appendShape(r.scratch, t.bound, search, newer)
	case opDelete:
		tuple = search
	}
	size := length(tuple)
	if size > runBytes {
		return false, s.sendRun()
	}
	key := uint64(0)
	if op != opInsert {
		key = r.hash(t.bound, tuple)
	}
	if len(r.changes) > 0 && !r.continues(t, op, tuple, size, key) {
		if err := s.sendRun(); err != nil {
			return false, err
		}
	}
	if len(r.changes) == 0 {
		r.begin(t, op)
	}
	r.add(tuple, key)
	r.changes = append(r.changes, runChange{s.current, s.ordinal})
	return true, nil
}

// runnable tells whether a change may be part of a run.
func (s *Session) runnable(t *table, op operation, search, newer decoder.Tuple) bool {
	bound := t.bound
	if s.exact || !bound.Runs || s.looks[t.relation.ID] > 0 && !s.running.open {
		return false
	}
	for i, value := range newer {
		if value.Kind == decoder.Binary && !bound.Columns[i].TakesBinary || value.Kind == decoder.Unchanged && op == opInsert {
			return false
		}
	}
	if op == opInsert {
		return true
	}
	if bound.Search != catalog.ByKey || settable(bound) < 0 {
		return false
	}
	same := op == opDelete || sameTuple(search, newer)
	for i := range bound.Columns {
		column := &bound.Columns[i]
		if !column.Key {
			if !same && column.IdentityAlways {
				return false
			}
			continue
		}
		old := search[i]
		if column.Equality == "" || old.Kind == decoder.Unchanged || old.Kind == decoder.Null || old.Kind == decoder.Binary && !column.TakesBinary {
			return false
		}
		if !same && (newer[i].Kind != old.Kind || !bytes.Equal(newer[i].Data, old.Data)) {
			return false // the key changes
		}
	}
	return true
}

// length of the values in bytes.
func length(tuple decoder.Tuple) (bytes int) {
	for _, value := range tuple {
		bytes += len(value.Data)
	}
	return bytes
}

func (r *run) begin(t *table, op operation) {
	r.table, r.op = t, op
	r.shape = append(r.shape[:0], r.scratch...)
	clear(r.rows)
	if r.data == nil {
		r.data = []byte{} // no part of it may be nil, which a value is that is NULL
	}
	r.cells, r.data = r.cells[:0], r.data[:0]
	r.formats = r.formats[:0]
	for range t.bound.Columns {
		r.formats = append(r.formats, 0)
	}
}

// continues tells whether a change goes into the run that has begun.
func (r *run) continues(t *table, op operation, tuple decoder.Tuple, size int, key uint64) bool {
	if r.table != t || r.op != op || !r.shape.equal(r.scratch) {
		return false
	}
	if len(r.changes) == runRows || len(r.data)+size > runBytes || len(r.cells)+len(tuple) > runCells {
		return false
	}
	if op != opInsert {
		if _, met := r.rows[key]; met {
			return false
		}
	}
	for i, value := range tuple {
		if (value.Kind == decoder.Text || value.Kind == decoder.Binary) && r.formats[i] != 0 && r.formats[i] != value.Kind {
			return false
		}
	}
	return true
}

func (r *run) add(tuple decoder.Tuple, key uint64) {
	if r.op != opInsert {
		r.rows[key] = struct{}{}
	}
	for i, value := range tuple {
		c := cell{kind: value.Kind, start: int32(len(r.data))} // at most runBytes
		if r.op == opDelete && !r.table.bound.Columns[i].Key {
			c.kind = decoder.Null // of no interest
		} else if value.Kind == decoder.Text || value.Kind == decoder.Binary {
			r.data = append(r.data, value.Data...)
			r.formats[i] = value.Kind
		}
		c.end = int32(len(r.data))
		r.cells = append(r.cells, c)
	}
}

// forget drops the changes, and what holds their transactions.
func (r *run) forget() {
	clear(r.changes)
	r.changes = r.changes[:0]
}

// hash of the key. Two rows with one hash only end a run early.
func (r *run) hash(bound *catalog.Table, tuple decoder.Tuple) uint64 {
	if r.rows == nil {
		r.rows, r.seed = make(map[uint64]struct{}), maphash.MakeSeed()
	}
	hash := uint64(0)
	for i := range bound.Columns {
		if bound.Columns[i].Key {
			hash = hash*31 + maphash.Bytes(r.seed, tuple[i].Data)
		}
	}
	return hash
}

// sendRun sends what was taken.
func (s *Session) sendRun() error {
	r := &s.gathered
	n := len(r.changes)
	if n == 0 {
		return nil
	}
	t := r.table
	current, ordinal := s.current, s.ordinal
	defer func() { s.current, s.ordinal = current, ordinal }()
	var err error
	if n < shortRun {
		err = s.sendEach()
	} else {
		s.current, s.ordinal = r.changes[n-1].transaction, r.changes[n-1].ordinal
		err = s.sendAll()
	}
	r.forget()
	if err == nil {
		err = s.pin(t)
	}
	if err == nil && n >= shortRun {
		err = s.pinRuns(t)
	}
	if err != nil {
		return s.failure(r.op.message(), t.relation, err)
	}
	if s.pipe.Waiting() > windowRows {
		return s.drain(windowRows / 2)
	}
	return nil
}

// pinRuns makes the target transaction fail if something on the table can tell a run
// from its changes, which was not so when it was bound. What pin watches does not show
// it: triggers, rules and partitions come and go beside the table's own catalog row.
func (s *Session) pinRuns(t *table) error {
	if t.runsPinned == s.begun {
		return nil
	}
	t.runsPinned = s.begun
	s.values = append(s.values[:0], []byte(t.bound.Version.Table))
	return verdict(s.pipe.Exec(s.token(opPin, t), pinRunsStatement, s.values, nil))
}

// sendEach sends the changes as if there had been no run.
func (s *Session) sendEach() error {
	r := &s.gathered
	width := len(r.table.bound.Columns)
	for i, change := range r.changes {
		s.current, s.ordinal = change.transaction, change.ordinal
		r.tuple = r.tuple[:0]
		for _, c := range r.cells[i*width : (i+1)*width] {
			value := decoder.Value{Kind: c.kind}
			if c.kind == decoder.Text || c.kind == decoder.Binary {
				value.Data = r.data[c.start:c.end:c.end]
			}
			r.tuple = append(r.tuple, value)
		}
		var err error
		switch r.op {
		case opInsert:
			err = s.insert(r.table, r.tuple)
		case opUpdate:
			err = s.updateOrDelete(r.table, opUpdate, r.tuple, r.tuple)
		default:
			err = s.updateOrDelete(r.table, opDelete, r.tuple, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sendAll sends the changes as one statement.
func (s *Session) sendAll() error {
	r := &s.gathered
	t := r.table
	list := &t.runs
	r.name = append(append(r.name[:0], byte(r.op)), r.shape...)
	p := find(*list, r.name)
	if p == nil {
		if len(*list) == shapesPerTable {
			s.drop((*list)[0])
			*list = append((*list)[:0], (*list)[1:]...)
		}
		p = s.prepareStatement(t, r.op, r.statement(s.ours), r.name)
		*list = append(*list, p)
	}
	s.values, s.formats = s.values[:0], s.formats[:0]
	for len(r.arrays) < len(p.parameters) {
		r.arrays = append(r.arrays, nil)
	}
	for i, parameter := range p.parameters {
		format := int16(0)
		if r.formats[parameter.column] == decoder.Binary {
			format = 1
			r.arrays[i] = r.binaryArray(r.arrays[i][:0], parameter.column)
		} else {
			r.arrays[i] = r.textArray(r.arrays[i][:0], parameter.column)
		}
		s.values = append(s.values, r.arrays[i])
		s.formats = append(s.formats, format)
	}
	token := s.token(r.op, t)
	token.rows = len(r.changes)
	return verdict(s.pipe.Exec(token, p.name, s.values, s.formats))
}

// statement is the SQL of the run. Its parameters are arrays, one for each column that
// it sets or compares.
func (r *run) statement(also condition) statement {
	bound := r.table.bound
	b := builder{table: bound}
	var from []string
	element := func(column int) string {
		for i, p := range b.parameters {
			if p.column == column {
				return "pgapply_run.c" + strconv.Itoa(i)
			}
		}
		b.parameters = append(b.parameters, parameter{column: column})
		from = append(from, "pg_catalog.unnest("+b.extra(bound.Columns[column].ArrayOID)+")")
		return "pgapply_run.c" + strconv.Itoa(len(from)-1)
	}
	switch r.op {
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
		b.WriteString("UPDATE " + reference(bound) + " AS " + rowAlias + " SET ")
		count := 0
		for i, letter := range r.shape {
			if letter == 's' {
				b.WriteString(separator(count, "", ", ") + quote(bound.Columns[i].Name) + " = " + element(i))
				count++
			}
		}
		if count == 0 {
			name := quote(bound.Columns[settable(bound)].Name)
			b.WriteString(name + " = " + rowAlias + "." + name)
		}
	default:
		b.WriteString("DELETE FROM " + reference(bound) + " AS " + rowAlias)
	}
	// ANY of one is the same as equal, but nothing that the planner could join by in
	// another way than taking one element after the other and finding its row by the
	// index. With a plain = it reads small tables from end to end instead, once and for
	// all: the plan is kept while they grow. So the rows change in the run's order, too.
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
	if r.op == opUpdate {
		b.elements(" FROM ", from)
	} else {
		b.elements(" USING ", from)
	}
	b.WriteString(where)
	if also != nil {
		also(&b)
	}
	return b.build()
}

// elements writes the arrays as the rows of a table.
func (b *builder) elements(keyword string, from []string) {
	b.WriteString(keyword + "ROWS FROM (")
	for i, array := range from {
		b.WriteString(separator(i, "", ", ") + array)
	}
	b.WriteString(") AS pgapply_run (")
	for i := range from {
		b.WriteString(separator(i, "", ", ") + "c" + strconv.Itoa(i))
	}
	b.WriteString(")")
}

// textArray appends the literal of the array of a column's values (arrayfuncs.c).
func (r *run) textArray(to []byte, column int) []byte {
	delimiter := r.table.bound.Columns[column].Delimiter
	to = append(to, '{')
	width := len(r.formats)
	for i := column; i < len(r.cells); i += width {
		if i > column {
			to = append(to, delimiter)
		}
		c := r.cells[i]
		if c.kind == decoder.Null {
			to = append(to, "NULL"...)
			continue
		}
		to = append(to, '"')
		for _, char := range r.data[c.start:c.end] {
			if char == '"' || char == '\\' {
				to = append(to, '\\')
			}
			to = append(to, char)
		}
		to = append(to, '"')
	}
	return append(to, '}')
}

// binaryArray appends the same in binary form (array_recv).
func (r *run) binaryArray(to []byte, column int) []byte {
	nulls := uint32(0)
	width := len(r.formats)
	for i := column; i < len(r.cells); i += width {
		if r.cells[i].kind == decoder.Null {
			nulls = 1
		}
	}
	for _, word := range []uint32{1, nulls, r.table.bound.Columns[column].TypeOID, uint32(len(r.changes)), 1} {
		to = binary.BigEndian.AppendUint32(to, word)
	}
	for i := column; i < len(r.cells); i += width {
		c := r.cells[i]
		if c.kind == decoder.Null {
			to = binary.BigEndian.AppendUint32(to, ^uint32(0))
			continue
		}
		to = binary.BigEndian.AppendUint32(to, uint32(c.end-c.start))
		to = append(to, r.data[c.start:c.end]...)
	}
	return to
}
