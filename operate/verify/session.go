package verify

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"pgapply/internal/conninfo"
)

// End says where one of the two databases is.
type End struct {
	// URI is a libpq connection URI or keyword string.
	URI string
	// Passfile names a password file, empty for the usual one.
	Passfile string
}

// settings decide what the text of a value looks like, and are the same on both ends.
// All majors from 10 on know them.
func settings(name string) map[string]string {
	return map[string]string{
		"application_name":                    name,
		"search_path":                         "",
		"client_encoding":                     "UTF8",
		"datestyle":                           "ISO",
		"intervalstyle":                       "postgres",
		"timezone":                            "UTC",
		"extra_float_digits":                  "3",
		"bytea_output":                        "hex",
		"lc_monetary":                         "C",
		"xmloption":                           "content",
		"quote_all_identifiers":               "off",
		"standard_conforming_strings":         "on",
		"row_security":                        "off",
		"client_min_messages":                 "warning",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": "0",
		"default_transaction_isolation":       "read committed",
		"default_transaction_deferrable":      "off",
	}
}

// cancelGrace is how long a server has to break off a statement.
const cancelGrace = 2 * time.Second

// session is a connection to one of the ends. It belongs to one goroutine at a time.
type session struct {
	conn     *pgconn.PgConn
	version  int
	encoding string
	// digits is its extra_float_digits.
	digits int
}

// open connects. server is "publisher" or "target"; forced are further settings.
func open(ctx context.Context, server string, end End, name string, forced map[string]string) (*session, error) {
	all := settings(name)
	for setting, value := range forced {
		all[setting] = value
	}
	config, err := conninfo.Parse(server, end.URI, end.Passfile, all)
	if err != nil {
		return nil, err
	}
	config.DialFunc = conninfo.KeepAlive(config.DialFunc)
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelGrace}
	}
	conn, err := pgconn.ConnectConfig(ctx, &config.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to the %s: %w", server, conninfo.ConnectError(err))
	}
	s := &session{conn: conn, digits: 3}
	if err := s.prepare(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("prepare the session on the %s: %w", server, err)
	}
	return s, nil
}

// readOnly is what sessions are that only compare.
func readOnly() map[string]string { return map[string]string{"default_transaction_read_only": "on"} }

// prepare switches timeouts off that not every major has.
func (s *session) prepare(ctx context.Context) error {
	rows, err := s.query(ctx, `SELECT pg_catalog.current_setting('server_version_num'), pg_catalog.current_setting('server_encoding'),
		(SELECT pg_catalog.count(pg_catalog.set_config(name, '0', false)) FROM pg_catalog.pg_settings
			WHERE name IN ('idle_session_timeout', 'transaction_timeout'))`)
	if err != nil {
		return err
	}
	s.encoding = rows[0][1]
	s.version, err = strconv.Atoi(rows[0][0])
	return err
}

func (s *session) major() int { return s.version / 10000 }

// each runs a statement and calls take for each row. The fields are valid until it returns.
func (s *session) each(ctx context.Context, sql string, take func(row [][]byte) error) error {
	results := s.conn.Exec(ctx, sql)
	var failed error
	for results.NextResult() {
		reader := results.ResultReader()
		for reader.NextRow() {
			if failed == nil {
				failed = take(reader.Values())
			}
		}
	}
	if err := results.Close(); err != nil {
		return err
	}
	return failed
}

// query returns the rows of a statement, NULL as the empty string.
func (s *session) query(ctx context.Context, sql string) ([][]string, error) {
	var rows [][]string
	err := s.each(ctx, sql, func(row [][]byte) error {
		fields := make([]string, len(row))
		for i, field := range row {
			fields[i] = string(field)
		}
		rows = append(rows, fields)
		return nil
	})
	return rows, err
}

// rollback ends a transaction that is open.
func (s *session) rollback() error {
	if s.conn.IsClosed() || s.conn.TxStatus() == 'I' {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cancelGrace)
	defer cancel()
	_, err := s.query(ctx, "ROLLBACK")
	return err
}

// close says farewell, and waits until nothing of the connection is left.
func (s *session) close() {
	ctx, cancel := context.WithTimeout(context.Background(), cancelGrace)
	defer cancel()
	_ = s.conn.Close(ctx) // every statement has ended
	select {
	case <-s.conn.CleanupDone():
	case <-ctx.Done():
	}
}

// pool lends the sessions of one end, and opens up to as many as it has room for.
type pool struct {
	open func(context.Context) (*session, error)
	// places holds the sessions that nobody has; nil is one that is not open yet.
	places chan *session
}

func newPool(size int, first *session, open func(context.Context) (*session, error)) *pool {
	p := &pool{open: open, places: make(chan *session, size)}
	for range size - 1 {
		p.places <- nil
	}
	p.places <- first
	return p
}

// with runs work on a session.
func (p *pool) with(ctx context.Context, work func(*session) error) error {
	select {
	case s := <-p.places:
		if s == nil || s.conn.IsClosed() {
			opened, err := p.open(ctx)
			if err != nil {
				p.places <- nil
				return err
			}
			s = opened
		}
		defer func() { p.places <- s }()
		return work(s)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close ends all sessions, which everybody has given back.
func (p *pool) close() {
	for range cap(p.places) {
		if s := <-p.places; s != nil {
			s.close()
		}
	}
}
