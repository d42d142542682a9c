package decoder

// This file reads the messages that describe tables and types. They are rare,
// and their readers outlive the frame: everything in them is allocated anew.

// columnSize is the least number of bytes that a column of a Relation takes:
// flags, an empty name with its zero byte, type and type modifier.
const columnSize = 1 + 1 + 4 + 4

// columnKey is LOGICALREP_IS_REPLICA_IDENTITY in the server's proto.c.
const columnKey = 1

func (d *Decoder) readRelation(c *cursor) *Relation {
	relation := &Relation{
		XID:             d.changeXID(c),
		ID:              c.uint32("relation id"),
		Namespace:       c.namespace(),
		Name:            c.string("relation name"),
		ReplicaIdentity: c.replicaIdentity(),
	}
	relation.Columns = make([]Column, c.columns(columnSize))
	for i := range relation.Columns {
		relation.Columns[i] = Column{
			Key:          c.flags(columnKey) == columnKey,
			Name:         c.string("column name"),
			TypeOID:      c.uint32("column type"),
			TypeModifier: int32(c.uint32("column type modifier")),
		}
	}
	return relation
}

func (d *Decoder) readType(c *cursor) *TypeMessage {
	return &TypeMessage{
		XID:       d.changeXID(c),
		OID:       c.uint32("type id"),
		Namespace: c.namespace(),
		Name:      c.string("type name"),
	}
}

// namespace reads a schema's name. The server sends pg_catalog as an empty
// string to save space (logicalrep_write_namespace in proto.c).
func (c *cursor) namespace() string {
	if name := c.string("namespace"); name != "" {
		return name
	}
	return "pg_catalog"
}

func (c *cursor) replicaIdentity() ReplicaIdentity {
	start := c.offset
	identity := ReplicaIdentity(c.uint8("replica identity"))
	switch identity {
	case IdentityDefault, IdentityNothing, IdentityFull, IdentityIndex:
	default:
		c.fail(start, "unknown replica identity 0x%02x", byte(identity))
	}
	return identity
}
