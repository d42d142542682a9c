package pgtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Exec runs SQL on a connection of its own, one simple query for each string. A
// string may hold several statements, which then are one transaction.
func Exec(t testing.TB, uri string, sql ...string) {
	t.Helper()
	ctx, cancel := bounded(t)
	defer cancel()
	connection := connect(ctx, t, uri)
	defer disconnect(t, connection)
	for _, statement := range sql {
		if _, err := connection.Exec(ctx, statement).ReadAll(); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// Query runs SQL on a connection of its own and returns the rows as psql -At
// prints them: columns separated by |, rows by a newline, NULL as nothing. With
// arguments it is one statement whose $1, $2 ... take them as text; without, it
// may be several, and the rows of all of them are returned.
func Query(t testing.TB, uri, sql string, arguments ...any) string {
	t.Helper()
	ctx, cancel := bounded(t)
	defer cancel()
	connection := connect(ctx, t, uri)
	defer disconnect(t, connection)
	rows, err := query(ctx, connection, sql, arguments)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return rows
}

// WaitFor repeats a query until it gives what is wanted, in the form of Query. A
// server that is down or a query that fails is asked again, until the time is up.
func WaitFor(t testing.TB, uri, sql, want string, arguments ...any) {
	t.Helper()
	ctx, cancel := bounded(t)
	defer cancel()
	// Polling is this function's purpose; it is the only place in tests that does.
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	var connection *pgconn.PgConn
	defer func() {
		if connection != nil {
			disconnect(t, connection)
		}
	}()
	for last := ""; ; {
		var err error
		if connection == nil || connection.IsClosed() {
			connection, err = pgconn.Connect(ctx, uri)
		}
		if err == nil {
			var now string
			if now, err = query(ctx, connection, sql, arguments); err == nil {
				last = now
			}
		}
		if err == nil && last == want {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: still %q after %s, want %q, last error: %v", sql, last, patience, want, err)
		case <-pause.C:
		}
	}
}

func query(ctx context.Context, connection *pgconn.PgConn, sql string, arguments []any) (string, error) {
	var results []*pgconn.Result
	if len(arguments) == 0 {
		var err error
		if results, err = connection.Exec(ctx, sql).ReadAll(); err != nil {
			return "", err
		}
	} else {
		result := connection.ExecParams(ctx, sql, textArguments(arguments), nil, nil, nil).Read()
		if result.Err != nil {
			return "", result.Err
		}
		results = append(results, result)
	}
	var lines []string
	for _, result := range results {
		for _, row := range result.Rows {
			columns := make([]string, len(row))
			for i, value := range row {
				columns[i] = string(value)
			}
			lines = append(lines, strings.Join(columns, "|"))
		}
	}
	return strings.Join(lines, "\n"), nil
}

// textArguments writes arguments as the server's input functions read them.
func textArguments(arguments []any) [][]byte {
	text := make([][]byte, len(arguments))
	for i, argument := range arguments {
		switch a := argument.(type) {
		case nil: // stays nil, which is NULL
		case []byte:
			text[i] = fmt.Appendf(nil, `\x%x`, a)
		case time.Time:
			text[i] = a.AppendFormat(nil, time.RFC3339Nano)
		default:
			text[i] = fmt.Append(nil, a)
		}
	}
	return text
}

// bounded gives a context which, unlike t.Context, also serves in t.Cleanup.
func bounded(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.Context()), patience)
}

func connect(ctx context.Context, t testing.TB, uri string) *pgconn.PgConn {
	t.Helper()
	connection, err := pgconn.Connect(ctx, uri)
	if err != nil {
		t.Fatal(err)
	}
	return connection
}

// disconnect waits until the connection is gone, so that goleak and DROP DATABASE
// do not meet it.
func disconnect(t testing.TB, connection *pgconn.PgConn) {
	t.Helper()
	ctx, cancel := bounded(t)
	defer cancel()
	_ = connection.Close(ctx)
	<-connection.CleanupDone()
}
