package decoder

// This file reads changes: rows, truncations and logical messages. Rows are the
// hot path and allocate nothing once the tuples have grown to the widest table.

func (d *Decoder) readInsert(c *cursor) *Insert {
	d.insert.XID = d.changeXID(c)
	d.insert.RelationID = c.uint32("relation id")
	start := c.offset
	if kind := c.uint8("tuple kind"); kind != newTupleKind {
		c.fail(start, "tuple kind 0x%02x instead of N", kind)
	}
	d.newTuple = c.tuple(d.newTuple)
	d.insert.New = d.newTuple
	return &d.insert
}

func (d *Decoder) readUpdate(c *cursor) *Update {
	d.update.XID = d.changeXID(c)
	d.update.RelationID = c.uint32("relation id")
	d.update.OldKind, d.update.Old = OldNone, nil

	start := c.offset
	kind := c.uint8("tuple kind")
	if kind == byte(OldKey) || kind == byte(OldFull) {
		d.oldTuple = c.tuple(d.oldTuple)
		d.update.OldKind, d.update.Old = OldKind(kind), d.oldTuple
		start = c.offset
		kind = c.uint8("tuple kind")
	}
	if kind != newTupleKind {
		c.fail(start, "tuple kind 0x%02x instead of N, or of K or O before it", kind)
	}
	d.newTuple = c.tuple(d.newTuple)
	d.update.New = d.newTuple
	return &d.update
}

func (d *Decoder) readDelete(c *cursor) *Delete {
	d.delete.XID = d.changeXID(c)
	d.delete.RelationID = c.uint32("relation id")
	start := c.offset
	kind := c.uint8("tuple kind")
	if kind != byte(OldKey) && kind != byte(OldFull) {
		c.fail(start, "tuple kind 0x%02x instead of K or O", kind)
	}
	d.oldTuple = c.tuple(d.oldTuple)
	d.delete.OldKind, d.delete.Old = OldKind(kind), d.oldTuple
	return &d.delete
}

// newTupleKind precedes the new row of an Insert or Update.
const newTupleKind = 'N'

// tuple reads a row into the memory of reuse. The result is never nil, not even
// without columns.
func (c *cursor) tuple(reuse Tuple) Tuple {
	count := c.columns(1)
	if reuse == nil || cap(reuse) < count {
		reuse = make(Tuple, count)
	}
	tuple := reuse[:count]
	for i := range tuple {
		c.value(&tuple[i])
	}
	return tuple
}

func (c *cursor) value(value *Value) {
	start := c.offset
	value.Kind = ValueKind(c.uint8("value kind"))
	switch value.Kind {
	case Text, Binary:
		value.Data = c.bytes(c.uint32("value length"), "value")
	case Null, Unchanged:
		value.Data = nil
	default:
		c.fail(start, "unknown value kind 0x%02x", byte(value.Kind))
	}
}

// Options of a Truncate, as in the server's proto.c.
const (
	truncateCascade         = 1
	truncateRestartIdentity = 2
)

func (d *Decoder) readTruncate(c *cursor) *Truncate {
	d.truncate.XID = d.changeXID(c)
	start := c.offset
	count := c.uint32("number of relations")
	flags := c.flags(truncateCascade | truncateRestartIdentity)
	d.truncate.Cascade = flags&truncateCascade != 0
	d.truncate.RestartIdentity = flags&truncateRestartIdentity != 0

	d.truncate.RelationIDs = d.truncate.RelationIDs[:0]
	for range c.fits(count, 4, start, "relations") {
		d.truncate.RelationIDs = append(d.truncate.RelationIDs, c.uint32("relation id"))
	}
	return &d.truncate
}

// messageTransactional is MESSAGE_TRANSACTIONAL in the server's proto.c.
const messageTransactional = 1

// readLogicalMessage: a message that is not transactional belongs to no
// transaction, and the server sends none inside a stream block, where it could
// not be told from one that has a transaction id.
func (d *Decoder) readLogicalMessage(c *cursor) *LogicalMessage {
	d.logicalMessage.XID = d.changeXID(c)
	start := c.offset
	d.logicalMessage.Transactional = c.flags(messageTransactional) != 0
	if d.inStream && !d.logicalMessage.Transactional {
		c.fail(start, "a message that is not transactional stands inside a stream block")
	}
	d.logicalMessage.LSN = c.lsn("message LSN")
	d.logicalMessage.Prefix = c.text("prefix")
	d.logicalMessage.Content = c.bytes(c.uint32("content length"), "content")
	return &d.logicalMessage
}
