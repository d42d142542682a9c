package state

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/lsn"
)

// Flush returns when everything that is committed on the target survives a crash: by a
// commit of its own, in the row of [Store.StartRunner], which waits for the disk.
func (s *Store) Flush(ctx context.Context) error {
	return s.ownRow(ctx, "flush what is committed on the target", `
		UPDATE pgapply.runner SET heartbeat = pg_catalog.clock_timestamp() WHERE subscription = $1 AND pid = $2 AND host = $3 AND started_at = $4`)
}

// LocalFlush returns where the WAL record of the newest commit under the
// subscription's origins ends on the target, and up to where the target's WAL is
// flushed: once the second has passed the first, that commit survives a crash. The
// first is zero when nothing was committed since the server started.
//
// Where the target has synchronous standbys, what is to survive its failover must be on
// them too; and a role may not see the positions of origins. Both get the same answer from
// [Store.Flush], which waits for the standbys as every commit does.
func (s *Store) LocalFlush(ctx context.Context) (local, flushed lsn.LSN, err error) {
	sees, err := s.seesOrigins(ctx)
	if err != nil {
		return 0, 0, err
	}
	if !sees {
		return 0, 0, s.Flush(ctx)
	}
	local, flushed, synchronous, err := s.localFlush(ctx)
	if err == nil && synchronous {
		return 0, 0, s.Flush(ctx)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the flush position of the target: %w", err)
	}
	return local, flushed, nil
}

// seesOrigins tells whether the role may see the positions of origins. It asks once: a
// server logs what it refuses, and this is wanted many times a second.
func (s *Store) seesOrigins(ctx context.Context) (bool, error) {
	s.lock()
	sees := s.mu.seesOrigins
	s.mu.Unlock()
	if sees != nil {
		return *sees, nil
	}
	answer, err := rows(ctx, s, "look for the rights on the target", pgx.RowTo[bool],
		`SELECT pg_catalog.has_function_privilege('pg_catalog.pg_show_replication_origin_status()', 'EXECUTE') WHERE $1::text IS NOT NULL`)
	if err != nil {
		return false, err
	}
	s.lock()
	defer s.mu.Unlock()
	s.mu.seesOrigins = &answer[0]
	return answer[0], nil
}

func (s *Store) localFlush(ctx context.Context) (local, flushed lsn.LSN, synchronous bool, err error) {
	s.lock()
	defer s.mu.Unlock()
	var localText, flushedText string
	err = s.mu.conn.QueryRow(ctx, `
		SELECT coalesce((SELECT pg_catalog.max(local_lsn) FROM pg_catalog.pg_show_replication_origin_status() JOIN pgapply.origin ON external_id = origin_name
		                 WHERE subscription = $1), '0/0')::text,
		       pg_catalog.pg_current_wal_flush_lsn()::text, pg_catalog.current_setting('synchronous_standby_names') <> ''`,
		pgx.QueryExecModeCacheStatement, s.name). // it is asked often
		Scan(&localText, &flushedText, &synchronous)
	if err != nil {
		return 0, 0, false, err
	}
	if local, err = lsn.Parse(localText); err == nil {
		flushed, err = lsn.Parse(flushedText)
	}
	return local, flushed, synchronous, err
}
