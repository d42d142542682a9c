package state

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
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
	// Pooled: the session is not with the server, but with a pooler that passes on what it
	// is told. The process that a server names at the login is not the one that answers.
	Pooled bool
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
		Scan(&target.SystemID, &target.Database, &target.DatabaseOID, &target.Version, &target.InRecovery, &target.Encoding, &target.Role, &target.Superuser, &target.TracksCommits, &target.Pooled)
	if err != nil {
		return target, fmt.Errorf("identify the target: %w", err)
	}
	return target, nil
}
