package state

import (
	"context"
	"fmt"

	"pgapply/internal/lsn"
)

// LocalFlush returns where the WAL record of the newest commit under the
// subscription's origins ends on the target, and up to where the target's WAL is
// flushed: once the second has passed the first, that commit survives a crash. The
// first is zero when nothing was committed since the server started.
//
// A role that may not see the positions of origins gets the same answer from a
// function that flushes up to those commits first.
func (s *Store) LocalFlush(ctx context.Context) (local, flushed lsn.LSN, err error) {
	s.lock()
	defer s.mu.Unlock()
	var localText, flushedText string
	err = s.mu.conn.QueryRow(ctx, `
		SELECT coalesce((SELECT pg_catalog.max(local_lsn) FROM pg_catalog.pg_show_replication_origin_status() JOIN pgapply.origin ON external_id = origin_name
		                 WHERE subscription = $1), '0/0')::text,
		       pg_catalog.pg_current_wal_flush_lsn()::text`, s.name).Scan(&localText, &flushedText)
	if hasCode(err, insufficientPrivilege) {
		_, err = s.mu.conn.Exec(ctx, `SELECT pg_catalog.pg_replication_origin_progress(origin_name, true) FROM pgapply.origin
			WHERE subscription = $1 AND roident IS NOT NULL`, s.name)
		return 0, 0, err
	}
	if err == nil {
		if local, err = lsn.Parse(localText); err == nil {
			flushed, err = lsn.Parse(flushedText)
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the flush position of the target: %w", err)
	}
	return local, flushed, nil
}
