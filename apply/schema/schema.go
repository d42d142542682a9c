// Package schema compares the tables of the target with what is published, and
// creates what the target lacks.
//
//	published tables ──► Compare, Misfits         what does not fit, all of it at once
//	missing tables ──► Needed (publisher) ──► pg_dump ──► entries ──► one transaction on the target
//
// What pg_dump says is taken as it is, entry by entry. It is asked for tables by their
// names, which gives them with their columns, defaults, sequences, indexes and
// constraints, and for nothing else; types and functions come from a second call, since
// pg_dump never dumps what a table needs along with it.
//
// The package does not change what exists, which includes tables that lack a column.
// It copies no rows and no positions of sequences, and leaves out owners, privileges,
// triggers, rules and row-level security.
package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/internal/source"
)

// Options say where the two ends are.
type Options struct {
	// Name of the subscription, for the names of the sessions.
	Name string
	// Source and Target are libpq connection URIs or keyword strings.
	Source, Target string
	// SourcePassfile and TargetPassfile name a password file for one end; empty means
	// the usual one.
	SourcePassfile, TargetPassfile string
	// Program is pg_dump, as a path or a name on the path; empty means pg_dump.
	Program string
	Log     *zap.Logger
}

// Result is what was done. Both lists are of entries as "TABLE public.t".
type Result struct {
	Created []string
	// LeftOut is what the created tables have on the publisher and not here: triggers,
	// rules, policies, and foreign keys to tables that the target does not have.
	LeftOut []string
}

// StatementError says which part of the schema could not be created. Nothing was then.
type StatementError struct {
	// Entry is the part, as "TABLE public.t".
	Entry string
	Hint  string
	Err   error
}

func (e *StatementError) Error() string {
	return fmt.Sprintf("create %s on the target: %v", e.Entry, e.Err)
}

// Unwrap returns the cause.
func (e *StatementError) Unwrap() error { return e.Err }

// closeGrace bounds the farewell to a server, also after the context has ended.
const closeGrace = 2 * time.Second

// Create creates those of the tables that the target lacks, and what they need, in one
// transaction: all of it or nothing, so that what exists is never a half of something.
// It asks for pg_dump only when there is something to create.
//
// Errors of the publisher are those of package source; those of pg_dump are a
// *ProgramError, those of a statement on the target a *StatementError; others are of
// the target.
func Create(ctx context.Context, options Options, tables []source.Table) (*Result, error) {
	target, err := state.ConnectControl(ctx, options.Target, options.TargetPassfile, options.Name)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target)
	there, err := relations(ctx, target)
	if err != nil {
		return nil, err
	}
	exists := func(table source.Table) bool { return there[table] }
	tables = slices.DeleteFunc(slices.Clone(tables), exists)
	if len(tables) == 0 {
		return &Result{}, nil
	}
	needed, version, err := readNeeded(ctx, options, tables)
	if err != nil {
		return nil, err
	}
	entries, err := dump(ctx, options, version, slices.DeleteFunc(needed, func(o source.Object) bool {
		return (o.Kind == source.TableObject || o.Kind == source.SequenceObject) && exists(source.Table{Schema: o.Schema, Name: o.Name})
	}))
	if err != nil {
		return nil, err
	}
	c := creation{result: &Result{}}
	err = pgx.BeginFunc(ctx, target, func(tx pgx.Tx) error {
		c.tx = tx
		if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('check_function_bodies', 'off', true)`); err != nil {
			return err
		}
		if err := c.createSchemas(ctx, needed); err != nil {
			return err
		}
		for i := range entries {
			if err := c.create(ctx, &entries[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if log := options.Log; log != nil {
		log.Info("created on the target what it lacked of the published tables", zap.Strings("created", c.result.Created), zap.Strings("left_out", c.result.LeftOut))
	}
	return c.result, nil
}

// closeTarget says farewell. When that fails nothing is lost: the server has answered
// every statement.
func closeTarget(target *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	_ = target.Close(ctx)
}

// relations are all names on the target that a new table or sequence cannot have.
func relations(ctx context.Context, target *pgx.Conn) (map[source.Table]bool, error) {
	rows, err := target.Query(ctx, `SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace`)
	if err != nil {
		return nil, fmt.Errorf("list the tables of the target: %w", err)
	}
	there := make(map[source.Table]bool)
	var table source.Table
	_, err = pgx.ForEachRow(rows, []any{&table.Schema, &table.Name}, func() error {
		there[table] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the tables of the target: %w", err)
	}
	return there, nil
}

func readNeeded(ctx context.Context, options Options, tables []source.Table) ([]source.Object, int, error) {
	conn, err := source.Connect(ctx, source.Options{
		URI: options.Source, Passfile: options.SourcePassfile, ApplicationName: "pgapply:" + options.Name + ":schema",
	})
	if err != nil {
		return nil, 0, err
	}
	needed, err := conn.Needed(ctx, tables)
	return needed, conn.Version(), errors.Join(err, conn.Close())
}

// creation is the transaction that creates.
type creation struct {
	tx     pgx.Tx
	result *Result
}

// createSchemas creates those that are missing: pg_dump leaves out that of a table
// which is asked for by name, and it knows no public one.
func (c *creation) createSchemas(ctx context.Context, needed []source.Object) error {
	for _, object := range needed {
		if object.Kind != source.SchemaObject {
			continue
		}
		there := false
		if err := c.tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`, object.Name).Scan(&there); err != nil {
			return fmt.Errorf("look for schema %q on the target: %w", object.Name, err)
		}
		if there {
			continue
		}
		e := entry{Type: "SCHEMA", Name: object.Name, SQL: "CREATE SCHEMA " + pgx.Identifier{object.Name}.Sanitize()}
		if err := c.create(ctx, &e); err != nil {
			return err
		}
	}
	return nil
}

// create runs one entry, unless what it creates exists.
func (c *creation) create(ctx context.Context, e *entry) error {
	if e.omitted() {
		c.result.LeftOut = append(c.result.LeftOut, e.String())
		return nil
	}
	err := pgx.BeginFunc(ctx, c.tx, func(tx pgx.Tx) error {
		// An entry may be several statements: the simple protocol takes them as they are.
		return tx.Conn().PgConn().Exec(ctx, e.SQL).Close()
	})
	if err == nil {
		c.result.Created = append(c.result.Created, e.String())
		return nil
	}
	server, is := errors.AsType[*pgconn.PgError](err)
	switch {
	case is && e.mayExist() && slices.Contains(alreadyThere, server.Code):
		return nil
	case is && e.Type == "FK CONSTRAINT" && slices.Contains(notThere, server.Code):
		c.result.LeftOut = append(c.result.LeftOut, e.String()+": the target lacks the table that it refers to")
		return nil
	}
	return &StatementError{Entry: e.String(), Hint: hint(server), Err: err}
}

var (
	// alreadyThere are duplicate_object, _table, _function and _schema.
	alreadyThere = []string{"42710", "42P07", "42723", "42P06"}
	// notThere are undefined_table and invalid_schema_name.
	notThere = []string{"42P01", "3F000"}
)

func hint(server *pgconn.PgError) string {
	if server == nil {
		return ""
	}
	switch {
	case server.Code == "42501":
		return "let the role of --target create it: GRANT CREATE ON SCHEMA or ON DATABASE; or create it by hand"
	case server.Code == "53200" && strings.Contains(server.Hint, "max_locks_per_transaction"):
		return "all tables are created in one transaction: raise max_locks_per_transaction on the target, or create some by hand"
	}
	return "create it by hand, as the target wants it; what exists is left alone then"
}
