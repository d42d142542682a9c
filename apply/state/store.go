package state

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Store reads and writes the state of one subscription. All methods may be
// called from several goroutines; they take turns on the one session.
type Store struct {
	name string
	// schema is the OID of schema pgapply, part of the advisory locks' keys.
	schema uint32

	// listener has the session while nobody wants it.
	listener listener

	mu struct {
		sync.Mutex
		// conn belongs to whoever opened the store and closes after it.
		conn *pgx.Conn
		// locked: this session holds the runner lock.
		locked bool
		// seesOrigins is nil until it was asked.
		seesOrigins *bool
		// runner identifies the runner row that this process wrote.
		runner *Runner
	}
}

// Open returns the store of the named subscription over a connection made by
// [ConnectControl], which stays the caller's and must not be used beside the
// store by another goroutine. Open creates schema pgapply where it is missing
// and migrates it where it is older. Any number of processes may do so at once.
//
// Errors: *[VersionError] when the schema is newer than this program,
// *[PrivilegeError] when the role may not create or use it, *[OwnerError] when
// it belongs to a role that cannot be trusted.
func Open(ctx context.Context, conn *pgx.Conn, name string) (*Store, error) {
	found, err := Look(ctx, conn, name)
	if err != nil {
		return nil, err
	}
	return found.Open(ctx)
}

// OpenExisting is Open for those who only look: it changes nothing. In addition
// to the errors of Open it returns [ErrNoSchema], and a *[VersionError] when the
// schema is older than this program.
func OpenExisting(ctx context.Context, conn *pgx.Conn, name string) (*Store, error) {
	found, err := Look(ctx, conn, name)
	switch {
	case err != nil:
		return nil, err
	case !found.Exists:
		return nil, ErrNoSchema
	case found.version != Version():
		return nil, &VersionError{Have: found.version, Want: Version()}
	}
	return found.store(), nil
}

func newStore(conn *pgx.Conn, name string) *Store {
	s := &Store{name: name}
	s.mu.conn = conn
	s.listener.alone.L = &s.listener
	return s
}

// Name is the subscription's name.
func (s *Store) Name() string { return s.name }

// exec runs one statement about this subscription, whose name is $1, and
// returns how many rows it touched.
func (s *Store) exec(ctx context.Context, doing, sql string, arguments ...any) (int64, error) {
	s.lock()
	defer s.mu.Unlock()
	tag, err := s.mu.conn.Exec(ctx, sql, append([]any{s.name}, arguments...)...)
	if err != nil {
		return 0, s.failed(ctx, doing, err)
	}
	return tag.RowsAffected(), nil
}

// execOne is exec for a statement that must find the subscription's row.
func (s *Store) execOne(ctx context.Context, doing, sql string, arguments ...any) error {
	touched, err := s.exec(ctx, doing, sql, arguments...)
	if err == nil && touched == 0 {
		err = fmt.Errorf("%s: subscription %q: %w", doing, s.name, ErrNoSubscription)
	}
	return err
}

// rows runs a query about this subscription, whose name is $1, and scans each row.
func rows[T any](ctx context.Context, s *Store, doing string, scan pgx.RowToFunc[T], sql string, arguments ...any) ([]T, error) {
	s.lock()
	defer s.mu.Unlock()
	result, err := s.mu.conn.Query(ctx, sql, append([]any{s.name}, arguments...)...)
	if err != nil {
		return nil, s.failed(ctx, doing, err)
	}
	list, err := pgx.CollectRows(result, scan)
	if err != nil {
		return nil, s.failed(ctx, doing, err)
	}
	return list, nil
}

// transaction runs work in one transaction, during which the store belongs to it.
func (s *Store) transaction(ctx context.Context, doing string, work func(tx pgx.Tx) error) error {
	s.lock()
	defer s.mu.Unlock()
	if err := pgx.BeginFunc(ctx, s.mu.conn, work); err != nil {
		return s.failed(ctx, doing, err)
	}
	return nil
}

func (s *Store) failed(ctx context.Context, doing string, err error) error {
	return s.explain(ctx, fmt.Errorf("%s (subscription %q): %w", doing, s.name, err))
}

// explain turns a missing privilege or a missing schema into its typed error.
// s.mu is held or nobody else has the store yet.
func (s *Store) explain(ctx context.Context, err error) error {
	switch {
	case hasCode(err, undefinedTable, invalidSchemaName):
		return fmt.Errorf("%w (%w)", ErrNoSchema, err)
	case !hasCode(err, insufficientPrivilege):
		return err
	}
	typed := &PrivilegeError{Err: err}
	asked := s.mu.conn.QueryRow(ctx, `SELECT current_user, pg_catalog.current_database(),
		EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'pgapply')`).
		Scan(&typed.Role, &typed.Database, &typed.Exists)
	if asked != nil {
		return errors.Join(err, asked)
	}
	return typed
}
