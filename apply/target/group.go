package target

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/invariant"
	"pgapply/internal/lsn"
	"pgapply/internal/pgpipe"
)

// Outcome is what became of a group.
type Outcome struct {
	// Committed counts the leading transactions of the group that are done.
	Committed int
	// Recorded is the end position that the origin holds now, zero when nothing
	// was written. Transactions behind it that are done had nothing to write.
	Recorded lsn.LSN
	// Rows that were changed, by kind.
	Inserts, Updates, Deletes, Truncates int64
	// Conflicts that were resolved, by type; nil when there were none.
	Conflicts map[conflict.Type]int64
	// Messages counts the logical messages of transactions.
	Messages int64
	// NotMember counts changes of tables that are not part of the subscription.
	NotMember int64
	// Replayed says that the group was applied one by one.
	Replayed bool
}

// clone returns a copy that shares nothing with the original.
func (o Outcome) clone() Outcome {
	if o.Conflicts != nil {
		conflicts := make(map[conflict.Type]int64, len(o.Conflicts))
		for t, count := range o.Conflicts {
			conflicts[t] = count
		}
		o.Conflicts = conflicts
	}
	return o
}

// recount goes back to the rows that had been changed before.
func (o *Outcome) recount(before Outcome) {
	o.Inserts, o.Updates, o.Deletes, o.Truncates = before.Inserts, before.Updates, before.Deletes, before.Truncates
}

// operation is what a statement does.
type operation uint8

const (
	opOther operation = iota
	opInsert
	opUpdate
	opDelete
	opAbsent
	opCopy
	opLook
	opTruncate
	opAsk
	opPin
	opCommit
	opPrepare
	opSavepoint
	opUndo
)

func (o operation) message() decoder.Type {
	switch o {
	case opInsert, opCopy:
		return decoder.TypeInsert
	case opUpdate:
		return decoder.TypeUpdate
	case opDelete:
		return decoder.TypeDelete
	case opTruncate:
		return decoder.TypeTruncate
	case opPrepare:
		return decoder.TypePrepare
	}
	return decoder.TypeCommit
}

// token is what must be known of a statement when its outcome comes: the change
// that it belongs to. table is nil where it belongs to none.
type token struct {
	op          operation
	transaction *txn.Transaction
	ordinal     int
	table       *table
	// rows is how many rows a statement over arrays is for, and counts the changes that
	// are done with it; of any other both are 0. One that is counted has had that many if
	// it has not failed.
	rows    int
	counted bool
	counts  counts
	// statements is how many had been prepared when it was sent.
	statements int
}

// mustBeRead tells whether the target transaction may commit only if the outcome is the
// expected one. What is left either fails, and with it whatever follows in the pipeline,
// or is done: an INSERT that a trigger keeps out is nothing to stop for.
func (t token) mustBeRead() bool {
	switch t.op {
	case opOther, opPin, opInsert, opCopy:
		return false
	}
	return !t.counted
}

func (s *Session) token(op operation, t *table) token {
	return token{op: op, transaction: s.current, ordinal: s.ordinal, table: t, statements: s.statements}
}

// patience is how often a transaction is tried with the suspects that the last try
// has found, before every change of it is one.
const patience = 8

// Apply applies whole transactions in order and returns when they are committed.
// Several become one target transaction; if that does not go through, smaller groups of
// them do, down to the one that the fault is in. The error is a *ConnectionError, after which the session is
// of no use and only the origin knows what was committed, or a *TransactionError
// of the first transaction that cannot be applied: those before it are committed.
func (s *Session) Apply(group []*txn.Transaction) (Outcome, error) {
	invariant.Check(s.unconfirmed.group == nil, "a group is applied before the one before is confirmed")
	if kind := group[0].Kind; kind == txn.CommitPrepared || kind == txn.RollbackPrepared {
		return s.decide(group[0])
	}
	s.outcome, s.exact, s.suspects = Outcome{}, false, nil
	if err := s.whole(group); err != nil {
		return s.anew(group, err)
	}
	return s.outcome, nil
}

// anew applies a group after a try that failed.
func (s *Session) anew(group []*txn.Transaction, failed error) (Outcome, error) {
	if connection, gone := errors.AsType[*ConnectionError](failed); gone {
		return Outcome{}, connection
	}
	s.outcome = Outcome{Replayed: true}
	err := s.replay(group, failed)
	return s.outcome, err
}

// replay applies a group after a try that failed: in two halves, of which those that fail
// are halved again, down to the transactions that the fault is in. These are applied
// exactly. So one of them costs its group little, and every other one goes through as it
// would have without it.
func (s *Session) replay(group []*txn.Transaction, failed error) error {
	s.log.Debug("apply in smaller groups", zap.Int("transactions", len(group)), zap.Error(failed))
	if err := s.rollBack(); err != nil {
		return err
	}
	if len(group) == 1 {
		s.exact = true
		defer func() { s.exact = false }()
		return s.alone(group)
	}
	for _, half := range [...][]*txn.Transaction{group[:len(group)/2], group[len(group)/2:]} {
		before := s.outcome.clone()
		err := s.whole(half)
		if err == nil {
			continue
		}
		s.outcome = before
		if connection, gone := errors.AsType[*ConnectionError](err); gone {
			return connection
		}
		if err := s.replay(half, err); err != nil {
			return err
		}
	}
	return nil
}

// whole applies the group and ends it as its only or its last transaction says.
func (s *Session) whole(group []*txn.Transaction) error {
	if group[0].Kind == txn.Prepare {
		return s.prepareOnce(group[0], s.together)
	}
	return s.together(group)
}

// alone applies one transaction exactly: as long as a try finds changes whose
// outcome was not the expected one, it is rolled back and tried again with a closer
// look at those.
func (s *Session) alone(one []*txn.Transaction) error {
	before := s.outcome
	for try := 1; ; try++ {
		s.outcome = before.clone()
		err := s.whole(one)
		if err == nil {
			return nil
		}
		s.outcome = before
		if connection, gone := errors.AsType[*ConnectionError](err); gone {
			return connection
		}
		if lost := s.rollBack(); lost != nil {
			return lost
		}
		if !errors.Is(err, errNotSure) {
			return err
		}
		switch try {
		case patience:
			s.suspect(one[0], everyChange)
		case 2 * patience:
			return transactionError(one[0], decoder.TypeCommit, nil,
				fmt.Errorf("the target's tables changed during each of %d tries", try))
		}
	}
}

// everyChange stands for all changes of a transaction.
const everyChange = -1

func (s *Session) suspect(t *txn.Transaction, ordinal int) {
	if s.suspects == nil {
		s.suspects = make(map[*txn.Transaction]map[int]bool)
	}
	if s.suspects[t] == nil {
		s.suspects[t] = make(map[int]bool)
	}
	s.suspects[t][ordinal] = true
}

// suspected tells whether the change in work wants a closer look.
func (s *Session) suspected() bool {
	if !s.exact {
		return false
	}
	changes := s.suspects[s.current]
	return changes[s.ordinal] || changes[everyChange]
}

// together applies the group as one target transaction. After an error nothing of
// it is committed, unless the connection is gone.
func (s *Session) together(group []*txn.Transaction) error {
	begun, err := s.contents(group)
	if err != nil {
		return err
	}
	last := group[len(group)-1]
	if last.Kind == txn.Prepare {
		return s.endWhole(last)
	}
	if begun {
		if err := s.commit(last); err != nil {
			return err
		}
		s.outcome.Recorded = last.EndLSN
	}
	s.outcome.Committed += len(group)
	return nil
}

// contents sends the changes of the group in a target transaction, which begins with
// the first of them: begun tells whether there was one.
func (s *Session) contents(group []*txn.Transaction) (begun bool, err error) {
	defer s.meet(group)()
	for _, t := range group {
		s.current, s.ordinal = t, 0
		// What is prepared is so without any change too: its COMMIT PREPARED will come.
		if !begun && t.Kind == txn.Prepare {
			if err := s.beginTransaction(); err != nil {
				return false, err
			}
			begun = true
		}
		changes := t.Changes()
		for ; ; s.ordinal++ {
			change, err := changes.Next()
			if err == io.EOF { //nolint:errorlint // Next returns it bare
				break
			}
			if err != nil {
				return begun, transactionError(t, decoder.TypeCommit, nil, err)
			}
			if !begun {
				if err := s.beginTransaction(); err != nil {
					return false, err
				}
				begun = true
			}
			if err := s.change(change); err != nil {
				return begun, err
			}
		}
	}
	return begun, nil
}

// beginTransaction begins a target transaction.
func (s *Session) beginTransaction() error {
	s.begun++
	return s.control(opOther, beginStatement)
}

// commit commits the target transaction in work, with the position of its last one.
func (s *Session) commit(last *txn.Transaction) error {
	if err := s.sendCommit(last); err != nil {
		return err
	}
	return s.committed()
}

// sendCommit sends the origin's position and COMMIT, once every outcome was read and is
// as it should be: a statement that changed no row, or too many, is no error to the
// server.
func (s *Session) sendCommit(last *txn.Transaction) error {
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.writePosition(recordStatement, last, s.progressName()); err != nil {
		return err
	}
	return s.control(opCommit, commitStatement)
}

// committed waits until the COMMIT that was sent is done.
func (s *Session) committed() error {
	if err := s.finish(); err != nil {
		return err
	}
	s.logConflicts()
	return nil
}

// settle sees to it that every change becomes what it should, and comes before a position is
// set. Where that needs no answer, which is so for what batches come to and for a few rows
// that are inserted, the end of the transaction follows at once.
func (s *Session) settle() error {
	if err := s.sendBatches(); err != nil {
		return err
	}
	if len(s.announced) > 0 || s.pipe.Awaits(token.mustBeRead) {
		if err := s.drain(0); err != nil {
			return err
		}
	}
	if s.doubt {
		return errNotSure
	}
	// What a deferred trigger refuses comes out here, before the position is set: the
	// server would move the origin forward with a transaction that fails after that.
	if err := s.control(opOther, checkStatement); err != nil {
		return err
	}
	return s.deliver()
}

// utility sends a command that is not prepared ahead.
func (s *Session) utility(op operation, sql string) error {
	token := s.token(op, nil)
	s.pipe.Prepare(token, "", sql, nil)
	return verdict(s.pipe.Exec(token, "", nil, nil))
}

func (s *Session) control(op operation, statement string, parameters ...string) error {
	s.values = s.values[:0]
	for _, parameter := range parameters {
		s.values = append(s.values, []byte(parameter))
	}
	return verdict(s.pipe.Exec(s.token(op, nil), statement, s.values, nil))
}

// drain reads outcomes until at most limit are unread.
func (s *Session) drain(limit int) error {
	for s.pipe.Waiting() > limit {
		if err := s.read(); err != nil {
			return err
		}
	}
	return nil
}

// read reads the next outcome.
func (s *Session) read() error {
	result, some, err := s.pipe.Next()
	switch {
	case err != nil:
		err = s.rejected(result.Token, err)
	case some:
		err = s.outcomeOf(result)
	}
	if err != nil && s.unconfirmed.open() {
		s.unconfirmed.err = err
	}
	return err
}

// counting is the outcome that what is read next counts in: that of the group whose COMMIT
// is on its way, up to there.
func (s *Session) counting() *Outcome {
	if s.unconfirmed.open() {
		return &s.unconfirmed.outcome
	}
	return &s.outcome
}

// outcomeOf takes in what became of a statement.
func (s *Session) outcomeOf(result pgpipe.Result[token]) error {
	s.confirmed = max(s.confirmed, result.Token.statements)
	switch token := result.Token; token.op {
	case opInsert, opUpdate, opDelete, opAbsent, opCopy:
		if token.rows > 0 {
			return s.merged(token, result.Tag)
		}
		s.changed(token, result.Tag.RowsAffected())
	case opLook:
		return s.looked(token, result.Rows)
	case opAsk:
		s.answers = append(s.answers, result.Rows)
	case opTruncate:
		s.counting().Truncates++
	case opSavepoint:
		s.running.counts = append(s.running.counts[:token.ordinal], s.outcome)
	case opUndo:
		s.outcome.recount(s.running.counts[token.ordinal])
	case opCommit, opPrepare:
		// A failed block answers either without an error.
		if tag := result.Tag.String(); tag != "COMMIT" && tag != "PREPARE TRANSACTION" {
			return s.rejected(token, fmt.Errorf("the target answered %s with %s", token.op.message(), tag))
		}
		s.unconfirmed.done = true
	}
	return nil
}

// merged counts the changes of a statement over arrays, which must have had as many rows as
// it has elements. One that is counted has made sure of it, and nothing keeps out a row
// that is inserted: a table where something might is pinned, see pinBatches.
func (s *Session) merged(token token, tag pgconn.CommandTag) error {
	counts := s.counting()
	counts.Inserts += int64(token.counts.inserts)
	counts.Updates += int64(token.counts.updates)
	counts.Deletes += int64(token.counts.deletes)
	expected := int64(token.rows)
	if token.op == opAbsent {
		expected = 0
	}
	switch {
	case token.counted || tag.RowsAffected() == expected:
	case token.op.looks():
		s.doubt = true
	default:
		return &ConnectionError{Err: fmt.Errorf("the target answers %d rows with %s", token.rows, tag)}
	}
	return nil
}

// changed counts the rows of a change that was sent without waiting. An INSERT may be
// kept out by a trigger. Of an UPDATE or DELETE one row is as it should be, or none where
// a look decided for the local row; anything else wants a closer look.
func (s *Session) changed(token token, rows int64) {
	switch {
	case token.op == opInsert:
		s.counting().Inserts += rows
		return
	case s.kept:
		s.kept = false
		if rows == 0 {
			return
		}
	case rows == 1 && token.op == opUpdate:
		s.outcome.Updates++
		return
	case rows == 1:
		s.outcome.Deletes++
		return
	}
	s.doubtful(token)
	s.doubt = true
}

// doubtful makes the change of a statement a suspect. Which one of many it is, is not
// known: that comes out when they are sent one by one.
func (s *Session) doubtful(token token) {
	if token.rows == 0 {
		s.suspect(token.transaction, token.ordinal)
	}
}

// rejected handles an error of the pipeline: that of a change makes it a suspect,
// which a later try looks at closely; any other gets its place.
func (s *Session) rejected(token token, err error) error {
	if lost(err) {
		return &ConnectionError{Err: err}
	}
	if server, ok := errors.AsType[*pgconn.PgError](err); !ok || !strings.HasPrefix(server.Code, integrityClass) && !miscounted(server) {
		s.stale = true
	}
	if token.transaction == nil {
		return err // of no transaction: a query between two
	}
	switch token.op {
	case opInsert, opUpdate, opDelete, opAbsent, opCopy, opLook:
		s.doubtful(token)
		if miscounted(err) {
			return errMiscounted
		}
		return fmt.Errorf("%w: %s", errNotSure, describe(err, true))
	case opAsk:
		return err // with what was asked it gets its place
	case opPin:
		// The table was changed since it was bound. The roll back forgets that.
		return errNotSure
	}
	var relation *decoder.Relation
	if token.table != nil {
		relation = token.table.relation
	}
	return transactionError(token.transaction, token.op.message(), relation, err)
}

// rollBack undoes whatever is open and makes the session as new: no transaction,
// no position that a later commit could carry (invariant I4), and no bindings, unless
// only the rows were at fault.
func (s *Session) rollBack() error {
	if err := s.await(); err != nil { // Confirm will ask for it
		if connection, gone := errors.AsType[*ConnectionError](err); gone {
			return connection
		}
	}
	if err := s.pipe.Recover(); err != nil {
		return verdict(err)
	}
	s.current, s.doubt, s.kept, s.records = nil, false, false, nil
	s.batches.forget()
	s.announced = s.announced[:0]
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
	if s.stale {
		s.forgetAll()
		s.stale = false
	} else {
		s.forgetUnconfirmed()
	}
	return s.finish()
}

// pin makes the target transaction fail if the table is not what it was when it was
// bound. It follows the first change of the table, which has locked it.
func (s *Session) pin(t *table) error {
	if t.pinned != s.begun {
		t.pinned = s.begun
		version := &t.bound.Version
		s.values = append(s.values[:0], []byte(version.Table), []byte(version.TableXID), []byte(version.Columns), []byte(version.Index), []byte(version.IndexXID))
		if err := verdict(s.pipe.Exec(s.token(opPin, t), pinStatement, s.values, nil)); err != nil {
			return err
		}
	}
	return s.pinBatches(t)
}
