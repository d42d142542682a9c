// Package origin answers one question: how far, durably. A replication origin
// on the target advances in the same commit as a transaction's rows; the Tracker
// turns commits and the target's flush position into what the publisher may
// forget.
//
//	commit + xact_setup ──► origin on the target ──► where to resume
//	commit, local flush ──► Tracker.Flushed ──► feedback to the publisher
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

// HeldError says that another backend holds an origin.
type HeldError struct {
	Origin string
	// PID of the backend on the target; zero when the server did not say.
	PID int
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("replication origin %q is held by the target's backend %d", e.Origin, e.PID)
}

// Ensure creates the origin unless it exists, and returns its number.
func Ensure(session Session, name string) (roident uint32, err error) {
	rows, err := session.Query(`SELECT pg_catalog.pg_replication_origin_oid($1)`, name)
	if err == nil && rows[0][0] == nil {
		rows, err = session.Query(`SELECT pg_catalog.pg_replication_origin_create($1)`, name)
	}
	if err != nil {
		return 0, fmt.Errorf("create replication origin %q: %w", name, err)
	}
	number, err := strconv.ParseUint(string(rows[0][0]), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("create replication origin %q: %w", name, err)
	}
	return uint32(number), nil
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
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Code == objectInUse {
		held := &HeldError{Origin: name}
		if match := holder.FindStringSubmatch(refusal.Message); match != nil {
			held.PID, _ = strconv.Atoi(match[1])
		}
		return held
	}
	return fmt.Errorf("acquire replication origin %q: %w", name, err)
}

// Progress reads the end position of the last transaction that committed under
// the origin, zero when there is none, and makes it durable first: it is where the
// tracker begins, and the publisher may forget what lies below. The commit itself,
// of a session that is gone, may have waited for no disk.
func Progress(session Session, name string) (lsn.LSN, error) {
	rows, err := session.Query(`SELECT pg_catalog.pg_replication_origin_progress($1, true)`, name)
	if err != nil {
		return 0, fmt.Errorf("read the progress of replication origin %q: %w", name, err)
	}
	if rows[0][0] == nil {
		return 0, nil
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

// The statements that stamp the transaction in progress. Setup takes the end
// position and the commit time of the publisher's transaction, and gives the
// transaction an xid: a commit that wrote nothing would not advance the origin.
// What it sets is a variable of the session, not of the transaction: after any
// failed transaction Reset must run before the next write, or that write's commit
// would carry the failed one's position (invariant I4).
const (
	SetupSQL = `SELECT pg_catalog.pg_replication_origin_xact_setup($1::pg_catalog.pg_lsn, $2::pg_catalog.timestamptz), pg_catalog.pg_current_xact_id()`
	ResetSQL = `SELECT pg_catalog.pg_replication_origin_xact_reset()`
)
