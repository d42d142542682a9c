package decoder

// This file reads the messages that delimit transactions. None of them carries
// a second transaction id inside a stream block.

func (d *Decoder) readBegin(c *cursor) *Begin {
	d.begin = Begin{
		FinalLSN:   c.setLSN("final LSN"),
		CommitTime: c.timestamp("commit time"),
		XID:        c.uint32("transaction id"),
	}
	return &d.begin
}

func (d *Decoder) readCommit(c *cursor) *Commit {
	c.flags(0)
	d.commit = Commit{
		CommitLSN:  c.lsn("commit LSN"),
		EndLSN:     c.lsn("end LSN"),
		CommitTime: c.timestamp("commit time"),
	}
	return &d.commit
}

func (d *Decoder) readOrigin(c *cursor) *Origin {
	d.origin = Origin{LSN: c.lsn("origin LSN"), Name: c.string("origin name")}
	return &d.origin
}

func (d *Decoder) readStreamStart(c *cursor) *StreamStart {
	if d.inStream {
		c.fail(0, "the previous stream block is still open")
	}
	d.streamStart.XID = c.xid()
	start := c.offset
	first := c.uint8("first segment")
	if first > 1 {
		c.fail(start, "first segment must be 0 or 1, not %d", first)
	}
	d.streamStart.First = first == 1
	return &d.streamStart
}

func (d *Decoder) readStreamStop(c *cursor) *StreamStop {
	if !d.inStream {
		c.fail(0, "no stream block is open")
	}
	return &d.streamStop
}

func (d *Decoder) readStreamCommit(c *cursor) *StreamCommit {
	d.streamCommit.XID = c.uint32("transaction id")
	c.flags(0)
	d.streamCommit.CommitLSN = c.lsn("commit LSN")
	d.streamCommit.EndLSN = c.lsn("end LSN")
	d.streamCommit.CommitTime = c.timestamp("commit time")
	return &d.streamCommit
}

// readStreamAbort tells the two forms apart by the frame's length: 9 bytes, or
// 25 with the abort's position and time.
func (d *Decoder) readStreamAbort(c *cursor) *StreamAbort {
	d.streamAbort = StreamAbort{
		XID:    c.uint32("transaction id"),
		SubXID: c.uint32("subtransaction id"),
	}
	if c.remaining() > 0 {
		d.streamAbort.HasPosition = true
		d.streamAbort.AbortLSN = c.lsn("abort LSN")
		d.streamAbort.AbortTime = c.timestamp("abort time")
	}
	return &d.streamAbort
}

func (d *Decoder) readBeginPrepare(c *cursor) *BeginPrepare {
	d.beginPrepare = BeginPrepare(c.prepare())
	return &d.beginPrepare
}

func (d *Decoder) readPrepare(c *cursor) *Prepare {
	c.flags(0)
	d.prepare = c.prepare()
	return &d.prepare
}

func (d *Decoder) readStreamPrepare(c *cursor) *StreamPrepare {
	c.flags(0)
	d.streamPrepare = StreamPrepare(c.prepare())
	return &d.streamPrepare
}

// prepare reads what the three messages about a prepare have in common.
func (c *cursor) prepare() Prepare {
	return Prepare{
		PrepareLSN:  c.setLSN("prepare LSN"),
		EndLSN:      c.setLSN("end LSN"),
		PrepareTime: c.timestamp("prepare time"),
		XID:         c.uint32("transaction id"),
		GID:         c.gid(),
	}
}

func (d *Decoder) readCommitPrepared(c *cursor) *CommitPrepared {
	c.flags(0)
	d.commitPrepared = CommitPrepared{
		CommitLSN:  c.setLSN("commit LSN"),
		EndLSN:     c.setLSN("end LSN"),
		CommitTime: c.timestamp("commit time"),
		XID:        c.uint32("transaction id"),
		GID:        c.gid(),
	}
	return &d.commitPrepared
}

func (d *Decoder) readRollbackPrepared(c *cursor) *RollbackPrepared {
	c.flags(0)
	d.rollbackPrepared = RollbackPrepared{
		PrepareEndLSN:  c.setLSN("end LSN of the prepare"),
		RollbackEndLSN: c.setLSN("end LSN of the rollback"),
		PrepareTime:    c.timestamp("prepare time"),
		RollbackTime:   c.timestamp("rollback time"),
		XID:            c.uint32("transaction id"),
		GID:            c.gid(),
	}
	return &d.rollbackPrepared
}

// xid reads a transaction id that is never zero.
func (c *cursor) xid() uint32 {
	start := c.offset
	xid := c.uint32("transaction id")
	if xid == 0 {
		c.fail(start, "transaction id is zero")
	}
	return xid
}

// gid reads a prepared transaction's name.
func (c *cursor) gid() string {
	start := c.offset
	gid := c.text("transaction name")
	if len(gid) > maxGID {
		c.fail(start, "transaction name of %d bytes exceeds the server's limit of %d", len(gid), maxGID)
		return ""
	}
	return string(gid)
}

// maxGID is GIDSIZE in the server's xact.h without the terminating zero byte.
const maxGID = 199
