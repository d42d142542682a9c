package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Found is what a database has of the state before anybody makes or upgrades it.
type Found struct {
	conn *pgx.Conn
	name string
	// schema is its OID, 0 where there is none; version that of what is in it.
	schema  uint32
	version int

	// Exists tells whether there is a state, of any version. Known tells that it has the
	// subscription, and ProgressIn where that keeps its progress.
	Exists, Known bool
	ProgressIn    ProgressIn
}

// Look looks for the state and the subscription over a connection made by
// [ConnectControl], and changes nothing. Errors are those of [Open], but any version will
// do.
func Look(ctx context.Context, conn *pgx.Conn, name string) (*Found, error) {
	found := &Found{conn: conn, name: name}
	if err := found.look(ctx, conn); err != nil {
		return nil, found.store().explain(ctx, err)
	}
	return found, nil
}

// Open is the function [Open] after a look.
func (f *Found) Open(ctx context.Context) (*Store, error) {
	if !f.Exists || f.version != Version() {
		err := migrate(ctx, f.conn, migrations())
		if err == nil {
			err = f.look(ctx, f.conn)
		}
		if err != nil {
			return nil, f.store().explain(ctx, err)
		}
	}
	return f.store(), nil
}

func (f *Found) store() *Store {
	s := newStore(f.conn, f.name)
	s.schema = f.schema
	return s
}

// look refuses a schema whose owner cannot be trusted before anything in it is read.
func (f *Found) look(ctx context.Context, q querier) error {
	var foreign error
	var both pgx.Batch
	both.Queue(foreignOwnerSQL, "").QueryRow(func(row pgx.Row) error {
		foreign = ownerError(row)
		return nil
	})
	both.Queue(`SELECT n.oid, EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = 'version' AND relnamespace = n.oid)
		FROM pg_catalog.pg_namespace n WHERE nspname = 'pgapply'`).QueryRow(func(row pgx.Row) error {
		return optional(row.Scan(&f.schema, &f.Exists))
	})
	err := q.SendBatch(ctx, &both).Close()
	switch {
	case foreign != nil:
		return foreign
	case err != nil:
		return fmt.Errorf("look for schema pgapply: %w", err)
	case !f.Exists:
		return nil
	}
	var progress *string
	err = q.QueryRow(ctx, `SELECT v.version, (SELECT coalesce(pg_catalog.to_jsonb(s) ->> 'progress_in', 'origin') FROM pgapply.subscription s WHERE name = $1)
		FROM pgapply.version v`, f.name).Scan(&f.version, &progress)
	if errors.Is(err, pgx.ErrNoRows) {
		return errors.New("table pgapply.version on the target is empty: restore its row or drop schema pgapply")
	}
	if err != nil {
		return fmt.Errorf("read the version of schema pgapply: %w", err)
	}
	if progress != nil {
		f.Known, f.ProgressIn = true, ProgressIn(*progress)
	}
	return nil
}

// optional is no error where there is no row.
func optional(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// foreignOwnerSQL gives an object whose owner is not to be trusted, as a rule none: somebody
// with fewer rights may have prepared the schema for a role. Trusted are roles that may act
// as that one anyway (administrators among them) and, unless it is a superuser, the owner of
// the database. The role is $1; empty means the session's.
const foreignOwnerSQL = `
	SELECT o.object, pg_catalog.pg_get_userbyid(o.owner), me.rolname
	FROM (SELECT 'schema pgapply', nspowner FROM pg_catalog.pg_namespace WHERE nspname = 'pgapply'
	      UNION ALL
	      SELECT 'relation pgapply.' || relname, relowner FROM pg_catalog.pg_class
	      WHERE relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'pgapply')
	        AND relkind <> 't') AS o (object, owner),
	     pg_catalog.pg_database d, pg_catalog.pg_roles me
	WHERE d.datname = pg_catalog.current_database() AND me.rolname = coalesce(nullif($1, ''), current_user)
	  AND NOT pg_catalog.pg_has_role(o.owner, me.oid, 'MEMBER')
	  AND (me.rolsuper OR o.owner <> d.datdba)
	ORDER BY o.object DESC LIMIT 1`

// ownerError makes the *[OwnerError] of a row of foreignOwnerSQL.
func ownerError(row pgx.Row) error {
	var foreign OwnerError
	switch err := row.Scan(&foreign.Object, &foreign.Owner, &foreign.Role); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look at the owner of schema pgapply: %w", err)
	}
	return &foreign
}
