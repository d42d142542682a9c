package state

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// InitSteps are the statements by which an administrator, whose session conn is, lets a
// role keep its state, each one or more of SQL: none where nothing is missing. A schema that is made by them belongs
// to the role, which creates and upgrades what is in it as [Open] does. In one that belongs
// to somebody else the role gets rights. They are meant for one transaction.
//
// What the role owns already is left to the role: whoever has more rights must not touch
// tables on which it may have put code.
func InitSteps(ctx context.Context, conn *pgx.Conn, role string) ([]string, error) {
	var owner string
	err := conn.QueryRow(ctx, `SELECT r.rolname FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'pgapply'`).Scan(&owner)
	quoted := pgx.Identifier{role}.Sanitize()
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return []string{"CREATE SCHEMA pgapply AUTHORIZATION " + quoted + ";\nSET LOCAL ROLE " + quoted + ";\n" + migrationSQL(0) + ";\nRESET ROLE"}, nil
	case err != nil:
		return nil, fmt.Errorf("look for schema pgapply: %w", err)
	case owner == role:
		return openSteps(ctx, conn, role)
	}
	if err := ownerError(conn.QueryRow(ctx, foreignOwnerSQL, role)); err != nil {
		return nil, err
	}
	return grantSteps(ctx, conn, role)
}

// migrationSQL brings the schema from a version to the last.
func migrationSQL(have int) string {
	steps := migrations()
	return strings.Join(steps[have:], "") + recordVersionSQL(len(steps))
}

// openSteps grant the schema itself: its owner may have lost that, too.
func openSteps(ctx context.Context, conn *pgx.Conn, role string) ([]string, error) {
	var opened bool
	err := conn.QueryRow(ctx, `
		SELECT pg_catalog.has_schema_privilege($1::text::name, 'pgapply', 'USAGE') AND pg_catalog.has_schema_privilege($1::text::name, 'pgapply', 'CREATE')`, role).Scan(&opened)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look at schema pgapply: %w", err)
	case opened:
		return nil, nil
	}
	return []string{"GRANT USAGE, CREATE ON SCHEMA pgapply TO " + pgx.Identifier{role}.Sanitize()}, nil
}

// grantSteps upgrade a schema that belongs to somebody whom the role trusts, and grant
// what is in it.
func grantSteps(ctx context.Context, conn *pgx.Conn, role string) (steps []string, err error) {
	var exists bool
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class
		WHERE relnamespace = 'pgapply'::pg_catalog.regnamespace AND relname = 'version' AND relkind = 'r')`).Scan(&exists)
	have := 0
	if err == nil && exists {
		err = conn.QueryRow(ctx, `SELECT version FROM pgapply.version`).Scan(&have)
	}
	if err != nil {
		return nil, fmt.Errorf("look at schema pgapply: %w", err)
	}
	if have > Version() {
		return nil, &VersionError{Have: have, Want: Version()}
	}
	if have < Version() {
		steps = append(steps, fmt.Sprintf("-- schema pgapply from version %d to %d\n", have, Version())+migrationSQL(have))
	}
	open, err := openSteps(ctx, conn, role)
	if err != nil {
		return nil, err
	}
	steps = append(steps, open...)
	const rights = "SELECT, INSERT, UPDATE, DELETE"
	var lacks bool
	err = conn.QueryRow(ctx, `SELECT EXISTS (
		SELECT FROM pg_catalog.pg_class c CROSS JOIN pg_catalog.unnest($2::text[]) AS p
		WHERE c.relnamespace = 'pgapply'::pg_catalog.regnamespace AND c.relkind = 'r' AND NOT pg_catalog.has_table_privilege($1::text::name, c.oid, p))`,
		role, strings.Split(rights, ", ")).Scan(&lacks)
	if err != nil {
		return nil, fmt.Errorf("look at schema pgapply: %w", err)
	}
	if lacks || have < Version() {
		steps = append(steps, "GRANT "+rights+" ON ALL TABLES IN SCHEMA pgapply TO "+pgx.Identifier{role}.Sanitize())
	}
	return steps, nil
}
