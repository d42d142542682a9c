package target

import (
	"strconv"

	"go.uber.org/zap"

	"pgapply/decoder"
)

// messageSQL keeps a logical message of a transaction, in that transaction.
const messageSQL = `INSERT INTO pgapply.message (subscription, prefix, content, transactional, remote_xid, remote_lsn, remote_commit_ts)
	VALUES ($1, $2, $3, true, $4, $5, $6)`

// message handles a logical message of the transaction in work. Whatever its prefix
// and content, it is counted, and kept if that is wanted.
func (s *Session) message(m *decoder.LogicalMessage) error {
	s.outcome.Messages++
	if entry := s.log.Check(zap.DebugLevel, "logical message"); entry != nil {
		entry.Write(zap.ByteString("prefix", m.Prefix), zap.Int("bytes", len(m.Content)), zap.Uint32("xid", s.current.XID))
	}
	if !s.options.KeepMessages {
		return nil
	}
	s.values = append(s.values[:0], []byte(s.options.Subscription), m.Prefix, m.Content,
		strconv.AppendUint(nil, uint64(s.current.XID), 10), []byte(m.LSN.String()), []byte(timestamp(s.current.Time)))
	s.formats = append(s.formats[:0], 0, 0, 1, 0, 0, 0)
	return verdict(s.pipe.Exec(s.token(opOther, nil), messageStatement, s.values, s.formats))
}
