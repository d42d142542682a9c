package decoder

import "strconv"

// Type is the first byte of a message: LogicalRepMsgType in the server's
// logicalproto.h.
type Type byte

// The messages of protocol 1 (publishers from 10), 2 (from 14: streamed
// transactions), 3 (from 15: two-phase commit) and 4 (from 16: position and
// time in StreamAbort).
const (
	TypeBegin            Type = 'B'
	TypeCommit           Type = 'C'
	TypeOrigin           Type = 'O'
	TypeRelation         Type = 'R'
	TypeType             Type = 'Y'
	TypeInsert           Type = 'I'
	TypeUpdate           Type = 'U'
	TypeDelete           Type = 'D'
	TypeTruncate         Type = 'T'
	TypeLogicalMessage   Type = 'M'
	TypeStreamStart      Type = 'S'
	TypeStreamStop       Type = 'E'
	TypeStreamCommit     Type = 'c'
	TypeStreamAbort      Type = 'A'
	TypeBeginPrepare     Type = 'b'
	TypePrepare          Type = 'P'
	TypeCommitPrepared   Type = 'K'
	TypeRollbackPrepared Type = 'r'
	TypeStreamPrepare    Type = 'p'
)

// String is the name by which the server's own worker calls the message in its
// errors (logicalrep_message_type in proto.c).
func (t Type) String() string {
	switch t {
	case TypeBegin:
		return "BEGIN"
	case TypeCommit:
		return "COMMIT"
	case TypeOrigin:
		return "ORIGIN"
	case TypeRelation:
		return "RELATION"
	case TypeType:
		return "TYPE"
	case TypeInsert:
		return "INSERT"
	case TypeUpdate:
		return "UPDATE"
	case TypeDelete:
		return "DELETE"
	case TypeTruncate:
		return "TRUNCATE"
	case TypeLogicalMessage:
		return "MESSAGE"
	case TypeStreamStart:
		return "STREAM START"
	case TypeStreamStop:
		return "STREAM STOP"
	case TypeStreamCommit:
		return "STREAM COMMIT"
	case TypeStreamAbort:
		return "STREAM ABORT"
	case TypeBeginPrepare:
		return "BEGIN PREPARE"
	case TypePrepare:
		return "PREPARE"
	case TypeCommitPrepared:
		return "COMMIT PREPARED"
	case TypeRollbackPrepared:
		return "ROLLBACK PREPARED"
	case TypeStreamPrepare:
		return "STREAM PREPARE"
	}
	return strconv.QuoteRuneToASCII(rune(t))
}

// ReplicaIdentity is pg_class.relreplident: which columns an old tuple holds.
type ReplicaIdentity byte

// The four replica identities.
const (
	IdentityDefault ReplicaIdentity = 'd' // the primary key, or nothing without one
	IdentityNothing ReplicaIdentity = 'n'
	IdentityFull    ReplicaIdentity = 'f' // all columns
	IdentityIndex   ReplicaIdentity = 'i' // the columns of a chosen unique index
)

// OldKind says what the old tuple of an Update or Delete means.
type OldKind byte

// The kinds of old tuples.
const (
	OldNone OldKind = 0   // there is none
	OldKey  OldKind = 'K' // key columns only: Null in any other column means "not sent"
	OldFull OldKind = 'O' // the whole row: Null means NULL
)

// ValueKind says how a column of a tuple was sent.
type ValueKind byte

// The kinds of values.
const (
	Null      ValueKind = 'n'
	Unchanged ValueKind = 'u' // stored out of line and not touched: keep what is there
	Text      ValueKind = 't' // output function of the type
	Binary    ValueKind = 'b' // send function of the type
)
