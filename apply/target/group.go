package target

import (
	"errors"
	"fmt"
	"io"

	"go.uber.org/zap"

	"pgapply/apply/catalog"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
)

// Outcome is what became of a group.
type Outcome struct {
	// Committed counts the leading transactions of the group that are done.
	Committed int
	// Recorded is the end position that the origin holds now, zero when nothing
	// was written. Transactions behind it that are done had nothing to write.
	Recorded lsn.LSN
	// Rows that were sent, by kind.
	Inserts, Updates, Deletes, Truncates int64
	// Rows to change that the target does not have; they are skipped.
	UpdateMissing, DeleteMissing int64
	// NotMember counts changes of tables that are not part of the subscription.
	NotMember int64
	// Replayed says that the group was applied one by one.
	Replayed bool
}

// operation is what a statement does, as its token says.
type operation uint8

const (
	opOther operation = iota
	opInsert
	opUpdate
	opDelete
	opTruncate
	opCommit
)

func (o operation) message() decoder.Type {
	switch o {
	case opInsert:
		return decoder.TypeInsert
	case opUpdate:
		return decoder.TypeUpdate
	case opDelete:
		return decoder.TypeDelete
	case opTruncate:
		return decoder.TypeTruncate
	}
	return decoder.TypeCommit
}

// token packs what an outcome must be told apart by: the operation, the
// transaction's index in the group, and the table's number.
func (s *Session) token(op operation, t *table) uint64 {
	return uint64(op)<<56 | uint64(s.current)<<32 | uint64(t.number)
}

func unpack(token uint64) (op operation, transaction int, table uint32) {
	return operation(token >> 56), int(token >> 32 & 0xFFFFFF), uint32(token)
}

// Apply applies whole transactions in order and returns when they are committed.
// Several become one target transaction; if that does not go through, they are
// applied one by one. The error is a *ConnectionError, after which the session is
// of no use and only the origin knows what was committed, or a *TransactionError
// of the first transaction that cannot be applied: those before it are committed.
func (s *Session) Apply(group []*txn.Transaction) (Outcome, error) {
	s.outcome, s.exact = Outcome{}, false
	err := s.applyTogether(group)
	if err == nil {
		return s.outcome, nil
	}
	if _, gone := errors.AsType[*ConnectionError](err); gone {
		return Outcome{}, err
	}
	s.log.Debug("apply one by one", zap.Int("transactions", len(group)), zap.Error(err))
	s.outcome, s.exact = Outcome{Replayed: true}, true
	if err := s.rollBack(); err != nil {
		return s.outcome, err
	}
	for i := range group {
		before := s.outcome
		if err := s.applyTogether(group[i : i+1]); err != nil {
			s.outcome = before
			if _, gone := errors.AsType[*ConnectionError](err); !gone {
				if lost := s.rollBack(); lost != nil {
					return before, lost
				}
			}
			return before, err
		}
	}
	return s.outcome, nil
}

// applyTogether applies the group as one target transaction. After an error
// nothing of it is committed, unless the connection is gone.
func (s *Session) applyTogether(group []*txn.Transaction) error {
	s.group = group
	begun := false
	for i, t := range group {
		s.current = i
		if t.Kind != txn.Commit {
			return transactionError(t.XID, t.EndLSN, decoder.TypePrepare, nil,
				fmt.Errorf("two-phase transactions are not there yet (%v)", t.Kind))
		}
		changes := t.Changes()
		for {
			change, err := changes.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return transactionError(t.XID, t.EndLSN, decoder.TypeCommit, nil, err)
			}
			if !begun {
				if err := s.control(opOther, beginStatement); err != nil {
					return err
				}
				begun = true
			}
			if err := s.change(change); err != nil {
				return err
			}
		}
	}
	if begun {
		last := group[len(group)-1]
		if err := s.commit(last); err != nil {
			return err
		}
		s.outcome.Recorded = last.EndLSN
	}
	s.outcome.Committed += len(group)
	return nil
}

// commit sends the origin's position and COMMIT, once every outcome was read and is
// as it should be: a statement that changed no row, or too many, is no error to the
// server.
func (s *Session) commit(last *txn.Transaction) error {
	if err := s.drain(0); err != nil {
		return err
	}
	if err := s.control(opOther, setupStatement, last.EndLSN.String(), timestamp(last.Time)); err != nil {
		return err
	}
	if err := s.control(opCommit, commitStatement); err != nil {
		return err
	}
	return s.finish()
}

func (s *Session) control(op operation, statement string, parameters ...string) error {
	s.values = s.values[:0]
	for _, parameter := range parameters {
		s.values = append(s.values, []byte(parameter))
	}
	return verdict(s.pipe.Exec(uint64(op)<<56|uint64(s.current)<<32, statement, s.values, nil))
}

// drain reads outcomes until at most limit are unread.
func (s *Session) drain(limit int) error {
	for s.pipe.Waiting() > limit {
		result, some, err := s.pipe.Next()
		if err != nil {
			return s.rejected(result.Token, err)
		}
		if !some {
			return nil
		}
		op, index, number := unpack(result.Token)
		switch op {
		case opInsert:
			s.outcome.Inserts += result.Tag.RowsAffected()
		case opUpdate, opDelete:
			if err := s.changed(op, index, s.ordered[number], result.Tag.RowsAffected()); err != nil {
				return err
			}
		case opTruncate:
			s.outcome.Truncates++
		case opCommit:
			// A failed block answers COMMIT without an error.
			if tag := result.Tag.String(); tag != "COMMIT" {
				return s.rejected(result.Token, fmt.Errorf("the target answered COMMIT with %s", tag))
			}
		}
	}
	return nil
}

// rejected gives an error of the pipeline the place of the statement it belongs to.
func (s *Session) rejected(token uint64, err error) error {
	if lost(err) {
		return &ConnectionError{Err: err}
	}
	op, index, number := unpack(token)
	if index >= len(s.group) {
		return err
	}
	t := s.group[index]
	var relation *decoder.Relation
	if op != opOther && op != opCommit {
		relation = s.ordered[number].relation
	}
	return transactionError(t.XID, t.EndLSN, op.message(), relation, err)
}

// changed counts the rows of an UPDATE or DELETE.
func (s *Session) changed(op operation, index int, t *table, rows int64) error {
	switch {
	case rows == 0 && t.bound.Search == catalog.ByRow && !s.exact, rows > 1 && !s.exact:
		return errNotSure
	case rows > 1:
		transaction := s.group[index]
		return transactionError(transaction.XID, transaction.EndLSN, op.message(), t.relation, fmt.Errorf("the key matches %d rows", rows))
	case rows == 0:
		s.missing(op, index, t)
	case op == opUpdate:
		s.outcome.Updates += rows
	default:
		s.outcome.Deletes += rows
	}
	return nil
}

// missing skips a row that the target does not have, as the native subscription does.
func (s *Session) missing(op operation, index int, t *table) {
	kind := "update_missing"
	if op == opDelete {
		kind = "delete_missing"
		s.outcome.DeleteMissing++
	} else {
		s.outcome.UpdateMissing++
	}
	if entry := s.log.Check(zap.WarnLevel, "conflict: the row to change is missing on the target, skipped"); entry != nil {
		transaction := s.group[index]
		entry.Write(zap.String("conflict", kind),
			zap.String("schema", t.relation.Namespace), zap.String("table", t.relation.Name),
			zap.Uint32("xid", transaction.XID), zap.Stringer("finished_at", transaction.EndLSN))
	}
}

// rollBack undoes whatever is open and makes the session as new: no transaction,
// no position that a later commit could carry (invariant I4), no bindings.
func (s *Session) rollBack() error {
	if err := s.pipe.Recover(); err != nil {
		return verdict(err)
	}
	s.group, s.current = nil, 0
	if s.pipe.TxStatus() != 'I' {
		if err := s.control(opOther, rollbackStatement); err != nil {
			return err
		}
	}
	if s.origin != "" {
		s.pipe.Sync()
		if err := s.control(opOther, resetStatement); err != nil {
			return err
		}
	}
	s.forgetAll()
	return s.finish()
}
