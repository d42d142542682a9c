package target

import (
	"errors"
	"time"

	"pgapply/decoder/txn"
	"pgapply/internal/invariant"
)

// While a COMMIT and its answer are on their way the target would have nothing to do. So
// the changes of the next group are sent right behind it:
//
//	Send n      BEGIN; rows
//	Submit      position; COMMIT ──────────────────────────┐
//	Send n+1    BEGIN; rows                                ├─ no Sync in between
//	Confirm     ◄── the tag of COMMIT n ───────────────────┘
//	Submit      position; COMMIT
//
// COMMIT waits for answers only where one may be other than expected and no error, which is
// a matter of how far away the target is: see netStatement.
//
// The order of commits rests on this: COMMIT n+1 is sent only after the tag of COMMIT n was
// read. If anything of n fails, its COMMIT included, the server ignores what follows up to
// the next Sync, which is that of the roll back: neither BEGIN nor rows of n+1 have
// happened. If COMMIT n answers with tag ROLLBACK, and no error, those rows are in a
// transaction block that is still open, and the roll back ends it. If the connection is
// lost, no COMMIT n+1 was sent on it. So in each case n+1 comes again, behind n.

// syncPause is how long COMMITs may follow one another without a Sync: only there does the
// server tell others, such as autovacuum, what the session has done.
const syncPause = time.Second

// unconfirmed is a group whose COMMIT is on its way.
type unconfirmed struct {
	group   []*txn.Transaction // nil where there is none
	outcome Outcome            // if it commits
	done    bool               // its tag was read
	err     error              // what was read instead
}

// open tells whether what became of the group was not read yet.
func (u *unconfirmed) open() bool { return u.group != nil && !u.done && u.err == nil }

// sent is a group whose changes were sent, and nothing of its end.
type sent struct {
	group []*txn.Transaction // nil where there is none
	begun bool
	err   error
	// lost: they have come to nothing together with the group before.
	lost bool
}

// Send sends the changes of a group, behind the COMMIT that Submit has left on its way, if
// it has: then Confirm follows. In any case Submit does. What goes wrong is theirs to say.
func (s *Session) Send(group []*txn.Transaction) {
	invariant.Check(s.sent.group == nil, "a group is sent before the end of the one before")
	s.outcome, s.exact, s.suspects = Outcome{}, false, nil
	s.sent = sent{group: group}
	s.sent.begun, s.sent.err = s.contents(group)
}

// Confirm tells what became of the group that Submit has left on its way, like
// [Session.Apply]. If it did not commit, it is applied anew first, and so will be what was
// sent behind it.
func (s *Session) Confirm() (Outcome, error) {
	invariant.Check(s.unconfirmed.group != nil, "there is nothing to confirm")
	last := s.sent.group == nil
	if last {
		s.sync()
	}
	err := s.await()
	if last && err == nil {
		err = s.drain(0)
	}
	u := s.unconfirmed
	s.unconfirmed = unconfirmed{}
	switch {
	case u.err != nil:
		s.sent.lost, s.suspects = true, nil
		return s.anew(u.group, u.err)
	case err != nil: // it is committed, which only the origin can tell now
		return Outcome{}, &ConnectionError{Err: err}
	}
	return u.outcome, nil
}

// await reads up to what became of the unconfirmed group.
func (s *Session) await() error {
	for s.unconfirmed.open() && s.pipe.Waiting() > 0 {
		if err := s.read(); err != nil {
			return err
		}
	}
	if s.unconfirmed.open() {
		s.unconfirmed.err = &ConnectionError{Err: errors.New("the target has not answered COMMIT")}
	}
	return s.unconfirmed.err
}

// Submit commits the group that was sent last, or applies it in another way, like
// [Session.Apply]. The one before must be confirmed. If more waits it may return when
// COMMIT is on its way: then it is not done, and Confirm has the outcome.
func (s *Session) Submit(more bool) (outcome Outcome, done bool, err error) {
	invariant.Check(s.unconfirmed.group == nil, "a group is to commit before the one before is confirmed")
	next := s.sent
	s.sent = sent{}
	if next.lost {
		outcome, err = s.Apply(next.group)
		return outcome, true, err
	}
	err = next.err
	if err == nil {
		done, err = s.submit(next, more)
	}
	switch {
	case err != nil:
		outcome, err = s.anew(next.group, err)
		return outcome, true, err
	case !done:
		return Outcome{}, false, nil
	}
	return s.outcome, true, nil
}

func (s *Session) submit(next sent, more bool) (done bool, err error) {
	last := next.group[len(next.group)-1]
	if next.begun {
		if err := s.sendCommit(last); err != nil {
			return false, err
		}
		s.outcome.Recorded = last.EndLSN
	}
	s.outcome.Committed = len(next.group)
	// What people are told of it, or have to be, does not wait for the next group.
	if more && next.begun && len(s.records) == 0 && s.outcome.Messages == 0 && time.Since(s.synced) < syncPause {
		s.unconfirmed, s.outcome = unconfirmed{group: next.group, outcome: s.outcome}, Outcome{}
		return false, verdict(s.pipe.Flush())
	}
	return true, s.committed()
}
