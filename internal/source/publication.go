package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Table names a published table.
type Table struct{ Schema, Name string }

// MissingPublications returns those of names that the publisher does not have,
// in the order given.
func (c *Conn) MissingPublications(ctx context.Context, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := c.Query(ctx, "SELECT pubname FROM pg_catalog.pg_publication WHERE pubname IN ("+literals(names)+")")
	if err != nil {
		return nil, fmt.Errorf("look for publications: %w", err)
	}
	found := make(map[string]bool)
	for row := range rows {
		found[text(rows, row, 0)] = true
	}
	var missing []string
	for _, name := range names {
		if !found[name] {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// TablesLockedError says that a published table is locked exclusively, and that the
// publisher does not tell what is published as long as it is.
type TablesLockedError struct{ Err error }

func (e *TablesLockedError) Error() string {
	return fmt.Sprintf("list the published tables: one of them is locked on the publisher: %s", e.Err)
}

// Unwrap returns the cause.
func (e *TablesLockedError) Unwrap() error { return e.Err }

// tableLockTimeout bounds the wait for a lock on a published table, which
// pg_get_publication_tables opens since 15. Whoever holds it may do so for hours.
const tableLockTimeout = "1s"

// stateSchema is where a publisher that is a target itself has the state of what it
// receives. FOR ALL TABLES publishes it, and it belongs to nobody else: a copy of it over
// another target's state would be the end of that one's subscriptions.
const stateSchema = "pgapply"

// Tables returns the tables that the publications publish, but for those of schema pgapply,
// sorted by name: for
// a partitioned table its root or its leaves, as publish_via_partition_root
// says (subscriptioncmds.c, fetch_table_list). It does not wait long for a table
// that is locked exclusively, but returns a *TablesLockedError.
func (c *Conn) Tables(ctx context.Context, publications []string) ([]Table, error) {
	if len(publications) == 0 {
		return nil, nil
	}
	sql := `SELECT DISTINCT schemaname, tablename FROM pg_catalog.pg_publication_tables
		WHERE pubname IN (` + literals(publications) + `) AND schemaname <> ` + literal(stateSchema) + ` ORDER BY 1, 2`
	if c.major() >= 16 {
		// All publications in one call: a leaf that one of them publishes and
		// whose root another one publishes comes only once.
		sql = `SELECT DISTINCT n.nspname, c.relname FROM pg_catalog.pg_class c
			JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			JOIN (SELECT (pg_catalog.pg_get_publication_tables(VARIADIC pg_catalog.array_agg(pubname::pg_catalog.text))).relid
				FROM pg_catalog.pg_publication WHERE pubname IN (` + literals(publications) + `)) p ON p.relid = c.oid
			WHERE n.nspname <> ` + literal(stateSchema) + ` ORDER BY 1, 2`
	}
	// Both are one transaction, so that the timeout ends with it.
	rows, err := c.Query(ctx, "SELECT pg_catalog.set_config('lock_timeout', '"+tableLockTimeout+"', true); "+sql)
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && server.Code == "55P03" {
		return nil, &TablesLockedError{Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("list the published tables: %w", err)
	}
	tables := make([]Table, len(rows))
	for row := range rows {
		tables[row] = Table{Schema: text(rows, row, 0), Name: text(rows, row, 1)}
	}
	return tables, nil
}
