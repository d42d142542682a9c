package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Session is one connection for several steps of a test, such as a transaction that
// stays open meanwhile. It ends with the test.
type Session struct {
	t          testing.TB
	connection *pgconn.PgConn
}

// Open opens a session.
func Open(t testing.TB, uri string) *Session {
	t.Helper()
	ctx, cancel := bounded(t)
	defer cancel()
	s := &Session{t, connect(ctx, t, uri)}
	t.Cleanup(func() { disconnect(t, s.connection) })
	return s
}

// Exec runs SQL, one simple query for each string.
func (s *Session) Exec(sql ...string) {
	s.t.Helper()
	ctx, cancel := bounded(s.t)
	defer cancel()
	for _, statement := range sql {
		if _, err := s.connection.Exec(ctx, statement).ReadAll(); err != nil {
			s.t.Fatalf("%s: %v", statement, err)
		}
	}
}

// PID is the session's backend.
func (s *Session) PID() uint32 { return s.connection.PID() }
