package stream

import (
	"context"

	"go.uber.org/zap"

	"pgapply/decoder/txn"
)

// skip leaves out the transaction that ends where Skip says. When a later one
// arrives first, there is no such transaction any more; as natively, the position is
// forgotten then, and t is still to be applied: done is false.
func (s *Stream) skip(ctx context.Context, t *txn.Transaction) (done bool, err error) {
	wanted := s.options.Skip
	if t.EndLSN != wanted {
		s.options.Log.Warn("no transaction ends at the position to skip: it is forgotten", zap.Stringer("skip", wanted))
		return false, s.skipDone(ctx)
	}
	s.options.Log.Warn("skip a transaction, as asked; its changes are kept in pgapply.conflict",
		zap.Uint32("xid", t.XID), zap.Stringer("finished_at", t.EndLSN), zap.Int("changes", t.Len()), zap.Time("committed", t.Time.Time()))
	outcome, err := s.options.Target.Skip(t)
	if err := s.applied([]*txn.Transaction{t}, outcome, err); err != nil {
		return false, err
	}
	return true, s.skipDone(ctx)
}

func (s *Stream) skipDone(ctx context.Context) error {
	if err := s.options.State.ClearSkip(ctx, s.options.Skip); err != nil {
		return err
	}
	s.options.Skip = 0
	s.skipping.Store(s.options.Undone > 0)
	return nil
}

// undone leaves out the changes of the transaction that ends where Undone says. It has
// been passed, perhaps by an earlier stream, where t ends later: done is false then.
func (s *Stream) undone(t *txn.Transaction) (done bool, err error) {
	wanted := s.options.Undone
	s.options.Undone = 0
	s.skipping.Store(s.options.Skip > 0)
	if t.EndLSN != wanted || t.Kind != txn.Prepare {
		return false, nil
	}
	outcome, err := s.options.Target.Forgo(t)
	return true, s.applied([]*txn.Transaction{t}, outcome, err)
}
