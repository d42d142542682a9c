package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/conninfo"
)

// Target says which server and database a session is connected to.
type Target struct {
	SystemID    string
	Database    string
	DatabaseOID uint32
	// Version is server_version_num.
	Version    int
	InRecovery bool
	// Encoding is the database's, in which text is stored.
	Encoding string
	// Role is the role that acts, which SET ROLE may have changed.
	Role      string
	Superuser bool
	// Proxied: the session is with something before the server, since the process that was
	// named at the login is not the one that answers. Pooled: that gives one session of the
	// server to several of its own.
	Proxied, Pooled bool
	// TracksCommits is the setting track_commit_timestamp.
	TracksCommits bool
}

// ReadTarget asks the server at the other end of conn.
func ReadTarget(ctx context.Context, conn *pgx.Conn) (Target, error) {
	var target Target
	err := conn.QueryRow(ctx, `
		SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
		       d.datname, d.oid, pg_catalog.current_setting('server_version_num')::int4, pg_catalog.pg_is_in_recovery(),
		       pg_catalog.pg_encoding_to_char(d.encoding), r.rolname, r.rolsuper,
		       pg_catalog.current_setting('track_commit_timestamp')::bool, pg_catalog.pg_backend_pid() <> $1
		FROM pg_catalog.pg_database d, pg_catalog.pg_roles r
		WHERE d.datname = pg_catalog.current_database() AND r.rolname = current_user`, int64(conn.PgConn().PID())).
		Scan(&target.SystemID, &target.Database, &target.DatabaseOID, &target.Version, &target.InRecovery, &target.Encoding, &target.Role, &target.Superuser, &target.TracksCommits, &target.Proxied)
	if err != nil {
		return target, fmt.Errorf("identify the target: %w", err)
	}
	if target.Proxied {
		target.Pooled, err = sharesSessions(ctx, conn)
	}
	return target, err
}

// sharesSessions opens a second session while the first one idles: two that are open at a
// time are served by two processes, unless a pooler lends out what idles.
func sharesSessions(ctx context.Context, first *pgx.Conn) (bool, error) {
	second, err := pgx.ConnectConfig(ctx, first.Config())
	if err != nil {
		return false, fmt.Errorf("look whether the target is behind a pooler: %w", conninfo.ConnectError(err))
	}
	var processes [2]int
	for i, conn := range []*pgx.Conn{first, second} {
		if err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&processes[i]); err != nil {
			return false, errors.Join(fmt.Errorf("look whether the target is behind a pooler: %w", err), second.Close(ctx))
		}
	}
	return processes[0] == processes[1], second.Close(ctx)
}
