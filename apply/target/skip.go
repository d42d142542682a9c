package target

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/pgpipe"
)

// skipped is the type under which the changes of a skipped transaction are kept.
const skipped conflict.Type = "skipped"

const keepSQL = `INSERT INTO pgapply.conflict (subscription, schemaname, relname, conflict_type, operation, remote_xid, remote_commit_lsn,
	remote_commit_ts, remote_origin, replica_identity, remote_tuple, resolution)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, nullif($9, ''), %s, %s, $10)`

// Skip leaves a transaction out because a person asked for it: its changes are kept
// in the state, all of them, and its position is recorded as if it were applied.
// Nothing of the target's tables is needed or touched.
func (s *Session) Skip(t *txn.Transaction) (Outcome, error) { return s.leaveOut(t, s.skip) }

// Forgo leaves out the changes of a transaction that the publisher has prepared, and
// rolled back since. Its end finds an empty one.
func (s *Session) Forgo(t *txn.Transaction) (Outcome, error) { return s.leaveOut(t, s.forgo) }

func (s *Session) leaveOut(t *txn.Transaction, leave func(*txn.Transaction) error) (Outcome, error) {
	s.outcome, s.exact, s.suspects = Outcome{Replayed: true}, true, nil
	s.current, s.ordinal = t, 0
	err := leave(t)
	if err == nil {
		s.outcome.Committed, s.outcome.Recorded = 1, t.EndLSN
		return s.outcome, nil
	}
	if connection, gone := errors.AsType[*ConnectionError](err); gone {
		return Outcome{}, connection
	}
	if lost := s.rollBack(); lost != nil {
		return Outcome{}, lost
	}
	return Outcome{}, err
}

func (s *Session) forgo(t *txn.Transaction) error {
	err := s.prepareEmpty(t)
	if err == nil {
		err = s.position(t, "")
	}
	return s.failure(decoder.TypePrepare, nil, err)
}

func (s *Session) skip(t *txn.Transaction) error {
	switch t.Kind {
	case txn.Prepare:
		if err := s.prepareEmpty(t); err != nil {
			return s.failure(decoder.TypePrepare, nil, err)
		}
	case txn.CommitPrepared, txn.RollbackPrepared:
		name, err := s.undecided(t)
		if err != nil {
			return s.failure(decoder.TypeCommitPrepared, nil, err)
		}
		return s.position(t, name)
	case txn.Commit:
	}
	if err := s.control(opOther, beginStatement); err != nil {
		return err
	}
	changes := t.Changes()
	for {
		change, err := changes.Next()
		if err == io.EOF { //nolint:errorlint // Next returns it bare
			return s.commit(t)
		}
		if err == nil {
			err = s.keep(t, change)
		}
		if err != nil {
			return s.failure(decoder.TypeCommit, nil, err)
		}
		s.ordinal++
	}
}

// prepareEmpty prepares nothing under the name of a transaction whose changes are left
// out, so that its COMMIT PREPARED finds it. That comes first: the changes are kept
// together with the position, once.
func (s *Session) prepareEmpty(t *txn.Transaction) error {
	name, prepared, committed, err := s.findPrepared(t)
	switch {
	case err != nil:
		return err
	case committed:
		return &SkipError{Reason: "it is committed on the target already"}
	case prepared:
		// From a try that was cut off before its position was recorded, perhaps one
		// with the changes.
		if _, err := s.Query("ROLLBACK PREPARED " + literal(name)); err != nil {
			return err
		}
	}
	if err := s.control(opOther, beginStatement); err != nil {
		return err
	}
	return s.endPrepared(t)
}

// undecided refuses to skip the end of a transaction that the target holds as prepared:
// it would remain so for good, with its locks. Otherwise it returns under which name the
// target knows it.
func (s *Session) undecided(t *txn.Transaction) (string, error) {
	name, prepared, _, err := s.findPrepared(t)
	if err == nil && prepared {
		return "", &SkipError{Reason: fmt.Sprintf("it ends prepared transaction %q, whose changes the target holds as %s", t.GID, name), Prepared: name}
	}
	return name, err
}

// SkipError says why a transaction cannot be left out.
type SkipError struct {
	Reason string
	// Prepared is the name on the target of the transaction that it would end.
	Prepared string
}

func (e *SkipError) Error() string { return "the transaction cannot be skipped: " + e.Reason }

func (e *SkipError) hint() string {
	hint := "take it back with `pgapply skip --lsn none`"
	if e.Prepared != "" {
		hint += ", or leave out the changes first: ROLLBACK PREPARED " + literal(e.Prepared) + " on the target"
	}
	return hint
}

// keep writes what a skipped change would have done.
func (s *Session) keep(t *txn.Transaction, change txn.Change) error {
	if err := s.drain(0); err != nil {
		return err
	}
	var search, newer decoder.Tuple
	switch message := change.Message.(type) {
	case *decoder.Insert:
		newer = message.New
	case *decoder.Update:
		search, newer = message.Old, message.New
	case *decoder.Delete:
		search = message.Old
	case *decoder.Truncate:
		for _, relation := range change.Relations {
			if err := s.keepRow(t, message, relation, nil, nil); err != nil {
				return err
			}
		}
		return nil
	case *decoder.LogicalMessage:
		return s.skipMessage(message)
	}
	return s.keepRow(t, change.Message, change.Relation, search, newer)
}

func (s *Session) keepRow(t *txn.Transaction, message decoder.Message, relation *decoder.Relation, search, newer decoder.Tuple) error {
	var parameters []pgpipe.Parameter
	for _, value := range []string{
		s.options.Subscription, relation.Namespace, relation.Name, string(skipped), message.Type().String(),
		fmt.Sprint(t.XID), t.EndLSN.String(), timestamp(t.Time), t.Origin, string(conflict.SkippedTransaction),
	} {
		parameters = append(parameters, pgpipe.Parameter{Value: []byte(value)})
	}
	var objects [2]string
	for i, tuple := range []decoder.Tuple{search, newer} {
		objects[i], parameters = object(relation, tuple, parameters)
	}
	_, err := s.ask(fmt.Sprintf(keepSQL, objects[0], objects[1]), parameters)
	return err
}

// object is an SQL expression for the JSON object of a tuple, by the publisher's
// names alone. Values in binary form appear as the text of a bytea.
func object(relation *decoder.Relation, tuple decoder.Tuple, parameters []pgpipe.Parameter) (string, []pgpipe.Parameter) {
	if len(tuple) == 0 {
		return "NULL", parameters
	}
	var names, values []string
	for i, value := range tuple {
		if value.Kind == decoder.Unchanged {
			continue
		}
		data := value.Data
		if value.Kind == decoder.Binary {
			data = fmt.Appendf(nil, `\\x%x`, data)
		}
		parameters = append(parameters, pgpipe.Parameter{Value: data, Type: textType})
		names = append(names, literal(relation.Columns[i].Name))
		values = append(values, fmt.Sprintf("$%d", len(parameters)))
	}
	return "pg_catalog.jsonb_object(ARRAY[" + strings.Join(names, ", ") + "]::pg_catalog.text[], ARRAY[" +
		strings.Join(values, ", ") + "]::pg_catalog.text[])", parameters
}
