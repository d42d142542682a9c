package txn

import (
	"fmt"

	"pgapply/decoder"
)

// state is where in the stream the next message stands.
type state uint8

const (
	idle          state = iota // between transactions and stream blocks
	inTransaction              // after BEGIN
	inPrepare                  // after BEGIN PREPARE
	inStream                   // after STREAM START
)

// add is the state machine. What may come in which state:
//
//	idle           BEGIN, BEGIN PREPARE, PREPARE, STREAM START, STREAM COMMIT,
//	               STREAM PREPARE, STREAM ABORT, COMMIT PREPARED, ROLLBACK PREPARED
//	inTransaction  contents, COMMIT
//	inPrepare      contents, PREPARE
//	inStream       contents, STREAM STOP
//
// where contents are everything else. A MESSAGE that is not transactional may
// come anywhere.
func (a *Assembler) add(frame []byte) (*Transaction, error) {
	message, err := a.decoder.Decode(frame)
	if err != nil {
		return nil, err
	}
	switch m := message.(type) {
	case *decoder.Insert:
		return nil, a.insert(m, frame)
	case *decoder.Update:
		return nil, a.update(m, frame)
	case *decoder.Delete:
		return nil, a.delete(m, frame)
	case *decoder.Truncate:
		return nil, a.truncate(m, frame)
	case *decoder.LogicalMessage:
		return nil, a.logicalMessage(m, frame)
	case *decoder.Relation:
		return nil, a.relation(m)
	case *decoder.TypeMessage:
		return nil, a.typeName(m)
	case *decoder.Origin:
		return nil, a.origin(m)
	case *decoder.Begin:
		return nil, a.begin(m)
	case *decoder.Commit:
		return a.commit(m)
	case *decoder.BeginPrepare:
		return nil, a.beginPrepare(m)
	case *decoder.Prepare:
		return a.prepare(m)
	case *decoder.StreamStart:
		return nil, a.streamStart(m)
	case *decoder.StreamStop:
		return nil, a.streamStop(m)
	case *decoder.StreamCommit:
		return a.streamCommit(m)
	case *decoder.StreamPrepare:
		return a.streamPrepare(m)
	case *decoder.StreamAbort:
		return nil, a.streamAbort(m)
	case *decoder.CommitPrepared:
		return a.commitPrepared(m)
	case *decoder.RollbackPrepared:
		return a.rollbackPrepared(m)
	}
	return nil, a.misplaced(message)
}

// require refuses a message unless the state is the one that it needs.
func (a *Assembler) require(needed state, message decoder.Message) error {
	if a.state != needed {
		return a.misplaced(message)
	}
	return nil
}

// misplaced is the error of a message that must not come now.
func (a *Assembler) misplaced(message decoder.Message) error {
	return &ProtocolError{Message: message.Type(), State: a.describeState()}
}

// violation is the error of a message that contradicts what came before.
func (a *Assembler) violation(message decoder.Message, format string, arguments ...any) error {
	return &ProtocolError{message.Type(), a.describeState(), fmt.Sprintf(format, arguments...)}
}

func (a *Assembler) describeState() string {
	switch a.state {
	case inTransaction:
		return fmt.Sprintf("in transaction %d", a.current.XID)
	case inPrepare:
		return fmt.Sprintf("in transaction %d (to be prepared)", a.current.XID)
	case inStream:
		return fmt.Sprintf("in a stream block of transaction %d", a.current.XID)
	default:
		return "outside a transaction"
	}
}
