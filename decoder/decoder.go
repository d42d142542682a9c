package decoder

// Decoder decodes the frames of one stream, each of which it must see in order.
// The zero value is ready to use. It is not safe for concurrent use.
type Decoder struct {
	inStream bool

	// One message of each kind, overwritten by the next of its kind.
	begin            Begin
	commit           Commit
	origin           Origin
	insert           Insert
	update           Update
	delete           Delete
	truncate         Truncate
	logicalMessage   LogicalMessage
	streamStart      StreamStart
	streamStop       StreamStop
	streamCommit     StreamCommit
	streamAbort      StreamAbort
	beginPrepare     BeginPrepare
	prepare          Prepare
	commitPrepared   CommitPrepared
	rollbackPrepared RollbackPrepared
	streamPrepare    StreamPrepare

	// The tuples of the current row message. They alias its frame until the
	// next Decode begins, and their memory serves the next row.
	oldTuple, newTuple Tuple
}

// InStream tells whether a stream block is open after the last frame.
func (d *Decoder) InStream() bool { return d.inStream }

// Reset makes the decoder ready for the first frame of a new connection.
func (d *Decoder) Reset() { *d = Decoder{} }

// Decode decodes the frame of one message, which must be complete. The message
// and all slices in it are valid until the next Decode or until the frame
// changes; from the next Decode on nothing in the decoder refers to the frame.
//
// Any error is a *FormatError, after which the stream cannot be continued: call
// Reset and start a new connection.
func (d *Decoder) Decode(frame []byte) (Message, error) {
	d.forgetFrame()
	c := cursor{frame: frame}
	message := d.read(&c)
	if err := c.finish(); err != nil {
		return nil, err
	}
	switch message.(type) {
	case *StreamStart:
		d.inStream = true
	case *StreamStop:
		d.inStream = false
	}
	return message, nil
}

func (d *Decoder) forgetFrame() {
	clear(d.oldTuple)
	clear(d.newTuple)
	d.oldTuple, d.newTuple = d.oldTuple[:0], d.newTuple[:0]
	d.logicalMessage.Prefix, d.logicalMessage.Content = nil, nil
}

func (d *Decoder) read(c *cursor) Message {
	if len(c.frame) == 0 {
		c.fail(0, "the frame is empty")
		return nil
	}
	switch messageType := Type(c.uint8("message type")); messageType {
	case TypeInsert:
		return d.readInsert(c)
	case TypeUpdate:
		return d.readUpdate(c)
	case TypeDelete:
		return d.readDelete(c)
	case TypeTruncate:
		return d.readTruncate(c)
	case TypeLogicalMessage:
		return d.readLogicalMessage(c)
	case TypeRelation:
		return d.readRelation(c)
	case TypeType:
		return d.readType(c)
	case TypeBegin:
		return d.readBegin(c)
	case TypeCommit:
		return d.readCommit(c)
	case TypeOrigin:
		return d.readOrigin(c)
	case TypeStreamStart:
		return d.readStreamStart(c)
	case TypeStreamStop:
		return d.readStreamStop(c)
	case TypeStreamCommit:
		return d.readStreamCommit(c)
	case TypeStreamAbort:
		return d.readStreamAbort(c)
	case TypeBeginPrepare:
		return d.readBeginPrepare(c)
	case TypePrepare:
		return d.readPrepare(c)
	case TypeStreamPrepare:
		return d.readStreamPrepare(c)
	case TypeCommitPrepared:
		return d.readCommitPrepared(c)
	case TypeRollbackPrepared:
		return d.readRollbackPrepared(c)
	default:
		c.fail(0, "unknown message type")
		return nil
	}
}

// changeXID reads the id of the (sub)transaction that a change belongs to. The
// server sends it inside stream blocks only; elsewhere it is zero, which is
// never a transaction's id.
func (d *Decoder) changeXID(c *cursor) uint32 {
	if !d.inStream {
		return 0
	}
	return c.xid()
}
