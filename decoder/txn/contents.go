package txn

import "pgapply/decoder"

// This file handles the messages that a transaction consists of.

func (a *Assembler) insert(m *decoder.Insert, frame []byte) error {
	index, relation, err := a.table(m, m.XID, m.RelationID)
	if err != nil {
		return err
	}
	if len(m.New) != len(relation.Columns) {
		return a.wrongWidth(m, m.New, relation)
	}
	return a.store(m.XID, index, frame)
}

func (a *Assembler) update(m *decoder.Update, frame []byte) error {
	index, relation, err := a.table(m, m.XID, m.RelationID)
	if err != nil {
		return err
	}
	if len(m.New) != len(relation.Columns) {
		return a.wrongWidth(m, m.New, relation)
	}
	if m.OldKind != decoder.OldNone && len(m.Old) != len(relation.Columns) {
		return a.wrongWidth(m, m.Old, relation)
	}
	return a.store(m.XID, index, frame)
}

func (a *Assembler) delete(m *decoder.Delete, frame []byte) error {
	index, relation, err := a.table(m, m.XID, m.RelationID)
	if err != nil {
		return err
	}
	if len(m.Old) != len(relation.Columns) {
		return a.wrongWidth(m, m.Old, relation)
	}
	return a.store(m.XID, index, frame)
}

func (a *Assembler) wrongWidth(m decoder.Message, row decoder.Tuple, relation *decoder.Relation) error {
	return a.violation(m, "a row of %d columns for table %s.%s, which was described with %d",
		len(row), relation.Namespace, relation.Name, len(relation.Columns))
}

// truncate stores the tables as a run in the transaction's table, so that the
// record needs only the first index.
func (a *Assembler) truncate(m *decoder.Truncate, frame []byte) error {
	if err := a.content(m, m.XID); err != nil {
		return err
	}
	first := uint32(len(a.current.relations.relations))
	for _, id := range m.RelationIDs {
		relation := a.catalog.find(id, a.current.overlay)
		if relation == nil {
			return a.unknownTable(m, id)
		}
		a.refer(relation)
	}
	return a.store(m.XID, first, frame)
}

func (a *Assembler) logicalMessage(m *decoder.LogicalMessage, frame []byte) error {
	if !m.Transactional {
		if a.message == nil {
			return nil
		}
		return a.message(m)
	}
	if err := a.content(m, m.XID); err != nil {
		return err
	}
	return a.store(m.XID, noRelation, frame)
}

func (a *Assembler) relation(m *decoder.Relation) error {
	if err := a.content(m, m.XID); err != nil {
		return err
	}
	a.catalog.describe(m, a.current.overlay)
	if a.current.overlay != nil {
		a.account(a.current)
	}
	return nil
}

func (a *Assembler) typeName(m *decoder.TypeMessage) error {
	if err := a.content(m, m.XID); err != nil {
		return err
	}
	a.catalog.types[m.OID] = m
	return nil
}

// origin: the server sends it once, first. Its manual allows several.
func (a *Assembler) origin(m *decoder.Origin) error {
	if a.state == idle {
		return a.misplaced(m)
	}
	a.current.Origin = m.Name
	return nil
}

// content says that a message belongs to the current transaction, in a stream
// block to its subtransaction xid.
func (a *Assembler) content(m decoder.Message, xid uint32) error {
	switch a.state {
	case idle:
		return a.misplaced(m)
	case inStream:
		if a.current.note(xid) {
			a.account(a.current)
		}
	}
	return nil
}

// table begins a change of one table: it returns the table's description as the
// transaction sees it now, and its index there.
func (a *Assembler) table(m decoder.Message, xid, id uint32) (uint32, *decoder.Relation, error) {
	if err := a.content(m, xid); err != nil {
		return 0, nil, err
	}
	o := a.current
	if o.last.relation == id && o.last.version == a.catalog.version {
		return o.last.index, o.relations.relations[o.last.index], nil
	}
	relation := a.catalog.find(id, o.overlay)
	if relation == nil {
		return 0, nil, a.unknownTable(m, id)
	}
	index, found := o.relations.find(relation)
	if !found {
		index = a.refer(relation)
	}
	o.last.relation, o.last.index, o.last.version = id, index, a.catalog.version
	return index, relation, nil
}

// refer adds a description to those that the current transaction refers to.
func (a *Assembler) refer(relation *decoder.Relation) uint32 {
	o := a.current
	o.open.lock()
	index := o.relations.add(relation)
	o.open.unlock()
	a.account(o)
	return index
}

func (a *Assembler) unknownTable(m decoder.Message, id uint32) error {
	return a.violation(m, "the publisher has not described the table with oid %d", id)
}
