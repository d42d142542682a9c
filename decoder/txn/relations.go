package txn

import (
	"slices"

	"pgapply/decoder"
)

// catalog holds what the publisher has said about its tables and types on this
// connection. The publisher describes a table before its first change and again
// after every change of its description, so the newest description counts. What
// a streamed transaction says about a table may be its own doing and is kept in
// an overlay until the transaction commits.
type catalog struct {
	relations map[uint32]description // by the publisher's oid
	types     map[uint32]*decoder.TypeMessage
	arrivals  uint64 // descriptions so far
	// version changes whenever find may give another answer than before; it is
	// never zero.
	version uint64
}

// description is a Relation and when it arrived. It is immutable.
type description struct {
	relation *decoder.Relation
	arrival  uint64
}

// size is about what a description takes, in bytes.
func (d description) size() int64 {
	const relation, column = 200, 96
	return relation + column*int64(len(d.relation.Columns))
}

func newCatalog() catalog {
	return catalog{
		relations: map[uint32]description{},
		types:     map[uint32]*decoder.TypeMessage{},
		version:   1,
	}
}

// find returns the description of a table as a transaction with that overlay
// sees it, or nil.
func (c *catalog) find(id uint32, o *overlay) *decoder.Relation {
	if relation := o.find(id); relation != nil {
		return relation
	}
	return c.relations[id].relation
}

// describe notes a Relation that arrived in an ordinary transaction or, with an
// overlay, in a streamed one.
func (c *catalog) describe(relation *decoder.Relation, o *overlay) {
	for i := range relation.Columns {
		column := &relation.Columns[i]
		if named, found := c.types[column.TypeOID]; found {
			column.TypeNamespace, column.TypeName = named.Namespace, named.Name
		}
	}
	c.arrivals++
	c.version++
	described := description{relation, c.arrivals}
	if o == nil {
		c.relations[relation.ID] = described
		return
	}
	o.add(described)
}

// merge makes the descriptions of a streamed transaction that has committed
// valid for all: the publisher will not repeat them. One that the publisher has
// replaced since then stays replaced.
func (c *catalog) merge(o *overlay) {
	for id, newest := range o.newest {
		if described := o.entries[newest].description; c.relations[id].arrival < described.arrival {
			c.relations[id] = described
		}
	}
	c.version++
}

// cut takes back the descriptions of an overlay from the given one on.
func (c *catalog) cut(o *overlay, length int) {
	o.cut(length)
	c.version++
}

// overlay holds the descriptions that arrived in one streamed transaction, in
// order, so that a subtransaction that is rolled back can take its own along.
type overlay struct {
	entries []overlayEntry
	newest  map[uint32]int // the last entry of each table
	size    int64          // about what the entries take, in bytes
}

type overlayEntry struct {
	description
	previous int // entry of the same table, or -1
}

func (o *overlay) find(id uint32) *decoder.Relation {
	if o == nil || len(o.entries) == 0 {
		return nil
	}
	newest, found := o.newest[id]
	if !found {
		return nil
	}
	return o.entries[newest].relation
}

func (o *overlay) add(described description) {
	if o.newest == nil {
		o.newest = map[uint32]int{}
	}
	id := described.relation.ID
	previous, found := o.newest[id]
	if !found {
		previous = -1
	}
	o.newest[id] = len(o.entries)
	o.entries = append(o.entries, overlayEntry{described, previous})
	o.size += described.size()
}

func (o *overlay) cut(length int) {
	for i := len(o.entries) - 1; i >= length; i-- {
		o.size -= o.entries[i].size()
		id := o.entries[i].relation.ID
		if previous := o.entries[i].previous; previous >= 0 {
			o.newest[id] = previous
		} else {
			delete(o.newest, id)
		}
		o.entries[i] = overlayEntry{}
	}
	o.entries = o.entries[:length]
}

// relationTable lists the descriptions that the records of one transaction
// refer to by index. What relations has shown never changes in place, so that
// followers may keep it.
type relationTable struct {
	relations []*decoder.Relation
	few       [4]*decoder.Relation
	// positions finds a description once the table is too long to be searched.
	positions map[*decoder.Relation]uint32
}

// longTable is the length from which on a table has positions.
const longTable = 16

// find returns the place of a description.
func (t *relationTable) find(relation *decoder.Relation) (index uint32, found bool) {
	if t.positions != nil {
		index, found = t.positions[relation]
		return index, found
	}
	i := slices.Index(t.relations, relation)
	return uint32(max(i, 0)), i >= 0
}

// add appends a description whether or not the table has it.
func (t *relationTable) add(relation *decoder.Relation) uint32 {
	if t.relations == nil {
		t.relations = t.few[:0]
	}
	t.relations = append(t.relations, relation)
	switch {
	case t.positions != nil:
		t.locate(len(t.relations) - 1)
	case len(t.relations) == longTable:
		t.positions = map[*decoder.Relation]uint32{}
		for i := range t.relations {
			t.locate(i)
		}
	}
	return uint32(len(t.relations) - 1)
}

// locate notes where a description is, unless an earlier place is known.
func (t *relationTable) locate(i int) {
	if _, found := t.positions[t.relations[i]]; !found {
		t.positions[t.relations[i]] = uint32(i)
	}
}

// cut forgets the descriptions from index length on.
func (t *relationTable) cut(length int) {
	for i, relation := range t.relations[length:] {
		if position, found := t.positions[relation]; found && int(position) == length+i {
			delete(t.positions, relation)
		}
	}
	t.relations = slices.Clip(t.relations[:length])
}
