package target

import "pgapply/decoder/txn"

// A group of transactions may be applied ahead of its turn, beside those before it:
//
//	Ahead ──► CommitAhead     its turn: COMMIT
//	  └─────► Abandon
//
// As with a transaction that is still running, nothing is decided out of turn. That two
// groups with no key in common come to the same in any order rests on what they do to
// rows: each change means one row, by its key, and finds that it is there, or not, in a
// way that other sessions' locks and unique indexes make exact; see [catalog.ReadKeys].
// It does not hold where something looks at other rows. A foreign key that is checked is
// a trigger, and tables with triggers have no keys; and a table must be when the group is
// applied what it was when the keys were told.

// Ahead applies a group, except for its end, on tables which are those of its keys: so
// whichever is new to the session is bound as it was when they were told. It returns when the target has done all of it. After an error Abandon must follow.
func (s *Session) Ahead(group []*txn.Transaction, tables []KeyedTable) error {
	s.outcome, s.exact, s.suspects = Outcome{}, false, nil
	s.running = running{open: true, savepoints: s.running.savepoints[:0], counts: s.running.counts[:0]}
	s.keyed = tables
	begun, err := s.contents(group)
	s.keyed = nil
	if err != nil || !begun {
		return err
	}
	s.running.begun = true
	if err := s.sendBatches(); err != nil {
		return err
	}
	s.batches.reordered = s.begun // out of turn is another order, too
	for _, keyed := range tables {
		t := s.tables[keyed.relation.ID]
		if t == nil || t.bound == nil || t.bound.Version != keyed.bound.Version {
			s.stale = true
			return errOutOfTurn
		}
		if err := s.pinBatches(t); err != nil {
			return err
		}
	}
	if err := s.settle(); err != nil {
		return err
	}
	return s.drain(0) // what settle has sent
}

// CommitAhead commits the group that Ahead has applied, whose turn it is.
func (s *Session) CommitAhead(group []*txn.Transaction) (Outcome, error) {
	last := group[len(group)-1]
	if s.running.begun {
		if err := s.commit(last); err != nil {
			return Outcome{}, err
		}
		s.outcome.Recorded = last.EndLSN
	}
	s.running.open, s.running.begun = false, false
	s.outcome.Committed = len(group)
	return s.outcome, nil
}
