package state

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Blocker is whom a backend waits for: another backend, or a prepared transaction,
// which has none but a name.
type Blocker struct {
	PID uint32
	GID string
}

// Blockers lists whom a backend of the target waits for, directly or through others:
// those that block it, those that block these, and so on. Locks that nobody holds
// beyond one step of one statement, as that for a table's next page, do not count: who
// waits for such a one goes on by itself.
func (s *Store) Blockers(ctx context.Context, pid uint32) ([]Blocker, error) {
	return rows(ctx, s, "find out whom a session waits for", pgx.RowToStructByPos[Blocker], `
		WITH RECURSIVE lasting AS MATERIALIZED (
			SELECT pid FROM pg_catalog.pg_locks WHERE NOT granted AND locktype NOT IN ('extend', 'page', 'spectoken')
		), waiting (pid) AS (
			SELECT $2::int4
			UNION
			SELECT b FROM waiting JOIN lasting USING (pid), pg_catalog.unnest(pg_catalog.pg_blocking_pids(waiting.pid)) b WHERE b <> 0
		)
		SELECT pid::int8::oid, '' FROM waiting WHERE pid <> $2 AND $1 <> ''
		UNION ALL
		SELECT DISTINCT 0::oid, x.gid FROM waiting
		JOIN pg_catalog.pg_locks l ON l.pid = waiting.pid AND NOT l.granted
		JOIN pg_catalog.pg_locks held ON held.granted AND held.pid IS NULL
			AND (held.locktype, held.database, held.relation, held.page, held.tuple, held.transactionid, held.classid, held.objid, held.objsubid)
				IS NOT DISTINCT FROM (l.locktype, l.database, l.relation, l.page, l.tuple, l.transactionid, l.classid, l.objid, l.objsubid)
		JOIN pg_catalog.pg_locks own ON own.pid IS NULL AND own.locktype = 'transactionid' AND own.virtualtransaction = held.virtualtransaction
		JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = own.transactionid`, int64(pid))
}
