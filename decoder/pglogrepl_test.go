package decoder

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
)

// The library's parser is an oracle for the messages of protocol 1 and 2.
func TestAgreesWithPglogrepl(t *testing.T) {
	for _, sample := range samples() {
		if !pglogreplKnows(sample.want) {
			continue
		}
		t.Run(sample.name, func(t *testing.T) {
			requireAgreement(t, sample.frame, sample.inStream, sample.want)
		})
	}
}

// pglogreplKnows tells whether the library can be right about a message.
func pglogreplKnows(message Message) bool {
	switch m := message.(type) {
	case *BeginPrepare, *Prepare, *StreamPrepare, *CommitPrepared, *RollbackPrepared:
		return false // protocol 3
	case *StreamAbort:
		return !m.HasPosition // protocol 4
	case *Insert:
		return len(m.New) > 0 // refused as too short
	case *Truncate:
		return len(m.RelationIDs) > 0 // refused as too short
	case *Begin:
		return pglogreplKnowsTime(m.CommitTime)
	case *Commit:
		return pglogreplKnowsTime(m.CommitTime)
	case *StreamCommit:
		return pglogreplKnowsTime(m.CommitTime)
	}
	return true
}

// pglogreplKnowsTime: it counts nanoseconds in 64 bits, which end in 2262.
func pglogreplKnowsTime(t Timestamp) bool {
	const limit = Timestamp(200 * 365 * 24 * time.Hour / time.Microsecond)
	return -limit < t && t < limit
}

// requireAgreement checks that the library reads frame as ours, which Decode
// made of it. Its version 1 parser knows no streams.
func requireAgreement(t testing.TB, frame []byte, inStream bool, ours Message) {
	t.Helper()
	theirs, err := pglogreplParse(frame, func() (pglogrepl.Message, error) { return pglogrepl.ParseV2(frame, inStream) })
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(ours, fromPglogrepl(theirs)), "version 2 of frame %x", frame)

	switch ours.(type) {
	case *StreamStart, *StreamStop, *StreamCommit, *StreamAbort:
		return
	}
	if inStream {
		return
	}
	theirs, err = pglogreplParse(frame, func() (pglogrepl.Message, error) { return pglogrepl.Parse(frame) })
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(ours, fromPglogrepl(theirs)), "version 1 of frame %x", frame)
}

// pglogreplParse turns the library's panics on short input into errors.
func pglogreplParse(frame []byte, parse func() (pglogrepl.Message, error)) (message pglogrepl.Message, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("pglogrepl panics on %x: %v", frame, panicked)
		}
	}()
	return parse()
}

// fromPglogrepl is the message of ours that says the same.
func fromPglogrepl(message pglogrepl.Message) Message {
	switch m := message.(type) {
	case *pglogrepl.BeginMessage:
		return &Begin{m.FinalLSN, fromTime(m.CommitTime), m.Xid}
	case *pglogrepl.CommitMessage:
		return &Commit{m.CommitLSN, m.TransactionEndLSN, fromTime(m.CommitTime)}
	case *pglogrepl.OriginMessage:
		return &Origin{m.CommitLSN, m.Name}
	case *pglogrepl.RelationMessage:
		return fromRelation(0, m)
	case *pglogrepl.RelationMessageV2:
		return fromRelation(m.Xid, &m.RelationMessage)
	case *pglogrepl.TypeMessage:
		return &TypeMessage{0, m.DataType, fromNamespace(m.Namespace), m.Name}
	case *pglogrepl.TypeMessageV2:
		return &TypeMessage{m.Xid, m.DataType, fromNamespace(m.Namespace), m.Name}
	case *pglogrepl.InsertMessage:
		return &Insert{0, m.RelationID, fromTuple(m.Tuple)}
	case *pglogrepl.InsertMessageV2:
		return &Insert{m.Xid, m.RelationID, fromTuple(m.Tuple)}
	case *pglogrepl.UpdateMessage:
		return &Update{0, m.RelationID, OldKind(m.OldTupleType), fromTuple(m.OldTuple), fromTuple(m.NewTuple)}
	case *pglogrepl.UpdateMessageV2:
		return &Update{m.Xid, m.RelationID, OldKind(m.OldTupleType), fromTuple(m.OldTuple), fromTuple(m.NewTuple)}
	case *pglogrepl.DeleteMessage:
		return &Delete{0, m.RelationID, OldKind(m.OldTupleType), fromTuple(m.OldTuple)}
	case *pglogrepl.DeleteMessageV2:
		return &Delete{m.Xid, m.RelationID, OldKind(m.OldTupleType), fromTuple(m.OldTuple)}
	case *pglogrepl.TruncateMessage:
		return fromTruncate(0, m)
	case *pglogrepl.TruncateMessageV2:
		return fromTruncate(m.Xid, &m.TruncateMessage)
	case *pglogrepl.LogicalDecodingMessage:
		return &LogicalMessage{0, m.Transactional, m.LSN, []byte(m.Prefix), m.Content}
	case *pglogrepl.LogicalDecodingMessageV2:
		return &LogicalMessage{m.Xid, m.Transactional, m.LSN, []byte(m.Prefix), m.Content}
	case *pglogrepl.StreamStartMessageV2:
		return &StreamStart{m.Xid, m.FirstSegment == 1}
	case *pglogrepl.StreamStopMessageV2:
		return &StreamStop{}
	case *pglogrepl.StreamCommitMessageV2:
		return &StreamCommit{m.Xid, m.CommitLSN, m.TransactionEndLSN, fromTime(m.CommitTime)}
	case *pglogrepl.StreamAbortMessageV2:
		return &StreamAbort{XID: m.Xid, SubXID: m.SubXid}
	}
	panic(fmt.Sprintf("unexpected %T", message))
}

func fromTime(t time.Time) Timestamp {
	return Timestamp(t.UnixMicro() - postgresEpoch*1_000_000)
}

func fromNamespace(name string) string {
	if name == "" {
		return "pg_catalog"
	}
	return name
}

func fromRelation(xid uint32, m *pglogrepl.RelationMessage) *Relation {
	relation := &Relation{
		xid, m.RelationID, fromNamespace(m.Namespace), m.RelationName, ReplicaIdentity(m.ReplicaIdentity),
		make([]Column, len(m.Columns)),
	}
	for i, column := range m.Columns {
		relation.Columns[i] = Column{
			Key: column.Flags == 1, Name: column.Name, TypeOID: column.DataType, TypeModifier: column.TypeModifier,
		}
	}
	return relation
}

func fromTuple(tuple *pglogrepl.TupleData) Tuple {
	if tuple == nil {
		return nil
	}
	values := make(Tuple, len(tuple.Columns))
	for i, column := range tuple.Columns {
		values[i] = Value{ValueKind(column.DataType), column.Data}
	}
	return values
}

func fromTruncate(xid uint32, m *pglogrepl.TruncateMessage) *Truncate {
	return &Truncate{
		xid, m.Option&pglogrepl.TruncateOptionCascade != 0, m.Option&pglogrepl.TruncateOptionRestartIdentity != 0,
		m.RelationIDs,
	}
}
