package integration

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// fieldApplication is the application_name of every session of the player.
const fieldApplication = "field player"

// fieldEnd is the case's database on the publisher or on the target.
type fieldEnd struct {
	name string // pub or tgt
	uri  string
	// observer is the connection of ask; nil before its first use.
	observer *pgconn.PgConn
}

// newFieldEnd creates the database. With the test it goes away, and with it what
// hangs on it.
func newFieldEnd(c *fieldCase, name string, server *cluster.Cluster, encoding string) *fieldEnd {
	administrator := server.URI("postgres")
	create := `CREATE DATABASE ` + c.name
	if encoding != "" {
		create += fmt.Sprintf(` TEMPLATE template0 LOCALE 'C' ENCODING '%s'`, encoding)
	}
	pgtest.Exec(c.t, administrator, create)
	e := &fieldEnd{name: name, uri: server.URI(c.name)}
	c.t.Cleanup(func() {
		e.forget()
		if !server.Running() {
			return // the message of why it does not is what matters
		}
		for _, gid := range strings.Split(pgtest.Query(c.t, e.uri, `SELECT quote_literal(gid) FROM pg_prepared_xacts WHERE database = current_database()`), "\n") {
			if gid != "" {
				pgtest.Exec(c.t, e.uri, `ROLLBACK PREPARED `+gid)
			}
		}
		pgtest.WaitFor(c.t, administrator, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+c.name+`'`, "")
		pgtest.Exec(c.t, e.uri, `SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE `+fieldOrigin("roname"))
		pgtest.Exec(c.t, administrator,
			`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '`+c.name+`'`,
			`DROP DATABASE `+c.name)
	})
	return e
}

// fieldOrigin is a condition that tells the origins of the current database from
// those of other databases of the server: they carry its OID.
func fieldOrigin(name string) string {
	return name + ` ~ ('(^|_)'||(SELECT oid FROM pg_database WHERE datname = current_database())||'(_|$)')`
}

// connect opens a session as psql would on a terminal that speaks UTF-8, with more
// parameters of its start where they are needed.
func (e *fieldEnd) connect(ctx context.Context, parameters ...string) (*pgconn.PgConn, error) {
	config, err := pgconn.ParseConfig(e.uri)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(parameters); i += 2 {
		config.RuntimeParams[parameters[i]] = parameters[i+1]
	}
	config.RuntimeParams["application_name"] = fieldApplication
	config.RuntimeParams["client_encoding"] = "UTF8"
	return pgconn.ConnectConfig(ctx, config)
}

// once runs statements in a session of their own.
func (e *fieldEnd) once(ctx context.Context, statements []string) (string, error) {
	connection, err := e.connect(ctx)
	if err != nil {
		return "", err
	}
	defer closeFieldConnection(connection)
	return runStatements(ctx, connection, statements)
}

// ask runs one statement, with arguments as text, on a connection that is kept. It
// returns the rows without the last newline.
func (e *fieldEnd) ask(ctx context.Context, sql string, arguments ...any) (string, error) {
	if e.observer != nil && e.observer.IsClosed() {
		e.forget()
	}
	if e.observer == nil {
		// What a script sets for the database must not hit those who only look.
		immune := "-c statement_timeout=0 -c idle_session_timeout=0 -c transaction_timeout=0 -c lock_timeout=0"
		var err error
		if e.observer, err = e.connect(ctx, "options", immune); err != nil {
			return "", err
		}
	}
	values := make([][]byte, len(arguments))
	for i, argument := range arguments {
		values[i] = fmt.Append(nil, argument)
	}
	result := e.observer.ExecParams(ctx, sql, values, nil, nil, nil).Read()
	if result.Err != nil {
		return "", fmt.Errorf("%s: %w", sql, result.Err)
	}
	return strings.TrimSuffix(asPsql(result), "\n"), nil
}

func (e *fieldEnd) forget() {
	if e.observer != nil {
		closeFieldConnection(e.observer)
		e.observer = nil
	}
}

func closeFieldConnection(connection *pgconn.PgConn) {
	_ = connection.Close(context.Background())
	<-connection.CleanupDone()
}

// fieldSession is a session that a script has named.
type fieldSession struct {
	name       string
	end        *fieldEnd
	connection *pgconn.PgConn
	ctx        context.Context // that of the case
	answer     chan fieldAnswer
}

type fieldAnswer struct {
	printed string
	err     error
}

// begin starts statements; exactly one answer follows.
func (s *fieldSession) begin(statements []string) {
	answer := make(chan fieldAnswer, 1)
	s.answer = answer
	go func() { // close waits for it
		printed, err := runStatements(s.ctx, s.connection, statements)
		answer <- fieldAnswer{printed, err}
	}()
}

// close ends the session. The case's context has ended before.
func (s *fieldSession) close() {
	if s.answer != nil {
		<-s.answer
	}
	closeFieldConnection(s.connection)
}

// runStatements runs each statement as a query of its own and returns what psql -At
// would print. It stops at the first error.
func runStatements(ctx context.Context, connection *pgconn.PgConn, statements []string) (string, error) {
	var printed strings.Builder
	for _, statement := range statements {
		results, err := connection.Exec(ctx, statement).ReadAll()
		if err != nil {
			return printed.String(), fmt.Errorf("%s: %w", statement, err)
		}
		for _, result := range results {
			printed.WriteString(asPsql(result))
		}
	}
	return printed.String(), nil
}

// asPsql prints rows as psql -At does: columns separated by |, NULL as nothing, each
// row with its newline, and nothing at all for rows without columns.
func asPsql(result *pgconn.Result) string {
	var text strings.Builder
	for _, row := range result.Rows {
		for i, value := range row {
			if i > 0 {
				text.WriteByte('|')
			}
			text.Write(value)
		}
		if len(row) > 0 {
			text.WriteByte('\n')
		}
	}
	return text.String()
}
