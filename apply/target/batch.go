package target

import (
	"bytes"
	"slices"

	"pgapply/apply/catalog"
	"pgapply/apply/merge"
	"pgapply/decoder"
	"pgapply/decoder/txn"
)

// Net changes. What the changes of a table come to, over one or many transactions that
// become one target transaction, is applied by one statement over arrays for each kind:
//
//	change, change, change ──► batch of each table ──► DELETE .. WHERE key = ANY ($1)
//	                           (package merge)         UPDATE .. FROM (SELECT unnest($1), unnest($2) ..)
//	                                                   SELECT .. (keys that must not be there)
//	                                                   COPY .. FROM STDIN
//
// Each statement must touch exactly as many rows as it has elements. Where it does not, or
// fails, the exact replay, which knows no batches, finds out which change it was. The count
// is enough: an element of the arrays meets at most one row, since the key's index is
// unique by the very equality that it is compared with, and a row that several elements
// meet is changed, and counted, once.
//
// Batches hold changes of tables only on which nothing can tell the difference, see
// [catalog.Table]. So those of different tables may wait beside each other, and only a
// change of any other table, or one that is no row, has all of them sent before it.

const (
	// batchCell is what a value takes beside its bytes, here as in the server.
	batchCell = 16
	// shortBatch is how many changes are not worth more than a statement each.
	shortBatch = 4
	// mostElements bounds the arrays: with longer ones a row costs no less, and the server,
	// which holds what it joins, soon more.
	mostElements = 4096
	// runningBatch bounds the batches of a transaction that still arrives: the target has
	// something to do meanwhile, and little is left at the end.
	runningBatch = 256 << 10
)

// batch holds the changes of one table that were taken and not sent yet. Its memory is
// used again.
type batch struct {
	table *table
	net   *merge.Batch
	key   []int
	// last is where the last change of each row belongs.
	last   []changeAt
	counts counts
}

// changeAt says where a change belongs.
type changeAt struct {
	transaction *txn.Transaction
	ordinal     int
}

// counts are changes by kind.
type counts struct{ inserts, updates, deletes int }

// batches are those that wait, in the order of their first changes.
type batches struct {
	waiting []*batch
	// weight is what they hold, in bytes.
	weight int
	// reordered is the last target transaction, by its number, whose changes come to the
	// target in another order than they were made. One change in each batch keeps it.
	reordered int
	// spare are those without changes, most recently used last.
	spare []*batch

	// Scratch memory.
	name   shape
	shapes []shapeRows
	arrays [][]byte
	copied []byte
	tuple  decoder.Tuple
}

// join takes the change into the batch of its table, if it is one that can be merged.
// Else it has sent what must come before it, and the change is to follow by itself.
func (s *Session) join(t *table, op operation, search, newer decoder.Tuple) (joined bool, err error) {
	switch {
	case s.exact || s.options.MaxBatch == 0:
		return false, nil
	case t.bound.RowByRow != "":
		return false, s.sendBatches()
	case !s.mergeable(t, op, search, newer):
		return false, s.pass(t)
	}
	tuple := newer
	if op == opDelete {
		tuple = search
	}
	limit := s.options.MaxBatch
	if s.running.arrives() {
		limit = min(limit, runningBatch)
	}
	weight := length(tuple) + batchCell*len(tuple)
	if s.batches.weight > 0 && s.batches.weight+weight > limit {
		if err := s.sendBatches(); err != nil {
			return false, err
		}
	}
	if weight > limit {
		return false, nil // by itself, rather than twice
	}
	for {
		b := t.batch
		if b == nil {
			b = s.batches.begin(t)
		}
		before, changes := b.weight(), b.net.Changes()
		if row := b.add(op, tuple); row >= 0 {
			b.note(row, changeAt{s.current, s.ordinal})
			s.batches.weight += b.weight() - before
			if changes > 0 {
				s.batches.reordered = s.begun
			}
			return true, nil
		}
		if changes == 0 { // no batch takes it
			s.batches.drop(b)
			return false, s.pass(t)
		}
		// It does not follow from what the batch holds.
		if err := s.sendBatch(t); err != nil {
			return false, err
		}
	}
}

// pass sends what must come before a change of the table that is to follow by itself, and
// overtakes what waits for other tables.
func (s *Session) pass(t *table) error {
	if err := s.sendBatch(t); err != nil {
		return err
	}
	if len(s.batches.waiting) > 0 {
		s.batches.reordered = s.begun
	}
	return nil
}

// mergeable tells whether a change may be merged with others of its table, which is
// eligible.
func (s *Session) mergeable(t *table, op operation, search, newer decoder.Tuple) bool {
	bound := t.bound
	if s.looks[t.relation.ID] > 0 && !s.running.open {
		return false
	}
	for i := range newer {
		column := &bound.Columns[i]
		switch newer[i].Kind {
		case decoder.Unchanged:
			if op == opInsert {
				return false
			}
			continue
		case decoder.Binary:
			if !column.TakesBinary || column.Widens || op == opInsert && bound.TextCopy {
				return false
			}
		}
		if op == opUpdate && column.ArrayOID == 0 {
			return false
		}
	}
	if bound.Search != catalog.ByKey {
		return op == opInsert
	}
	if op == opInsert {
		search = newer
	}
	if op == opUpdate && settable(bound) < 0 {
		return false
	}
	same := op != opUpdate || sameTuple(search, newer)
	for i := range bound.Columns {
		column := &bound.Columns[i]
		if !column.Key {
			if op == opUpdate && column.IdentityAlways {
				return false // it may be named only where its value is another, which is an error
			}
			continue
		}
		old := &search[i]
		if op == opDelete && column.ArrayOID == 0 {
			return false
		}
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
	for i := range tuple {
		bytes += len(tuple[i].Data)
	}
	return bytes
}

// begin gives the table an empty batch.
func (b *batches) begin(t *table) *batch {
	var next *batch
	if n := len(b.spare); n > 0 {
		next, b.spare = b.spare[n-1], b.spare[:n-1]
	} else {
		next = &batch{net: merge.New()}
	}
	next.table, next.counts = t, counts{}
	next.key = next.key[:0]
	arrays := true
	for i := range t.bound.Columns {
		arrays = arrays && t.bound.Columns[i].ArrayOID != 0
		if t.bound.Columns[i].Key && t.bound.Search == catalog.ByKey {
			next.key = append(next.key, i)
		}
	}
	next.net.Begin(len(t.bound.Columns), next.key, !arrays)
	t.batch = next
	b.waiting = append(b.waiting, next)
	return next
}

func (b *batch) weight() int { return b.net.Bytes() + batchCell*b.net.Cells() }

// add merges a change and returns the number of its row, or -1.
func (b *batch) add(op operation, tuple decoder.Tuple) (row int) {
	switch op {
	case opInsert:
		if row = b.net.Insert(tuple); row >= 0 {
			b.counts.inserts++
		}
	case opUpdate:
		if row = b.net.Update(tuple); row >= 0 {
			b.counts.updates++
		}
	default:
		if row = b.net.Delete(tuple); row >= 0 {
			b.counts.deletes++
		}
	}
	return row
}

func (b *batch) note(row int, at changeAt) {
	if row == len(b.last) {
		b.last = append(b.last, at)
	} else {
		b.last[row] = at
	}
}

// sendBatches sends everything that waits.
func (s *Session) sendBatches() error {
	for len(s.batches.waiting) > 0 {
		if err := s.sendBatch(s.batches.waiting[0].table); err != nil {
			return err
		}
	}
	return nil
}

// sendBatch sends what waits for the table.
func (s *Session) sendBatch(t *table) error {
	b := t.batch
	if b == nil {
		return nil
	}
	if b != s.batches.waiting[0] {
		s.batches.reordered = s.begun
	}
	current, ordinal := s.current, s.ordinal
	op, err := s.send(b)
	s.batches.drop(b)
	s.current, s.ordinal = current, ordinal
	if err == nil {
		err = s.pin(t)
	}
	if err != nil {
		return s.failure(op.message(), t.relation, err)
	}
	if s.pipe.Waiting() > windowRows {
		return s.drain(windowRows / 2)
	}
	return nil
}

// send sends what the batch comes to, one statement for each row if it is short. op is
// what an error is about.
func (s *Session) send(b *batch) (op operation, err error) {
	result := b.net.Result()
	lists := [...]struct {
		op   operation
		rows []int32
	}{{opDelete, b.net.InKeyOrder(result.Deletes)}, {opUpdate, b.net.InKeyOrder(result.Updates)}, {opAbsent, result.Absent}, {opInsert, result.Inserts}}
	short := b.net.Changes() < shortBatch && b.net.Changes() == b.net.Rows()
	for _, list := range lists {
		switch {
		case len(list.rows) == 0:
		case short:
			err = s.sendEach(b, list.op, list.rows)
		case list.op == opUpdate:
			err = s.sendUpdates(b, list.rows)
		case list.op == opInsert:
			err = s.sendInserts(b, list.rows)
		default:
			err = s.sendNet(b, list.op, nil, list.rows)
		}
		if err != nil {
			return list.op, err
		}
	}
	return 0, nil
}

// drop makes a batch a spare one, and drops what holds its transactions.
func (b *batches) drop(old *batch) {
	b.weight -= old.weight()
	old.table.batch, old.table = nil, nil
	clear(old.last)
	old.last = old.last[:0]
	i := slices.Index(b.waiting, old)
	b.waiting = slices.Delete(b.waiting, i, i+1)
	if len(b.spare) < spareBatches {
		b.spare = append(b.spare, old)
	}
}

// spareBatches bounds the memory that waits to be used again.
const spareBatches = 4

// forget drops all changes.
func (b *batches) forget() {
	for len(b.waiting) > 0 {
		b.drop(b.waiting[len(b.waiting)-1])
	}
}

// sendEach sends changes that are one each for their rows, as if there were no batch.
func (s *Session) sendEach(b *batch, op operation, rows []int32) error {
	for _, row := range rows {
		s.current, s.ordinal = b.last[row].transaction, b.last[row].ordinal
		tuple := s.batches.tuple[:0]
		for column := range b.table.bound.Columns {
			value := b.net.Value(row, column)
			if op == opDelete && value.Kind == decoder.Unchanged {
				value.Kind = decoder.Null // beyond the key, of no interest
			}
			tuple = append(tuple, value)
		}
		s.batches.tuple = tuple
		var err error
		switch op {
		case opInsert:
			err = s.insert(b.table, tuple)
		case opUpdate:
			err = s.updateOrDelete(b.table, opUpdate, tuple, tuple)
		default:
			err = s.updateOrDelete(b.table, opDelete, tuple, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shapeRows are the rows of one shape.
type shapeRows struct {
	shape shape
	rows  []int32
}

// sendUpdates sends the updates, those that set the same columns together.
func (s *Session) sendUpdates(b *batch, rows []int32) error {
	used := s.batches.shapes[:0]
	name := s.batches.name
	for _, row := range rows {
		name = name[:0]
		for column := range b.table.bound.Columns {
			c := &b.table.bound.Columns[column]
			switch {
			case !b.net.Sent(row, column):
				name = append(name, 'u')
			case c.IdentityAlways: // of the key, which stays
				name = append(name, 'i')
			default:
				name = append(name, 's')
			}
		}
		i := len(used) - 1
		for i >= 0 && !used[i].shape.equal(name) {
			i--
		}
		if i < 0 {
			i = len(used)
			if i < cap(used) {
				used = used[:i+1]
			} else {
				used = append(used, shapeRows{})
			}
			used[i].shape, used[i].rows = append(used[i].shape[:0], name...), used[i].rows[:0]
		}
		used[i].rows = append(used[i].rows, row)
	}
	s.batches.name, s.batches.shapes = name, used
	for i := range used {
		if err := s.sendNet(b, opUpdate, used[i].shape, used[i].rows); err != nil {
			return err
		}
	}
	return nil
}

// sendInserts copies the rows in. COPY takes a third of the time of an INSERT over arrays,
// but values in one form only.
func (s *Session) sendInserts(b *batch, rows []int32) error {
	uniform, binary := b.net.Uniform()
	if !uniform {
		return s.sendNet(b, opInsert, nil, rows)
	}
	s.batches.copied = b.net.Copy(s.batches.copied[:0], rows)
	form := shape("t")
	if binary {
		form[0] = 'b'
	}
	p, token := s.netStatement(b, opCopy, form, rows)
	return verdict(s.pipe.Copy(token, p.name, s.batches.copied))
}

// sendNet sends statements over arrays for all of the rows.
func (s *Session) sendNet(b *batch, op operation, shape shape, rows []int32) error {
	for part := range slices.Chunk(rows, mostElements) {
		if err := s.sendArrays(b, op, shape, part); err != nil {
			return err
		}
	}
	return nil
}

// sendArrays sends one statement over arrays.
func (s *Session) sendArrays(b *batch, op operation, shape shape, rows []int32) error {
	t := b.table
	p, token := s.netStatement(b, op, shape, rows)
	s.values, s.formats = s.values[:0], s.formats[:0]
	for i, parameter := range p.parameters {
		if i == len(s.batches.arrays) {
			s.batches.arrays = append(s.batches.arrays, nil)
		}
		column := &t.bound.Columns[parameter.column]
		array := b.net.Array(s.batches.arrays[i][:0], rows, parameter.column, column.Delimiter, column.TypeOID)
		format := int16(0)
		if b.net.Binary(parameter.column) {
			format = 1
		}
		s.batches.arrays[i] = array
		s.values = append(s.values, array)
		s.formats = append(s.formats, format)
	}
	return verdict(s.pipe.Exec(token, p.name, s.values, s.formats))
}

// netStatement finds or prepares a statement for those rows of the batch, and makes the
// token of its execution: the first one of a batch carries what counts when it is done.
func (s *Session) netStatement(b *batch, op operation, columns shape, rows []int32) (*prepared, token) {
	last := b.last[rows[len(rows)-1]]
	s.current, s.ordinal = last.transaction, last.ordinal
	p := s.prepareNet(b.table, op, columns)
	token := s.token(op, b.table)
	token.rows, token.counted, token.counts = len(rows), p.counted, b.counts
	b.counts = counts{}
	return p, token
}

func (s *Session) prepareNet(t *table, op operation, columns shape) *prepared {
	name := append(append(s.batches.name[:0], byte(op)), columns...)
	s.batches.name = name
	if p := find(t.nets, name); p != nil {
		return p
	}
	if len(t.nets) == shapesPerTable {
		s.drop(t.nets[0])
		t.nets = append(t.nets[:0], t.nets[1:]...)
	}
	p := s.prepareStatement(t, op, netStatement(t.bound, op, columns, s.ours, s.far()), name)
	t.nets = append(t.nets, p)
	return p
}

// pinBatches makes the target transaction fail if something on the table can tell its
// changes from those in the order in which they were made, which was not so when it was
// bound. What pin watches does not show it: triggers, rules and partitions come and go
// beside the table's own catalog row.
func (s *Session) pinBatches(t *table) error {
	if s.batches.reordered != s.begun || t.batchesPinned == s.begun || t.bound.RowByRow != "" {
		return nil
	}
	t.batchesPinned = s.begun
	version := &t.bound.Version
	s.values = append(s.values[:0], []byte(version.Table))
	statement := pinUnnoticedStatement
	if version.Batches != "" {
		s.values = append(s.values, []byte(version.Batches))
		statement = pinBatchesStatement
	}
	return verdict(s.pipe.Exec(s.token(opPin, t), statement, s.values, nil))
}
