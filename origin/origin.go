// Package origin answers one question: how far, durably. Each transaction on the
// target records its position in a row of its own, and is stamped with a replication
// origin where the role may do that; the Tracker turns commits and the target's flush position into what the
// publisher may forget.
//
//	row in pgapply.progress ──► where to resume
//	origin + xact_setup     ──► whose commit it is, and who may write at all
//	commit, local flush     ──► Tracker.Durable ──► feedback to the publisher
//
// The origin's own progress is not what to resume from: from 16 on the server moves
// it forward also when a stamped transaction aborts (RecordTransactionAbort in
// xact.c), by an error of a deferred trigger or a backend that is terminated.
//
// It speaks to the target through a session that it is given and never opens one.
package origin

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/internal/lsn"
)

// Session runs one statement on a connection to the target and returns its rows
// as text; a nil field is NULL.
type Session interface {
	Query(sql string, parameters ...string) ([][][]byte, error)
}

// Name is the origin of one apply session. Origins share one namespace in the
// target's whole cluster, so the name carries the database.
func Name(subscription string, databaseOID uint32, worker int) string {
	return fmt.Sprintf("pgapply_%s_%d_%d", subscription, databaseOID, worker)
}

// CopyName is the origin of a session that copies tables, so that what it writes does
// not travel on to where it came from.
func CopyName(subscription string, databaseOID uint32, job int) string {
	return fmt.Sprintf("pgapply_%s_%d_copy%d", subscription, databaseOID, job)
}

// HeldError says that another backend holds an origin.
type HeldError struct {
	Origin string
	// PID of the backend on the target; zero when the server did not say.
	PID int
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("replication origin %q is held by the target's backend %d", e.Origin, e.PID)
}

// Names tells the target's origins by their numbers.
func Names(session Session) (map[uint32]string, error) {
	rows, err := session.Query(`SELECT roident, roname FROM pg_catalog.pg_replication_origin`)
	if err != nil {
		return nil, fmt.Errorf("read the replication origins: %w", err)
	}
	names := make(map[uint32]string, len(rows))
	for _, row := range rows {
		number, err := strconv.ParseUint(string(row[0]), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read the replication origins: %w", err)
		}
		names[uint32(number)] = string(row[1])
	}
	return names, nil
}

var holder = regexp.MustCompile(`PID (\d+)`)

// Acquire makes the origin this session's own. A *HeldError means that another
// backend has it: another runner, or the dying backend of a lost connection. The
// hold is what keeps two runners apart: nothing may be written, and no position
// read, before it succeeds.
func Acquire(session Session, name string) error {
	_, err := session.Query(`SELECT pg_catalog.pg_replication_origin_session_setup($1)`, name)
	if err == nil {
		return nil
	}
	const objectInUse = "55006"
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if ok && refusal.Code == objectInUse {
		held := &HeldError{Origin: name}
		if match := holder.FindStringSubmatch(refusal.Message); match != nil {
			held.PID, _ = strconv.Atoi(match[1])
		}
		return held
	}
	const configurationLimitExceeded = "53400"
	if ok && refusal.Code == configurationLimitExceeded {
		return &LimitError{Origin: name, Err: refusal}
	}
	return fmt.Errorf("acquire replication origin %q: %w", name, err)
}

// LimitError says that the target has no room for another origin in use.
type LimitError struct {
	Origin string
	Err    error
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("the target has no room for replication origin %q: %v", e.Origin, e.Err)
}

// Unwrap returns the server's error.
func (e *LimitError) Unwrap() error { return e.Err }

// Resume returns the end of the last transaction that committed under the origin,
// which the session has acquired. floor is where the subscription is known to stand
// by other evidence, for one of which no position is recorded yet.
//
// The position is durable when Resume returns, since a start tells the publisher to
// forget what lies before it: the commit that wrote it may have been asynchronous, and
// asking for the origin's progress flushes up to the origin's last commit.
//
// An origin whose own progress is ahead of that carries the position of a transaction
// that was aborted: it is set back, so that it never names what is not there.
func Resume(session Session, name, subscription string, floor lsn.LSN) (lsn.LSN, error) {
	rows, err := session.Query(`
		SELECT coalesce(pg_catalog.pg_replication_origin_progress($1, true), '0/0'),
		       (SELECT pg_catalog.max(position) FROM pgapply.progress WHERE subscription = $2 AND gid IS NULL)`, name, subscription)
	if err != nil {
		return 0, fmt.Errorf("read the progress of replication origin %q: %w", name, err)
	}
	stamped, err := lsn.Parse(string(rows[0][0]))
	if err != nil {
		return 0, err
	}
	if rows[0][1] == nil {
		recorded := max(stamped, floor)
		if _, err := session.Query(`INSERT INTO pgapply.progress (subscription, position) VALUES ($1, $2::pg_catalog.pg_lsn)`,
			subscription, recorded.String()); err != nil {
			return 0, fmt.Errorf("record the progress of subscription %q: %w", subscription, err)
		}
		return recorded, nil
	}
	recorded, err := lsn.Parse(string(rows[0][1]))
	if err != nil || stamped <= recorded {
		return recorded, err
	}
	return recorded, setBack(session, name, recorded)
}

// setBack moves the origin's progress. The server does that only while nobody holds
// the origin, this session included.
func setBack(session Session, name string, position lsn.LSN) error {
	if _, err := session.Query(`SELECT pg_catalog.pg_replication_origin_session_reset()`); err != nil {
		return fmt.Errorf("set replication origin %q back: %w", name, err)
	}
	if _, err := session.Query(`SELECT pg_catalog.pg_replication_origin_advance($1, $2::pg_catalog.pg_lsn)`, name, position.String()); err != nil {
		return fmt.Errorf("set replication origin %q back: %w", name, err)
	}
	return Acquire(session, name)
}

// ResumeRecorded is [Resume] for a subscription whose transactions are not stamped: the
// rows alone say where it stands. The position is written once more, by a commit that
// waits for the disk, and with it for all that was committed before.
func ResumeRecorded(session Session, subscription string, floor lsn.LSN) (lsn.LSN, error) {
	rows, err := session.Query(`
		INSERT INTO pgapply.progress (subscription, position)
		SELECT $1, coalesce((SELECT pg_catalog.max(position) FROM pgapply.progress WHERE subscription = $1 AND gid IS NULL), $2::pg_catalog.pg_lsn)
		FROM (SELECT pg_catalog.set_config('synchronous_commit', 'local', true)) AS durable (setting) WHERE setting IS NOT NULL
		RETURNING position`, subscription, floor.String())
	if err != nil {
		return 0, fmt.Errorf("record the progress of subscription %q: %w", subscription, err)
	}
	return lsn.Parse(string(rows[0][0]))
}

// Drop removes the origin; an absent one is no error.
func Drop(session Session, name string) error {
	_, err := session.Query(`
		SELECT pg_catalog.pg_replication_origin_drop(roname) FROM pg_catalog.pg_replication_origin WHERE roname = $1`, name)
	if err != nil {
		return fmt.Errorf("drop replication origin %q: %w", name, err)
	}
	return nil
}

// The statements that end the transaction in progress. Record takes the end position of
// the publisher's transaction, the subscription and, to stamp the commit with position and
// time, the publisher's commit time: without it the commit has no origin. The stamp is a
// variable of the session, not of the transaction: after any failed transaction Reset must
// run before the next write, or that write's commit would carry the failed one's position
// (invariant I4).
//
// RecordPrepared is Record for a transaction that is about to be prepared, and takes its
// name before the time: the row shows itself when that is committed. It says nothing of
// where to resume. ForgetPrepared, for subscription and name, removes it.
const (
	RecordSQL      = `INSERT INTO pgapply.progress (subscription, position) VALUES ($2, $1::pg_catalog.pg_lsn)`
	RecordStampSQL = RecordSQL + ` RETURNING pg_catalog.pg_replication_origin_xact_setup($1::pg_catalog.pg_lsn, $3::pg_catalog.timestamptz)`

	RecordPreparedSQL      = `INSERT INTO pgapply.progress (subscription, position, gid) VALUES ($2, $1::pg_catalog.pg_lsn, $3)`
	RecordStampPreparedSQL = RecordPreparedSQL + ` RETURNING pg_catalog.pg_replication_origin_xact_setup($1::pg_catalog.pg_lsn, $4::pg_catalog.timestamptz)`

	ForgetPreparedSQL = `DELETE FROM pgapply.progress WHERE subscription = $1 AND gid = $2`
	ResetSQL          = `SELECT pg_catalog.pg_replication_origin_xact_reset()`
)
