package target

import (
	"errors"
	"slices"
	"strconv"

	"pgapply/decoder/txn"
)

// A transaction that is still running on the publisher is applied as its changes
// arrive, in a target transaction that waits for the end:
//
//	Run ──► Change, Undo ... Settle ──► Change ... ──► End     its turn: COMMIT or PREPARE
//	                                              └──► Abandon
//
// Nothing is decided out of turn. A change whose outcome is not the expected one makes
// any of the calls fail, Abandon rolls everything back, and whoever has the whole
// transaction applies it at its turn.

// errOutOfTurn says that a running transaction has to wait for its turn.
var errOutOfTurn = errors.New("not as expected: the transaction waits for its turn")

// running is what is applied out of turn on this session: a transaction in progress, or
// a group of whole ones, see ahead.go.
type running struct {
	transaction *txn.Transaction // nil for a group
	open        bool
	begun       bool // the target transaction of a group
	// subxid is the subtransaction of the last change.
	subxid uint32
	// savepoints stand before the first change of each subtransaction.
	savepoints []savepointAt
	// counts are the outcomes at the savepoints, as far as the target has answered.
	counts []Outcome
	// truncated: a table was, so that going back changes what tables are bound to.
	truncated bool
}

type savepointAt struct {
	subxid   uint32
	position int64
}

// mostSavepoints bounds the depth of a target transaction. Behind that many, a
// subtransaction that is rolled back takes the whole transaction with it.
const mostSavepoints = 1000

// Run begins to apply a transaction that is in progress. The session must have none.
func (s *Session) Run(xid uint32) {
	// Not the transaction of the stream: others are still writing into that.
	t := &txn.Transaction{Kind: txn.Commit, XID: xid, Streamed: true}
	s.outcome, s.exact, s.suspects = Outcome{}, false, nil
	s.running = running{transaction: t, subxid: xid, savepoints: s.running.savepoints[:0], counts: s.running.counts[:0]}
	s.current, s.ordinal = t, 0
}

// Change sends the next change, which stands at position on the transaction's tape.
func (s *Session) Change(change txn.Change, position int64) error {
	r := &s.running
	if !r.open {
		if err := s.beginTransaction(); err != nil {
			return err
		}
		r.open = true
	}
	if change.SubXID != r.subxid {
		if err := s.enter(change.SubXID, position); err != nil {
			return err
		}
	}
	if change.Relations != nil {
		r.truncated = true
	}
	s.ordinal++
	if err := s.change(change); err != nil {
		return err
	}
	return s.sure()
}

// enter sets a savepoint before the first change of a subtransaction.
func (s *Session) enter(subxid uint32, position int64) error {
	r := &s.running
	r.subxid = subxid
	known := subxid == r.transaction.XID || slices.ContainsFunc(r.savepoints, func(p savepointAt) bool { return p.subxid == subxid })
	if known || len(r.savepoints) == mostSavepoints {
		return nil
	}
	if err := s.sendBatches(); err != nil {
		return err
	}
	r.savepoints = append(r.savepoints, savepointAt{subxid, position})
	return s.savepoint(opSavepoint, "SAVEPOINT", len(r.savepoints)-1)
}

// arrives tells that more may come, and that the target may work on what there is.
func (r *running) arrives() bool { return r.open && r.transaction != nil }

// savepoint sends a command about the savepoint with that number.
func (s *Session) savepoint(op operation, command string, number int) error {
	token := s.token(op, nil)
	token.ordinal = number
	s.pipe.Prepare(token, "", command+" "+s.running.savepointName(number), nil)
	return verdict(s.pipe.Exec(token, "", nil, nil))
}

func (r *running) savepointName(i int) string { return "pgapply_" + strconv.Itoa(i) }

// Undo rolls back everything from the position on.
func (s *Session) Undo(position int64) error {
	r := &s.running
	i := slices.IndexFunc(r.savepoints, func(p savepointAt) bool { return p.position == position })
	if i < 0 {
		return errOutOfTurn
	}
	if err := s.sendBatches(); err != nil {
		return err
	}
	if err := s.savepoint(opUndo, "ROLLBACK TO SAVEPOINT", i); err != nil {
		return err
	}
	if err := s.savepoint(opOther, "RELEASE SAVEPOINT", i); err != nil {
		return err
	}
	r.savepoints, r.subxid = r.savepoints[:i], r.transaction.XID
	// Locks that were taken since are gone: tables have to be pinned anew.
	s.begun++
	if r.truncated {
		s.forgetAll()
	}
	return nil
}

// Settle waits until the target has done all that was sent.
func (s *Session) Settle() error {
	if err := s.sendBatches(); err != nil {
		return err
	}
	if err := s.drain(0); err != nil {
		return err
	}
	return s.sure()
}

// sure fails once it is clear that the transaction cannot go on like this.
func (s *Session) sure() error {
	if s.doubt {
		return errOutOfTurn
	}
	return nil
}

// End commits or prepares what was applied as t, whose turn it is. A prepared one must not
// be there from an earlier time: see [Session.Has].
func (s *Session) End(t *txn.Transaction) (Outcome, error) {
	r := &s.running
	if err := s.Settle(); err != nil {
		return Outcome{}, err
	}
	s.current = t
	if !r.open {
		return s.Apply([]*txn.Transaction{t}) // no change has come, or all were rolled back
	}
	if t.Kind == txn.Prepare {
		if err := s.endWhole(t); err != nil {
			return Outcome{}, err
		}
		if err := s.position(t, ""); err != nil {
			return Outcome{}, err
		}
	} else {
		if err := s.commit(t); err != nil {
			return Outcome{}, err
		}
		s.outcome.Committed, s.outcome.Recorded = 1, t.EndLSN
	}
	s.running.open = false
	return s.outcome, nil
}

// Abandon rolls the running transaction back. The session is as new afterwards; an
// error means that it is lost.
func (s *Session) Abandon() error {
	s.running.open = false
	return s.rollBack()
}
