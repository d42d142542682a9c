package target

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
	"io"
	"slices"

	"pgapply/apply/catalog"
	"pgapply/decoder"
	"pgapply/decoder/txn"
)

// Keys are the hashes of what a group's changes can meet those of another group in: for
// each row, as it was and as it becomes, its values in every unique index whose equality
// is known here, see [catalog.ReadKeys]. Groups with no hash in common may be applied by
// two sessions at a time.
//
// The hashes of one Keys are comparable with each other only, and with one stream's: a
// value has one form there.
type Keys struct {
	// Hashes of the group that Session.Keys was last called for, in no order, some
	// perhaps more than once. Their memory is used again by the next call.
	Hashes []uint64

	plans    map[uint32]*keyPlan // by the publisher's number of the relation
	used     []*keyPlan          // of the group
	call     int
	asked    bool // the target, for the group
	seed     maphash.Seed
	material []byte // what is hashed next
}

// NewKeys makes keys for one stream.
func NewKeys() *Keys { return &Keys{plans: make(map[uint32]*keyPlan), seed: maphash.MakeSeed()} }

// keyPlan is how the changes of a relation tell their keys.
type keyPlan struct {
	table *table
	*catalog.Keys
	call int // the last one that has used it
}

// KeyedTable is a table as it was when the keys of a group were told.
type KeyedTable struct {
	relation *decoder.Relation
	bound    *catalog.Table
}

// Tables are those that the hashes are about: whoever applies the group by them has to
// find them the same.
func (k *Keys) Tables() []KeyedTable {
	tables := make([]KeyedTable, 0, len(k.used))
	for _, plan := range k.used {
		tables = append(tables, KeyedTable{plan.table.relation, plan.table.bound})
	}
	return tables
}

// Recheck has the catalogs read again before the next change of the tables: a group that
// was applied ahead by their keys has come to nothing, and perhaps that was why.
func (s *Session) Recheck(tables []KeyedTable) {
	for _, keyed := range tables {
		if t := s.tables[keyed.relation.ID]; t != nil {
			s.forget(t)
		}
	}
}

// errNoKeys says that a group does not tell its keys.
var errNoKeys = errors.New("a group that cannot tell its keys")

// mostKeyed bounds the changes of a group that tells its keys: a larger one is worth a
// target transaction with nothing beside it.
const mostKeyed = 100_000

// Keys finds out the keys of a group. It reads the group once, and the catalogs for each
// table that it has not met before. False says that the group must be applied with
// nothing beside it: so it is with TRUNCATE, with messages that somebody is to get, with
// tables where something notices the order of changes or whose rows are found by no key,
// with a relation that is not what it was, and after any error, which Apply will meet
// again. The error is a *ConnectionError.
func (s *Session) Keys(group []*txn.Transaction, keys *Keys) (bool, error) {
	end := s.meet(group)
	err := s.collect(group, keys)
	end()
	s.current = nil
	told := err == nil
	if told || errors.Is(err, errNoKeys) {
		err = nil
		if keys.asked {
			err = s.finish()
		}
	}
	if err == nil {
		return told, nil
	}
	if connection, gone := errors.AsType[*ConnectionError](err); gone {
		return false, connection
	}
	return false, s.rollBack()
}

func (s *Session) collect(group []*txn.Transaction, keys *Keys) error {
	keys.Hashes, keys.used, keys.asked = keys.Hashes[:0], keys.used[:0], false
	keys.call++
	count := 0
	for _, t := range group {
		if count += t.Len(); count > mostKeyed {
			return errNoKeys
		}
	}
	for _, t := range group {
		s.current = t
		changes := t.Changes()
		for {
			change, err := changes.Next()
			if err == io.EOF { //nolint:errorlint // Next returns it bare
				break
			}
			if err != nil {
				return err
			}
			if err := s.keysOf(change, keys); err != nil {
				return err
			}
		}
	}
	return nil
}

// keysOf adds the keys of one change.
func (s *Session) keysOf(change txn.Change, keys *Keys) error {
	var search, newer decoder.Tuple
	switch message := change.Message.(type) {
	case *decoder.Insert:
		newer = message.New
	case *decoder.Update:
		search, newer = message.Old, message.New
		if message.OldKind == decoder.OldNone {
			search = message.New
		}
	case *decoder.Delete:
		search = message.Old
	case *decoder.LogicalMessage:
		if s.receive != nil || s.options.KeepMessages {
			return errNoKeys
		}
		return nil
	default:
		return errNoKeys
	}
	plan, err := s.keyPlan(change.Relation, keys)
	if err != nil || plan == nil {
		return err
	}
	if plan.Barrier != "" || search != nil && !plan.Searched {
		return errNoKeys
	}
	for i := range plan.Sets {
		set := &plan.Sets[i]
		if search != nil {
			keys.add(set, search)
		}
		if newer != nil && !sameTuple(search, newer) {
			keys.add(set, newer)
		}
	}
	return nil
}

// keyPlan is how the relation's changes tell their keys; nil where the table is not part
// of the subscription.
func (s *Session) keyPlan(relation *decoder.Relation, keys *Keys) (*keyPlan, error) {
	met := s.tables[relation.ID]
	t, err := s.table(relation)
	if err != nil {
		return nil, err
	}
	keys.asked = keys.asked || t != met
	plan := keys.plans[relation.ID]
	if t.bound == nil {
		return nil, nil
	}
	if plan == nil || plan.table != t {
		before := plan
		read, err := catalog.ReadKeys(t.bound, relation)
		if err != nil {
			return nil, err
		}
		plan = &keyPlan{table: t, Keys: read}
		keys.plans[relation.ID] = plan
		if before != nil && !slices.Equal(before.table.relation.Columns, relation.Columns) {
			return nil, errNoKeys // its values may have another form, and the old one is still about
		}
	}
	if plan.call != keys.call {
		plan.call = keys.call
		keys.used = append(keys.used, plan)
	}
	return plan, nil
}

// add adds what a row has in the index, if it has a value there. A tuple that lacks one,
// be it since the publisher does not send what has not changed, does not take another's
// place in the index.
func (k *Keys) add(set *catalog.KeySet, tuple decoder.Tuple) {
	k.material = binary.BigEndian.AppendUint32(k.material[:0], set.OID)
	for _, column := range set.Columns {
		value := &tuple[column.Position]
		switch value.Kind {
		case decoder.Null:
			if !set.NullsEqual {
				return
			}
			k.material = binary.BigEndian.AppendUint32(k.material, ^uint32(0))
		case decoder.Text, decoder.Binary:
			at := len(k.material)
			k.material = append(k.material, 0, 0, 0, 0)
			k.material = appendKey(k.material, column.Form, value)
			binary.BigEndian.PutUint32(k.material[at:], uint32(len(k.material)-at-4))
		default:
			return
		}
	}
	k.Hashes = append(k.Hashes, maphash.Bytes(k.seed, k.material))
}
