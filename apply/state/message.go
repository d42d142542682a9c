package state

import (
	"context"

	"pgapply/internal/lsn"
)

// RecordMessage keeps a logical message that belongs to no transaction. The
// publisher may send one again after a reconnection: it is kept once. The prefix is in
// the target database's encoding, as it arrived.
func (s *Store) RecordMessage(ctx context.Context, prefix string, content []byte, position lsn.LSN) error {
	_, err := s.exec(ctx, "record a logical message", `
		INSERT INTO pgapply.message (subscription, prefix, content, transactional, remote_lsn)
		VALUES ($1, `+fromBytes("$2")+`, $3, false, $4::text::pg_lsn) ON CONFLICT DO NOTHING`, []byte(prefix), content, position.String())
	return err
}
