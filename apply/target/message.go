package target

import (
	"fmt"
	"io"
	"strconv"

	"go.uber.org/zap"

	"pgapply/decoder"
	"pgapply/decoder/txn"
)

// messageSQL keeps a logical message of a transaction, in that transaction.
const messageSQL = `INSERT INTO pgapply.message (subscription, prefix, content, transactional, remote_xid, remote_lsn, remote_commit_ts)
	VALUES ($1, $2, $3, true, $4, $5, $6)`

// MessageError says that a logical message was refused by whom it was handed to.
type MessageError struct {
	Prefix string
	Err    error
}

func (e *MessageError) Error() string {
	return fmt.Sprintf("the handler of logical messages refuses one with prefix %q: %s", e.Prefix, e.Err)
}

// Unwrap returns the cause.
func (e *MessageError) Unwrap() error { return e.Err }

// Deliver hands the logical messages of each transaction that is applied to receive,
// in commit order, and within a transaction in the order of its changes. That is the
// last that happens before COMMIT: everything else in the target transaction has gone
// well by then. An error rolls it back. So no transaction is committed before its
// messages were received, and whatever fails later brings them again. Those of a
// skipped transaction are kept in the state instead.
//
// The message is valid until receive returns. Deliver is called before the first Apply.
func (s *Session) Deliver(receive func(*txn.Transaction, *decoder.LogicalMessage) error) {
	s.receive = receive
}

// message handles a logical message of the transaction in work. Whatever its prefix
// and content, it is counted, and kept if that is wanted.
func (s *Session) message(m *decoder.LogicalMessage) error {
	if s.running.arrives() && (s.receive != nil || s.options.KeepMessages) {
		return errOutOfTurn // when it commits is not known, and nobody may hear of it before
	}
	s.noteMessage(m)
	if n := len(s.announced); s.receive != nil && (n == 0 || s.announced[n-1] != s.current) {
		s.announced = append(s.announced, s.current)
	}
	if !s.options.KeepMessages {
		return nil
	}
	return s.keepMessage(m)
}

// skipMessage handles one of a transaction that is left out.
func (s *Session) skipMessage(m *decoder.LogicalMessage) error {
	s.noteMessage(m)
	if !s.options.KeepMessages && s.receive == nil {
		return nil
	}
	return s.keepMessage(m)
}

func (s *Session) noteMessage(m *decoder.LogicalMessage) {
	s.outcome.Messages++
	if entry := s.log.Check(zap.DebugLevel, "logical message"); entry != nil {
		entry.Write(zap.ByteString("prefix", m.Prefix), zap.Int("bytes", len(m.Content)), zap.Uint32("xid", s.current.XID))
	}
}

func (s *Session) keepMessage(m *decoder.LogicalMessage) error {
	s.values = append(s.values[:0], []byte(s.options.Subscription), m.Prefix, m.Content,
		strconv.AppendUint(nil, uint64(s.current.XID), 10), []byte(m.LSN.String()), []byte(timestamp(s.current.Time)))
	s.formats = append(s.formats[:0], 0, 0, 1, 0, 0, 0)
	return verdict(s.pipe.Exec(s.token(opOther, nil), messageStatement, s.values, s.formats))
}

// deliver hands over the messages of the target transaction in work. It reads the
// transactions that have some once more, instead of holding what may be large.
func (s *Session) deliver() error {
	if len(s.announced) == 0 {
		return nil
	}
	if err := s.drain(0); err != nil {
		return err
	}
	for _, t := range s.announced {
		changes := t.Changes()
		for {
			change, err := changes.Next()
			if err == io.EOF { //nolint:errorlint // Next returns it bare
				break
			}
			if err != nil {
				return transactionError(t, decoder.TypeCommit, nil, err)
			}
			m, ok := change.Message.(*decoder.LogicalMessage)
			if !ok {
				continue
			}
			if err := s.receive(t, m); err != nil {
				return transactionError(t, decoder.TypeLogicalMessage, nil, &MessageError{Prefix: string(m.Prefix), Err: err})
			}
		}
	}
	s.announced = s.announced[:0]
	return nil
}
