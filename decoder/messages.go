package decoder

import (
	"time"

	"pgapply/internal/lsn"
)

// Message is one decoded pgoutput message: a pointer to one of the structs in
// this file. Unless its type says otherwise, a message and every slice in it
// are valid until the next call of Decode or until the frame it was decoded
// from changes, whichever comes first; its strings and numbers may be kept.
//
// LSN names follow the server: a commit or prepare LSN is the start of that WAL
// record, an end LSN the first byte after it.
type Message interface {
	// Type is the message's first byte on the wire.
	Type() Type
}

// The methods that make the structs messages.

func (*Begin) Type() Type            { return TypeBegin }
func (*Commit) Type() Type           { return TypeCommit }
func (*Origin) Type() Type           { return TypeOrigin }
func (*Relation) Type() Type         { return TypeRelation }
func (*TypeMessage) Type() Type      { return TypeType }
func (*Insert) Type() Type           { return TypeInsert }
func (*Update) Type() Type           { return TypeUpdate }
func (*Delete) Type() Type           { return TypeDelete }
func (*Truncate) Type() Type         { return TypeTruncate }
func (*LogicalMessage) Type() Type   { return TypeLogicalMessage }
func (*StreamStart) Type() Type      { return TypeStreamStart }
func (*StreamStop) Type() Type       { return TypeStreamStop }
func (*StreamCommit) Type() Type     { return TypeStreamCommit }
func (*StreamAbort) Type() Type      { return TypeStreamAbort }
func (*BeginPrepare) Type() Type     { return TypeBeginPrepare }
func (*Prepare) Type() Type          { return TypePrepare }
func (*CommitPrepared) Type() Type   { return TypeCommitPrepared }
func (*RollbackPrepared) Type() Type { return TypeRollbackPrepared }
func (*StreamPrepare) Type() Type    { return TypeStreamPrepare }

// Begin opens an ordinary transaction.
type Begin struct {
	FinalLSN   lsn.LSN // start of the commit record; never zero
	CommitTime Timestamp
	XID        uint32
}

// Commit ends the transaction that the last Begin opened.
type Commit struct {
	CommitLSN  lsn.LSN // equals FinalLSN of the Begin
	EndLSN     lsn.LSN
	CommitTime Timestamp
}

// Origin names the replication origin, on the publisher, that the transaction
// came from. It follows Begin, BeginPrepare or the first StreamStart of its
// transaction, and carries no transaction id even inside a stream block.
type Origin struct {
	LSN  lsn.LSN // commit position on that origin; zero in streamed transactions
	Name string
}

// Relation describes a published table. The publisher sends it before the
// table's first change and again after whatever may have changed it, so the
// newest one of an ID always replaces the others. Every Relation is allocated
// anew and belongs to the caller; treat it as immutable once other code sees it.
type Relation struct {
	XID             uint32 // of the (sub)transaction; zero outside a stream block
	ID              uint32 // the publisher's pg_class.oid
	Namespace       string // "pg_catalog" where the wire has an empty string
	Name            string
	ReplicaIdentity ReplicaIdentity
	Columns         []Column // may be empty
}

// Column is one published column of a Relation. Order and number are those of
// the tuples, not those of the table's attribute numbers.
type Column struct {
	Key          bool // part of the replica identity; every column under IdentityFull
	Name         string
	TypeOID      uint32 // the publisher's pg_type.oid
	TypeModifier int32  // pg_attribute.atttypmod, -1 for none

	// TypeNamespace and TypeName are not part of this message: decoder/txn
	// fills them from the TypeMessage of TypeOID. Empty for built-in types.
	TypeNamespace string
	TypeName      string
}

// TypeMessage names a type that is not built in, before the Relation whose
// columns use it. For a domain OID is the domain's own, as in the column, but
// the name is that of the type under it (logicalrep_write_typ in the server's
// proto.c). It is allocated anew and belongs to the caller.
type TypeMessage struct {
	XID       uint32 // of the (sub)transaction; zero outside a stream block
	OID       uint32 // the publisher's pg_type.oid
	Namespace string // "pg_catalog" where the wire has an empty string
	Name      string
}

// Insert is a new row.
type Insert struct {
	XID        uint32 // of the (sub)transaction; zero outside a stream block
	RelationID uint32
	New        Tuple
}

// Update is a changed row. Without an old tuple (OldKind OldNone, Old nil) the
// row is found by the key columns of New.
type Update struct {
	XID        uint32 // of the (sub)transaction; zero outside a stream block
	RelationID uint32
	OldKind    OldKind
	Old        Tuple
	New        Tuple
}

// Delete is a removed row.
type Delete struct {
	XID        uint32 // of the (sub)transaction; zero outside a stream block
	RelationID uint32
	OldKind    OldKind // OldKey or OldFull, never OldNone
	Old        Tuple
}

// Truncate empties tables. The publisher has already expanded CASCADE into
// RelationIDs; the flag only says how the user spelt it.
type Truncate struct {
	XID             uint32 // of the (sub)transaction; zero outside a stream block
	Cascade         bool
	RestartIdentity bool
	RelationIDs     []uint32
}

// LogicalMessage is what pg_logical_emit_message wrote. One that is not
// transactional arrives outside stream blocks, at any place, and also for
// transactions that abort later.
type LogicalMessage struct {
	XID           uint32 // of the (sub)transaction; zero outside a stream block
	Transactional bool
	LSN           lsn.LSN
	Prefix        []byte
	Content       []byte
}

// StreamStart opens a block of changes of a transaction that is still running
// on the publisher. Blocks do not nest.
type StreamStart struct {
	XID   uint32 // of the top-level transaction; never zero
	First bool   // the transaction starts over: forget any earlier block of it
}

// StreamStop closes the block that the last StreamStart opened.
type StreamStop struct{}

// StreamCommit commits a streamed transaction.
type StreamCommit struct {
	XID        uint32
	CommitLSN  lsn.LSN
	EndLSN     lsn.LSN
	CommitTime Timestamp
}

// StreamAbort rolls back a streamed transaction (SubXID equals XID) or one
// subtransaction of it. A publisher may send it for a transaction of which
// nothing was streamed, even under protocol 1.
type StreamAbort struct {
	XID    uint32
	SubXID uint32

	// HasPosition says whether the publisher sent the last two fields, which
	// it does under streaming=parallel only.
	HasPosition bool
	AbortLSN    lsn.LSN
	AbortTime   Timestamp
}

// BeginPrepare opens a transaction that ends with Prepare.
type BeginPrepare struct {
	PrepareLSN  lsn.LSN // never zero
	EndLSN      lsn.LSN // never zero
	PrepareTime Timestamp
	XID         uint32
	GID         string // at most 199 bytes
}

// Prepare ends the transaction that the last BeginPrepare opened: it is to be
// prepared, and a CommitPrepared or RollbackPrepared decides it later.
type Prepare struct {
	PrepareLSN  lsn.LSN // never zero
	EndLSN      lsn.LSN // never zero
	PrepareTime Timestamp
	XID         uint32
	GID         string // at most 199 bytes
}

// StreamPrepare prepares a streamed transaction.
type StreamPrepare struct {
	PrepareLSN  lsn.LSN // never zero
	EndLSN      lsn.LSN // never zero
	PrepareTime Timestamp
	XID         uint32
	GID         string // at most 199 bytes
}

// CommitPrepared commits a prepared transaction.
type CommitPrepared struct {
	CommitLSN  lsn.LSN // never zero
	EndLSN     lsn.LSN // never zero
	CommitTime Timestamp
	XID        uint32
	GID        string // at most 199 bytes
}

// RollbackPrepared rolls a prepared transaction back. The prepare's end and
// time tell whether the subscriber has ever seen that prepare.
type RollbackPrepared struct {
	PrepareEndLSN  lsn.LSN // never zero
	RollbackEndLSN lsn.LSN // never zero
	PrepareTime    Timestamp
	RollbackTime   Timestamp
	XID            uint32
	GID            string // at most 199 bytes
}

// Tuple holds one value for each column of the relation, in its order.
type Tuple []Value

// Value is one column of a row as the publisher encoded it. Data aliases the
// frame and its capacity ends with it, so appending to it copies. It is nil for
// Null and Unchanged and not nil, though perhaps empty, for Text and Binary.
type Value struct {
	Kind ValueKind
	Data []byte
}

// Timestamp is the server's TimestampTz: microseconds since 2000-01-01 UTC.
type Timestamp int64

// postgresEpoch is 2000-01-01 00:00 UTC in seconds since 1970.
const postgresEpoch = 946684800

// Time is the same moment as a time in UTC.
func (t Timestamp) Time() time.Time {
	const second = 1_000_000
	return time.Unix(int64(t)/second+postgresEpoch, int64(t)%second*1000).UTC()
}
