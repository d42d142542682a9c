package target

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"go.uber.org/zap"

	"pgapply/apply/catalog"
	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/decoder/txn"
)

// table is a relation of the publisher bound to the target, with the statements
// that were prepared for it on this session.
type table struct {
	relation *decoder.Relation
	// bound is nil when the table is not part of the subscription.
	bound   *catalog.Table
	insert  *prepared
	updates []*prepared
	deletes []*prepared
	// nets are the statements over arrays, and batch the changes that wait for them.
	nets  []*prepared
	batch *batch
	// pinned is the target transaction, by its number, that has pinned the table.
	pinned int
	// batchesPinned is the one that has pinned that it takes batches.
	batchesPinned int
	// unique are its unique indexes, read when a conflict asks for them.
	unique []catalog.UniqueIndex
	// computed are the columns that the target fills itself, read with them.
	computed []catalog.Computed
}

// prepared is a statement as the server knows it.
type prepared struct {
	statement
	name string
	// number is that of the last statement that was prepared for it.
	number int
	shape  shape
	// look precedes the change of a watched table, see foreign.go.
	look *prepared
}

// shapesPerTable bounds the prepared statements of one table and operation. Wide
// rows with many NULLs, searched by row, would otherwise fill the server's memory.
const shapesPerTable = 64

// windowRows is how many outcomes may be unread before the oldest are read: the
// server always has work, and neither side buffers without bound.
const windowRows = 1024

// change sends one change of a transaction.
func (s *Session) change(change txn.Change) error {
	switch message := change.Message.(type) {
	case *decoder.Truncate:
		if err := s.sendBatches(); err != nil {
			return err
		}
		return s.truncate(change.Relations, message)
	case *decoder.LogicalMessage:
		if err := s.sendBatches(); err != nil {
			return err
		}
		return s.message(message)
	}
	t, err := s.table(change.Relation)
	if err != nil {
		return s.failure(change.Message.Type(), change.Relation, err)
	}
	if t.bound == nil {
		s.outcome.NotMember++
		return nil
	}
	var op operation
	var search, newer decoder.Tuple
	switch message := change.Message.(type) {
	case *decoder.Insert:
		op, newer = opInsert, message.New
	case *decoder.Update:
		op, search, newer = opUpdate, message.Old, message.New
		if message.OldKind == decoder.OldNone {
			search = message.New
		}
	case *decoder.Delete:
		op, search = opDelete, message.Old
	}
	joined, err := s.join(t, op, search, newer)
	if err != nil || joined {
		return err
	}
	if op == opInsert {
		err = s.insert(t, newer)
	} else {
		err = s.updateOrDelete(t, op, search, newer)
	}
	if err == nil {
		err = s.pin(t)
	}
	if err != nil {
		return s.failure(change.Message.Type(), change.Relation, err)
	}
	if s.pipe.Waiting() > windowRows {
		return s.drain(windowRows / 2)
	}
	return nil
}

// failure gives a change's own fault its place. What the connection or the server
// said of an earlier statement has its place already.
func (s *Session) failure(operation decoder.Type, relation *decoder.Relation, err error) error {
	if err == nil || placed(err) {
		return err
	}
	return transactionError(s.current, operation, relation, err)
}

// table finds the relation's binding, or makes it.
func (s *Session) table(relation *decoder.Relation) (*table, error) {
	t := s.tables[relation.ID]
	if t != nil && (t.relation == relation || sameRelation(t.relation, relation)) {
		t.relation = relation
		return t, nil
	}
	if err := s.sendBatches(); err != nil {
		return nil, err
	}
	if t != nil {
		s.forget(t)
	}
	if bound := s.boundAhead(relation); bound != nil {
		return s.bind(&table{relation: relation, bound: bound}), nil
	}
	t = &table{relation: relation}
	member := false
	if relation.Namespace != stateSchema {
		var err error
		if member, err = s.options.Member(relation.Namespace, relation.Name); err != nil {
			return nil, err
		}
	}
	if member {
		bound, err := s.load(relation)
		if err != nil && s.mayMiss(relation, err) {
			return t, nil // not kept: from the moment it exists, it takes part
		}
		if err != nil {
			return nil, verdict(err)
		}
		t.bound = bound
	} else if err := s.mustExist(relation); err != nil {
		return nil, err
	}
	return s.bind(t), nil
}

func (s *Session) bind(t *table) *table {
	if t.bound != nil {
		s.rowByRow.note(t.bound.Schema, t.bound.Name, t.bound.RowByRow)
	}
	s.tables[t.relation.ID] = t
	return t
}

// boundAhead is the binding that the relation has among the tables of the group that is
// applied ahead; nil for none.
func (s *Session) boundAhead(relation *decoder.Relation) *catalog.Table {
	for _, keyed := range s.keyed {
		if keyed.relation.ID == relation.ID && sameRelation(keyed.relation, relation) {
			return keyed.bound
		}
	}
	return nil
}

// catalogs asks the target's catalogs between the changes of a table, in their order, so
// that its binding fits what the transaction itself may have locked.
type catalogs struct{ *Session }

// QueryAll implements catalog.QuerierOfAll.
func (c catalogs) QueryAll(sql []string, parameters ...string) ([][][][]byte, error) {
	if err := c.askCatalogs(sql, parameters); err != nil {
		return nil, err
	}
	err := c.drain(0)
	return c.answers, err
}

// askCatalogs sends questions with the same parameters, whose answers are to come. There are few,
// and what takes longest is to plan them: each is prepared once.
func (s *Session) askCatalogs(sql, parameters []string) error {
	s.answers = nil
	for _, query := range sql {
		p := s.questions[query]
		if p == nil {
			p = s.prepareStatement(nil, opAsk, statement{sql: query}, nil)
			s.questions[query] = p
		}
		if err := s.control(opAsk, p.name, parameters...); err != nil {
			return err
		}
	}
	return nil
}

// sameRelation tells whether the publisher has only repeated itself, as it does in
// every streamed transaction.
func sameRelation(a, b *decoder.Relation) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && a.ReplicaIdentity == b.ReplicaIdentity && slices.Equal(a.Columns, b.Columns)
}

// stateSchema holds pgapply's own tables, which are never applied from a publisher.
const stateSchema = "pgapply"

// mustExist reports a published table that the target does not have, although it
// is not part of the subscription: as natively, existence is checked first.
func (s *Session) mustExist(relation *decoder.Relation) error {
	if relation.Namespace == stateSchema {
		return nil
	}
	_, err := catalog.Load(catalogs{s}, &decoder.Relation{Namespace: relation.Namespace, Name: relation.Name}, false)
	if err != nil && s.mayMiss(relation, err) {
		return nil
	}
	return verdict(err)
}

// mayMiss tells whether err says that a table does not exist on the target, and
// that this is to be passed over.
func (s *Session) mayMiss(relation *decoder.Relation, err error) bool {
	mismatch, ok := catalog.AsMismatch(err)
	if !ok || !mismatch.Missing || !s.options.SkipMissingTables {
		return false
	}
	s.log.Warn("a published table does not exist on the target: its changes are left out",
		zap.String("schema", relation.Namespace), zap.String("table", relation.Name))
	return true
}

// forget drops a binding and its statements.
func (s *Session) forget(t *table) {
	delete(s.tables, t.relation.ID)
	if t.insert != nil {
		s.drop(t.insert)
	}
	for _, list := range [][]*prepared{t.updates, t.deletes, t.nets} {
		for _, p := range list {
			s.drop(p)
		}
	}
}

// forgetAll drops every binding, so that the next change of each table reads the
// catalogs again: after an error the target may not be what it was.
func (s *Session) forgetAll() {
	s.foreseen = nil
	for _, t := range s.tables {
		s.forget(t)
	}
	s.forgetUnconfirmed()
}

// forgetUnconfirmed drops the statements that the server may not have.
func (s *Session) forgetUnconfirmed() {
	unconfirmed := func(p *prepared) bool {
		if p.number > s.confirmed {
			s.drop(p)
			return true
		}
		return false
	}
	maps.DeleteFunc(s.questions, func(_ string, p *prepared) bool { return unconfirmed(p) })
	for _, t := range s.tables {
		if t.insert != nil && unconfirmed(t.insert) {
			t.insert = nil
		}
		for _, list := range []*[]*prepared{&t.updates, &t.deletes, &t.nets} {
			*list = slices.DeleteFunc(*list, unconfirmed)
		}
	}
}

func (s *Session) insert(t *table, newer decoder.Tuple) error {
	for i, value := range newer {
		if value.Kind == decoder.Unchanged {
			// A row filter turned an UPDATE into this INSERT, and the publisher
			// did not send the value that the row has there. NULL would be a lie.
			return unsentError(t.bound.Columns[i].Name, "a row that its row filter now lets pass")
		}
	}
	if s.suspected() {
		return s.exactInsert(t, newer)
	}
	if t.insert == nil {
		t.insert = s.prepareStatement(t, opInsert, insertStatement(t.bound), nil)
	}
	return s.execute(t, opInsert, t.insert, nil, newer)
}

func unsentError(column, row string) error {
	return &catalog.MismatchError{
		Reason: fmt.Sprintf(`the publisher did not send the unchanged out-of-line value of column "%s" of %s`, column, row),
		Hint:   "leave the transaction out with `pgapply skip --lsn` and the position above, set REPLICA IDENTITY FULL on the published table, and write the row again",
	}
}

// updateOrDelete sends an UPDATE or, without a new tuple, a DELETE of the row that
// search means.
func (s *Session) updateOrDelete(t *table, op operation, search, newer decoder.Tuple) error {
	if t.bound.Search == catalog.Impossible {
		return t.bound.SearchFault()
	}
	if err := searchable(t.bound, search); err != nil {
		return err
	}
	if s.suspected() {
		return s.exactChange(t, op, search, newer)
	}
	policy, watched := s.watched(t, op)
	s.shape = appendShape(s.shape[:0], t.bound, search, newer)
	if watched {
		s.shape = append(s.shape, 'l')
	}
	list := &t.updates
	if op == opDelete {
		list = &t.deletes
	}
	p := find(*list, s.shape)
	if p == nil {
		if len(*list) == shapesPerTable {
			s.drop((*list)[0])
			*list = append((*list)[:0], (*list)[1:]...)
		}
		p = s.prepareChange(t, op, policy, watched, search, newer)
		*list = append(*list, p)
	}
	if !watched {
		return s.execute(t, op, p, search, newer)
	}
	if err := s.look(t, p.look, search, newer); err != nil {
		return err
	}
	if policy == conflict.LastUpdateWins {
		return s.execute(t, op, p, search, newer, []byte(timestamp(s.current.Time)))
	}
	return s.execute(t, op, p, search, newer)
}

// prepareChange prepares an UPDATE or DELETE of the current shape and, where the
// table is watched, the look that precedes it.
func (s *Session) prepareChange(t *table, op operation, policy conflict.Policy, watched bool, search, newer decoder.Tuple) *prepared {
	also := s.ours
	if watched {
		also = s.condition(policy)
	}
	change := deleteStatement(t.bound, also, search)
	if op == opUpdate {
		change = updateStatement(t.bound, also, search, newer)
	}
	p := s.prepareStatement(t, op, change, s.shape)
	if watched {
		p.look = s.prepareStatement(t, opLook, s.lookStatement(t, op, policy, search, newer), nil)
		p.number = p.look.number
	}
	return p
}

// drop makes the server forget a statement.
func (s *Session) drop(p *prepared) {
	s.pipe.Deallocate(p.name)
	if p.look != nil {
		s.pipe.Deallocate(p.look.name)
	}
}

// searchable rejects a tuple that lacks a value of the key.
func searchable(bound *catalog.Table, search decoder.Tuple) error {
	for i, value := range search {
		if value.Kind == decoder.Unchanged && (bound.Search == catalog.ByRow || bound.Columns[i].Key) {
			return &catalog.MismatchError{
				Reason: fmt.Sprintf(`the publisher did not send column "%s", which the row is searched by`, bound.Columns[i].Name),
				Hint:   "publish the table with a replica identity that has all columns of the target's key",
			}
		}
	}
	return nil
}

func find(list []*prepared, wanted shape) *prepared {
	for _, p := range list {
		if p.shape.equal(wanted) {
			return p
		}
	}
	return nil
}

func (s *Session) prepareStatement(t *table, op operation, statement statement, shape shape) *prepared {
	s.statements++
	p := &prepared{statement: statement, name: "s" + strconv.Itoa(s.statements), number: s.statements, shape: append(shape[:0:0], shape...)}
	s.pipe.Prepare(s.token(op, t), p.name, p.sql, p.types)
	return p
}

// execute sends one change through its statement; extra are the parameters behind
// those of the change. The tuples are the change's own memory: they are copied into
// the connection's buffer before it returns.
func (s *Session) execute(t *table, op operation, p *prepared, search, newer decoder.Tuple, extra ...[]byte) error {
	s.values, s.formats = s.values[:0], s.formats[:0]
	for _, parameter := range p.parameters {
		tuple := newer
		if parameter.search {
			tuple = search
		}
		value := tuple[parameter.column]
		format := int16(0)
		if value.Kind == decoder.Binary {
			if !t.bound.Columns[parameter.column].Takes(value.Data) {
				return binaryError(t, parameter.column)
			}
			format = 1
		}
		s.values = append(s.values, value.Data)
		s.formats = append(s.formats, format)
	}
	for _, value := range extra {
		s.values = append(s.values, value)
		s.formats = append(s.formats, 0)
	}
	return verdict(s.pipe.Exec(s.token(op, t), p.name, s.values, s.formats))
}

func binaryError(t *table, column int) error {
	if t.bound.Columns[column].NamesObjects {
		return &catalog.MismatchError{
			Reason: fmt.Sprintf(`column "%s" arrives in binary form, where what it names is a number from the publisher's catalogs`, t.bound.Columns[column].Name),
			Hint:   "run with --binary=false",
		}
	}
	return &catalog.MismatchError{
		Reason: fmt.Sprintf(`column "%s" arrives in the binary form of the publisher's type, which is not the type of the target's column`, t.bound.Columns[column].Name),
		Hint:   "run with --binary=false, or give the column the publisher's type",
	}
}
