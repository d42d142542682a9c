package state

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/lsn"
)

// Prepared is a prepared transaction on the target that an apply session has made: the
// publisher has prepared it, and said nothing yet of how it ends.
type Prepared struct {
	// Name on the target, for COMMIT PREPARED and ROLLBACK PREPARED.
	Name string
	// XID is the publisher's number of the transaction, Finish where its PREPARE ends.
	XID    uint32
	Finish lsn.LSN
	// Since is when it was prepared on the target.
	Since time.Time
}

// ListPrepared lists the prepared transactions of the session's database whose names
// have that prefix, the oldest first.
func ListPrepared(ctx context.Context, conn *pgx.Conn, prefix string) ([]Prepared, error) {
	rows, err := conn.Query(ctx, preparedSQL, prefix)
	if err != nil {
		return nil, fmt.Errorf("look for prepared transactions: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanPrepared)
	if err != nil {
		return nil, fmt.Errorf("look for prepared transactions: %w", err)
	}
	return ours(found, prefix), nil
}

// Prepared is [ListPrepared] for who has a store.
func (s *Store) Prepared(ctx context.Context, prefix string) ([]Prepared, error) {
	s.lock()
	defer s.mu.Unlock()
	return ListPrepared(ctx, s.mu.conn, prefix)
}

// CommittedByHand lists the names of prepared transactions that are committed on the
// target, and of which the publisher's COMMIT PREPARED has not arrived.
func (s *Store) CommittedByHand(ctx context.Context) ([]string, error) {
	return rows(ctx, s, "look for prepared transactions that are committed", pgx.RowTo[string],
		`SELECT gid FROM pgapply.progress WHERE subscription = $1 AND gid IS NOT NULL ORDER BY position`)
}

const preparedSQL = `SELECT gid, prepared FROM pg_catalog.pg_prepared_xacts
	WHERE database = pg_catalog.current_database() AND pg_catalog.starts_with(gid, $1) ORDER BY prepared, gid`

func scanPrepared(row pgx.CollectableRow) (p Prepared, err error) {
	return p, row.Scan(&p.Name, &p.Since)
}

var ofPrepared = regexp.MustCompile(`^([0-9]+)_([0-9A-F]+)$`)

// ours leaves out the names of a subscription whose own begins with the prefix.
func ours(found []Prepared, prefix string) []Prepared {
	var kept []Prepared
	for _, p := range found {
		parts := ofPrepared.FindStringSubmatch(p.Name[len(prefix):])
		if parts == nil {
			continue
		}
		xid, err := strconv.ParseUint(parts[1], 10, 32)
		position, err2 := strconv.ParseUint(parts[2], 16, 64)
		if err == nil && err2 == nil {
			p.XID, p.Finish = uint32(xid), lsn.LSN(position)
			kept = append(kept, p)
		}
	}
	return kept
}
