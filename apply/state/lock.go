package state

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// LockKey names a session-level advisory lock of a subscription, in the form
// with two keys: Class is the OID of schema pgapply, so that
//
//	SELECT * FROM pg_locks WHERE locktype = 'advisory' AND classid = 'pgapply'::regnamespace
//
// shows our locks and hardly anybody else's; Object is the 32-bit FNV-1a hash
// of the lock's purpose, a slash and the subscription's name, the same in every
// version of this program. Advisory locks are local to a database. Two names
// with one hash would keep each other out, visibly; no data is at risk.
type LockKey struct{ Class, Object int32 }

func (s *Store) key(purpose string) LockKey {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(purpose + "/" + s.name))
	return LockKey{Class: int32(s.schema), Object: int32(hash.Sum32())} // all 32 bits of each are meant
}

// RunnerLock is held exclusively, on the control session, by the one process
// that runs the subscription.
func (s *Store) RunnerLock() LockKey { return s.key("runner") }

// WriterLock is held shared by every session that writes for the subscription,
// from before its first write; see [Store.RaiseEpoch].
func (s *Store) WriterLock() LockKey { return s.key("writer") }

// Holder is a server process that holds one of our locks. What the role may not
// see of another's session is empty.
type Holder struct {
	PID             int
	ApplicationName string
	// ClientAddress is empty for a Unix socket.
	ClientAddress string
	ConnectedAt   *time.Time
}

func (h Holder) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "server process %d", h.PID)
	if h.ApplicationName != "" {
		fmt.Fprintf(&text, " (%s)", h.ApplicationName)
	}
	if h.ClientAddress != "" {
		fmt.Fprintf(&text, " from %s", h.ClientAddress)
	}
	if h.ConnectedAt != nil {
		fmt.Fprintf(&text, ", connected since %s", h.ConnectedAt.UTC().Format(time.RFC3339))
	}
	return text.String()
}

// TryLock takes the runner lock for this session, without waiting. It returns
// nil when this session holds it now, else who does. The lock ends with
// [Store.Unlock] or with the session.
func (s *Store) TryLock(ctx context.Context) (*Holder, error) {
	s.lock()
	defer s.mu.Unlock()
	if s.mu.locked {
		return nil, nil
	}
	key := s.RunnerLock()
	for {
		err := s.tryLock(ctx, key)
		if err != nil {
			return nil, errors.Join(err, s.unlock(ctx))
		}
		if s.mu.locked {
			return nil, nil
		}
		holders, err := s.holders(ctx, key)
		if err != nil {
			return nil, err
		}
		if len(holders) > 0 {
			return &holders[0], nil
		}
		// Released in between: it is ours to take.
	}
}

// Unlock gives the runner lock back, if this session holds it.
func (s *Store) Unlock(ctx context.Context) error {
	s.lock()
	defer s.mu.Unlock()
	return s.unlock(ctx)
}

// unlock is Unlock with s.mu held.
func (s *Store) unlock(ctx context.Context) error {
	if !s.mu.locked {
		return nil
	}
	key := s.RunnerLock()
	if _, err := s.mu.conn.Exec(ctx, `SELECT pg_catalog.pg_advisory_unlock($1, $2)`, key.Class, key.Object); err != nil {
		return s.failed(ctx, "give the runner lock back", err)
	}
	s.mu.locked = false
	return nil
}

// tryLock takes the lock if it is free, and proves then that the schema whose OID is in
// the lock's key is still there, and stays: the last cleanup, which may have dropped it
// meanwhile, locks table version before it looks for runner locks. s.mu is held.
func (s *Store) tryLock(ctx context.Context, key LockKey) error {
	var current uint32
	var version int
	var both pgx.Batch
	both.Queue(`SELECT pg_catalog.pg_try_advisory_lock($1, $2)`, key.Class, key.Object).
		QueryRow(func(row pgx.Row) error { return row.Scan(&s.mu.locked) })
	both.Queue(`SELECT n.oid, v.version FROM pgapply.version v, pg_catalog.pg_namespace n WHERE n.nspname = 'pgapply'`).
		QueryRow(func(row pgx.Row) error { return row.Scan(&current, &version) })
	err := s.mu.conn.SendBatch(ctx, &both).Close()
	switch {
	case err != nil:
		return s.failed(ctx, "take the runner lock", err)
	case current != s.schema:
		return fmt.Errorf("take the runner lock (subscription %q): schema pgapply was dropped and made again: %w", s.name, ErrNoSchema)
	case version != Version(): // whoever had the lock may have upgraded it
		return &VersionError{Have: version, Want: Version()}
	}
	return nil
}

// LockHolder returns the session that holds the runner lock, or nil. It does
// not touch the lock.
func (s *Store) LockHolder(ctx context.Context) (*Holder, error) {
	s.lock()
	defer s.mu.Unlock()
	holders, err := s.holders(ctx, s.RunnerLock())
	if err != nil || len(holders) == 0 {
		return nil, err
	}
	return &holders[0], nil
}

// RaiseEpoch begins the reign of a new runner, which holds the runner lock, and
// returns its epoch. A writing session takes the [Store.WriterLock] shared, then
// reads the epoch, and closes unless it is its own runner's. So once
// [Store.TryFence] has succeeded, no session of an earlier runner writes any more.
func (s *Store) RaiseEpoch(ctx context.Context) (int64, error) {
	const doing = "begin a new epoch"
	raised, err := rows(ctx, s, doing, pgx.RowTo[int64],
		`UPDATE pgapply.subscription SET epoch = epoch + 1 WHERE name = $1 RETURNING epoch`)
	if err != nil {
		return 0, err
	}
	if len(raised) == 0 {
		return 0, fmt.Errorf("%s: subscription %q: %w", doing, s.name, ErrNoSubscription)
	}
	return raised[0], nil
}

// TryFence proves, after [Store.RaiseEpoch] and before the resume point is read,
// that no session of an earlier runner holds the writer lock. It returns nothing
// when that is so, else the sessions that still live; the caller tries again.
func (s *Store) TryFence(ctx context.Context) ([]Holder, error) {
	s.lock()
	defer s.mu.Unlock()
	key := s.WriterLock()
	for {
		var free bool
		// The lock lasts for this one statement, which is a transaction.
		if err := s.mu.conn.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_xact_lock($1, $2)`, key.Class, key.Object).
			Scan(&free); err != nil {
			return nil, s.failed(ctx, "look for earlier writers", err)
		}
		if free {
			return nil, nil
		}
		holders, err := s.holders(ctx, key)
		if err != nil || len(holders) > 0 {
			return holders, err
		}
	}
}

// EndWriters terminates the sessions that hold the writer lock as ours do, under our
// name. Only who holds the runner lock may say that they are nobody's.
func (s *Store) EndWriters(ctx context.Context) error {
	key := s.WriterLock()
	_, err := s.exec(ctx, "end the sessions of an earlier runner", `
		SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_locks JOIN pg_catalog.pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND classid = $2::int8::oid AND objid = $3::int8::oid
		  AND mode = 'ShareLock' AND pg_catalog.starts_with(application_name, pg_catalog.left($1 || ':w', 63))
		  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`,
		int64(uint32(key.Class)), int64(uint32(key.Object)))
	return err
}

// EndHolder terminates the session with that process if it holds the runner lock and does
// nothing but wait for its client, of which the caller knows that it is as good as dead. It
// tells whether that was so: one that is busy has a client, who waits for it.
func (s *Store) EndHolder(ctx context.Context, pid int) (bool, error) {
	key := s.RunnerLock()
	ended, err := rows(ctx, s, "end the session of an earlier runner", pgx.RowTo[bool], `
		SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_locks JOIN pg_catalog.pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND classid = $2::int8::oid AND objid = $3::int8::oid AND pid = $4
		  AND state LIKE 'idle%' AND $1::text IS NOT NULL
		  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`,
		int64(uint32(key.Class)), int64(uint32(key.Object)), pid)
	return len(ended) > 0, err
}

// holders lists who holds the lock, in the order of their names. s.mu is held.
func (s *Store) holders(ctx context.Context, key LockKey) ([]Holder, error) {
	result, err := s.mu.conn.Query(ctx, `
		SELECT l.pid, coalesce(a.application_name, ''), coalesce(pg_catalog.host(a.client_addr), ''), a.backend_start
		FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
		  AND l.classid = $1::int8::oid AND l.objid = $2::int8::oid
		  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
		ORDER BY a.application_name, a.backend_start, l.pid`, int64(uint32(key.Class)), int64(uint32(key.Object)))
	if err != nil {
		return nil, s.failed(ctx, "look for the holder of a lock", err)
	}
	holders, err := pgx.CollectRows(result, pgx.RowToStructByPos[Holder])
	if err != nil {
		return nil, s.failed(ctx, "look for the holder of a lock", err)
	}
	return holders, nil
}
