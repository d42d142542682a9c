package target

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
)

// Prepared transactions of the publisher are prepared transactions here, under a name
// of ours: the publisher's may be empty, or taken.
//
//	PREPARE            BEGIN; rows; progress (with the name); stamp; PREPARE TRANSACTION
//	COMMIT PREPARED    stamp; COMMIT PREPARED, which makes the progress with the name visible
//	ROLLBACK PREPARED  stamp; ROLLBACK PREPARED, which takes it away
//
// each followed by a small transaction that records the position. Whatever is cut off
// between the two comes again, and is told from the first time: a PREPARE by the name,
// COMMIT PREPARED by the progress that bears it.

// preparedName is the name on the target of a transaction that the publisher prepared.
// Names of prepared transactions are unique in a cluster, transaction numbers come
// again: the name carries database and position.
func (s *Session) preparedName(xid uint32, prepareEnd lsn.LSN) string {
	return s.preparedPrefix(xid) + strings.ToUpper(strconv.FormatUint(uint64(prepareEnd), 16))
}

func (s *Session) preparedPrefix(xid uint32) string {
	return PreparedPrefix(s.options.Subscription, s.options.DatabaseOID) + strconv.FormatUint(uint64(xid), 10) + "_"
}

// PreparedPrefix begins the names of all prepared transactions of a subscription in the
// database with that OID. What follows are the publisher's transaction number and the
// position of its PREPARE, in decimal and hexadecimal digits with _ in between.
func PreparedPrefix(subscription string, databaseOID uint32) string {
	return fmt.Sprintf("pgapply_%s_%d_", subscription, databaseOID)
}

// findPrepared looks for the transaction that t prepares or decides about: whether the
// target holds it as prepared, and whether it is committed already. The name is empty
// where the target knows nothing of it.
func (s *Session) findPrepared(t *txn.Transaction) (name string, prepared, committed bool, err error) {
	prefix := s.preparedPrefix(t.XID)
	rows, err := s.Query(`
		SELECT gid, true FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database() AND pg_catalog.starts_with(gid, $1)
		UNION ALL
		SELECT gid, false FROM pgapply.progress WHERE subscription = $2 AND pg_catalog.starts_with(gid, $1)`, prefix, s.options.Subscription)
	if err != nil {
		return "", false, false, err
	}
	wanted := lsn.LSN(0) // any: COMMIT PREPARED does not tell
	switch t.Kind {
	case txn.Prepare:
		wanted = t.EndLSN
	case txn.RollbackPrepared:
		wanted = t.PrepareEndLSN
	case txn.Commit, txn.CommitPrepared:
	}
	var newest lsn.LSN
	for _, row := range rows {
		position, err := strconv.ParseUint(string(row[0][len(prefix):]), 16, 64)
		at := lsn.LSN(position)
		if err != nil || wanted != 0 && at != wanted || at < newest {
			continue // another subscription's, or another transaction of that number
		}
		if at > newest {
			newest, prepared, committed = at, false, false
		}
		name = string(row[0])
		if string(row[1]) == "t" {
			prepared = true
		} else {
			committed = true
		}
	}
	return name, prepared, committed, nil
}

// prepareOnce applies a transaction that the publisher has prepared, unless the target
// has it from an earlier time.
func (s *Session) prepareOnce(t *txn.Transaction, contents func([]*txn.Transaction) error) error {
	has, err := s.Has(t)
	if err != nil {
		return err
	}
	if !has {
		if err := contents([]*txn.Transaction{t}); err != nil {
			return err
		}
	}
	return s.position(t, "")
}

// Has tells whether the target has a transaction that the publisher has prepared from an
// earlier time. Whoever applied its changes once more would wait for the first ones.
func (s *Session) Has(t *txn.Transaction) (bool, error) {
	s.current = t
	_, prepared, committed, err := s.findPrepared(t)
	return prepared || committed, s.failure(decoder.TypePrepare, nil, err)
}

// endWhole is endPrepared for one whose changes were applied.
func (s *Session) endWhole(t *txn.Transaction) error {
	if err := s.endPrepared(t); err != nil {
		return err
	}
	if s.options.Whole != nil && s.outcome.NotMember == 0 {
		s.options.Whole(s.preparedName(t.XID, t.EndLSN))
	}
	return nil
}

// endPrepared ends the target transaction in work as a prepared one.
func (s *Session) endPrepared(t *txn.Transaction) error {
	if err := s.settle(); err != nil {
		return err
	}
	name := s.preparedName(t.XID, t.EndLSN)
	if err := s.writePosition(recordPreparedStatement, t, s.options.Subscription, name); err != nil {
		return err
	}
	if err := s.utility(opPrepare, "PREPARE TRANSACTION "+literal(name)); err != nil {
		return err
	}
	if err := s.finish(); err != nil {
		return err
	}
	s.logConflicts()
	return nil
}

// position records how far the publisher's transactions are applied, in a transaction
// of its own, and forgets the progress that a prepared one has left under its name.
func (s *Session) position(t *txn.Transaction, done string) error {
	if err := s.control(opOther, beginStatement); err != nil {
		return err
	}
	if done != "" {
		if err := s.control(opOther, forgetStatement, s.options.Subscription, done); err != nil {
			return err
		}
	}
	if err := s.commit(t); err != nil {
		return err
	}
	s.outcome.Committed, s.outcome.Recorded = s.outcome.Committed+1, t.EndLSN
	return nil
}

// decide commits or rolls back what was prepared before.
func (s *Session) decide(t *txn.Transaction) (Outcome, error) {
	s.outcome, s.current = Outcome{}, t
	err := s.decided(t)
	if err == nil {
		return s.outcome, nil
	}
	if connection, gone := errors.AsType[*ConnectionError](err); gone {
		return Outcome{}, connection
	}
	operation := decoder.TypeCommitPrepared
	if t.Kind == txn.RollbackPrepared {
		operation = decoder.TypeRollbackPrepared
	}
	err = s.failure(operation, nil, err)
	if lost := s.rollBack(); lost != nil {
		return Outcome{}, lost
	}
	return Outcome{}, err
}

func (s *Session) decided(t *txn.Transaction) error {
	name, prepared, committed, err := s.findPrepared(t)
	if err != nil {
		return err
	}
	command := "COMMIT PREPARED "
	if t.Kind == txn.RollbackPrepared {
		// One that the target does not have was prepared before the slot knew of such
		// transactions: it never came.
		command = "ROLLBACK PREPARED "
		if committed {
			s.log.Warn("the publisher has rolled back a prepared transaction that somebody has committed on the target",
				zap.String("gid", t.GID), zap.String("name", name))
		}
	} else if !prepared && !committed {
		return &NotPreparedError{GID: t.GID}
	}
	if prepared {
		// The stamp belongs to the next transaction that ends, which this command does.
		if s.origin != "" {
			if _, err := s.Query(stampSQL, t.EndLSN.String(), timestamp(t.Time)); err != nil {
				return err
			}
		}
		if _, err := s.Query(command + literal(name)); err != nil {
			return err
		}
	}
	return s.position(t, name)
}

// stampSQL stamps the next commit with a position and time of the publisher.
const stampSQL = `SELECT pg_catalog.pg_replication_origin_xact_setup($1::pg_catalog.pg_lsn, $2::pg_catalog.timestamptz)`

// NotPreparedError says that the publisher commits a prepared transaction that the
// target does not have.
type NotPreparedError struct {
	// GID is the publisher's name of the transaction.
	GID string
}

func (e *NotPreparedError) Error() string {
	return fmt.Sprintf("the publisher commits prepared transaction %q, which the target does not have: somebody has rolled it back here", e.GID)
}
