package privilege

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Rights are what a role may do on the target beside its tables.
type Rights struct {
	Role, Database string
	// Version is server_version_num.
	Version   int
	Superuser bool
	// MayConnect and MayCreate are rights on the database, MayCreateState those to make
	// the state: CREATE in schema pgapply where that exists, else on the database.
	MayConnect, MayCreate, MayCreateState bool
	// Functions are those of replication origins that the role may not execute, by their
	// signatures.
	Functions []string
	// Quiet tells that the role may set session_replication_role, or has it set.
	Quiet bool
}

const rightsSQL = `
	SELECT r.rolname, d.datname, pg_catalog.current_setting('server_version_num')::int4, r.rolsuper,
	       pg_catalog.has_database_privilege(r.oid, d.oid, 'CONNECT'), pg_catalog.has_database_privilege(r.oid, d.oid, 'CREATE'),
	       coalesce((SELECT pg_catalog.has_schema_privilege(r.oid, n.oid, 'CREATE') FROM pg_catalog.pg_namespace n WHERE n.nspname = 'pgapply'),
	                pg_catalog.has_database_privilege(r.oid, d.oid, 'CREATE')),
	       ARRAY(SELECT p.oid::pg_catalog.regprocedure::text FROM pg_catalog.pg_proc p
	             WHERE p.pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'pg_catalog')
	               AND p.proname = ANY ($2) AND NOT pg_catalog.has_function_privilege(r.oid, p.oid, 'EXECUTE') ORDER BY 1),
	       r.rolsuper OR EXISTS (SELECT FROM pg_catalog.pg_db_role_setting s
	             WHERE s.setrole IN (0, r.oid) AND s.setdatabase IN (0, d.oid) AND 'session_replication_role=replica' = ANY (s.setconfig))
	FROM pg_catalog.pg_roles r, pg_catalog.pg_database d
	WHERE r.rolname = coalesce(nullif($1, ''), current_user) AND d.datname = pg_catalog.current_database()`

// ErrNoRole says that the server has no role of the name.
var ErrNoRole = errors.New("the role does not exist")

// Look reads the rights of a role in the database of conn, which may be another's.
func Look(ctx context.Context, conn *pgx.Conn, role string) (*Rights, error) {
	rows, err := conn.Query(ctx, rightsSQL, role, FunctionNames())
	if err != nil {
		return nil, fmt.Errorf("read the rights on the target: %w", err)
	}
	rights, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[Rights])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNoRole
	}
	if err == nil && !rights.Quiet && rights.Version >= 15_00_00 {
		err = conn.QueryRow(ctx, `SELECT pg_catalog.has_parameter_privilege($1::text::name, 'session_replication_role', 'SET')`, rights.Role).Scan(&rights.Quiet)
	}
	if err != nil {
		return nil, fmt.Errorf("read the rights on the target: %w", err)
	}
	return rights, nil
}

// LookAtOwn is [Look] for the role of the session, which tries what can be tried: some
// providers let a role do what the catalogs know nothing of.
func LookAtOwn(ctx context.Context, conn *pgx.Conn) (*Rights, error) {
	rights, err := Look(ctx, conn, "")
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, `SELECT pg_catalog.set_config('session_replication_role', 'replica', true)
		WHERE pg_catalog.current_setting('session_replication_role') <> 'replica'`)
	if err != nil && !refused(err) {
		return nil, fmt.Errorf("try to set session_replication_role on the target: %w", err)
	}
	rights.Quiet = err == nil
	return rights, nil
}

// TryFunctions calls the origin functions that the catalogs say the role may execute,
// with an origin that does not exist, so that nothing happens. Those that are refused all
// the same join Functions.
func (r *Rights) TryFunctions(ctx context.Context, conn *pgx.Conn) error {
	const absent = "pgapply: no such origin"
	for _, call := range []string{
		`pg_replication_origin_create('pg_reserved')`, // such names are refused, after the rights were looked at
		`pg_replication_origin_drop('` + absent + `')`,
		`pg_replication_origin_session_setup('` + absent + `')`,
		`pg_replication_origin_session_reset()`,
		`pg_replication_origin_progress('` + absent + `', false)`,
		`pg_replication_origin_advance('` + absent + `', '0/1')`,
		`pg_replication_origin_xact_setup('0/1', pg_catalog.now())`,
		`pg_replication_origin_xact_reset()`,
	} {
		name, _, _ := strings.Cut(call, "(")
		if r.lacks(name) {
			continue
		}
		_, err := conn.Exec(ctx, "SELECT pg_catalog."+call)
		if refused(err) {
			r.Functions = append(r.Functions, name)
		} else if answer := (*pgconn.PgError)(nil); err != nil && !errors.As(err, &answer) {
			return fmt.Errorf("try %s on the target: %w", name, err)
		}
	}
	return nil
}

func (r *Rights) lacks(function string) bool {
	for _, signature := range r.Functions {
		if strings.HasPrefix(signature, function) {
			return true
		}
	}
	return false
}

// refused tells an error for want of a privilege.
func refused(err error) bool {
	const insufficientPrivilege = "42501"
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refusal.Code == insufficientPrivilege
}

// Stamps tells whether the role may keep its progress in replication origins.
func (r *Rights) Stamps() bool { return len(r.Functions) == 0 }

// ForStamping are the grants that are missing for that, one for each function.
func (r *Rights) ForStamping() []Grant {
	var grants []Grant
	for _, signature := range r.Functions {
		grants = append(grants, On("EXECUTE", "FUNCTION pg_catalog."+signature, r.Role))
	}
	return grants
}

// ForQuiet are the grants without which triggers, rules and foreign keys fire.
func (r *Rights) ForQuiet() []Grant {
	switch {
	case r.Quiet:
		return nil
	case r.Version < 15_00_00:
		return []Grant{{
			Privilege: "SET on parameter session_replication_role",
			SQL:       fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET session_replication_role = 'replica'", Quote(r.Role), Quote(r.Database)),
		}}
	}
	return []Grant{On("SET", "PARAMETER session_replication_role", r.Role)}
}

// ForDatabase are the grants on the database that are missing, with those that creating
// tables needs or without.
func (r *Rights) ForDatabase(creates bool) []Grant {
	var grants []Grant
	for _, right := range []struct {
		name   string
		lacked bool
	}{{"CONNECT", !r.MayConnect}, {"CREATE", creates && !r.MayCreate}} {
		if right.lacked {
			grants = append(grants, On(right.name, "DATABASE "+Quote(r.Database), r.Role))
		}
	}
	return grants
}
