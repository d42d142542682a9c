package state

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNoSchema says that the database has no schema pgapply, or that nothing
	// of ours is in it yet.
	ErrNoSchema = errors.New("the database has no pgapply state: nothing was ever run here, or it was cleaned up")
	// ErrNoSubscription says that the state does not know the subscription.
	ErrNoSubscription = errors.New("the state does not know this subscription")
	// ErrSlotRecorded says that a slot may not be created or adopted, because
	// the state already has one for this subscription.
	ErrSlotRecorded = errors.New("the state already records a slot for this subscription")
	// ErrRunnerReplaced says that the runner row belongs to another process.
	ErrRunnerReplaced = errors.New("another process has taken over the runner row of this subscription")
)

// VersionError says that schema and program do not fit: Have is the version of
// the schema on the target, Want the one that this program reads and writes.
type VersionError struct{ Have, Want int }

func (e *VersionError) Error() string {
	if e.Have > e.Want {
		return fmt.Sprintf("schema pgapply on the target has version %d, and this pgapply knows versions up to %d", e.Have, e.Want)
	}
	return fmt.Sprintf("schema pgapply on the target has version %d, and this pgapply needs version %d", e.Have, e.Want)
}

// Hint says which of the two to upgrade.
func (e *VersionError) Hint() string {
	if e.Have > e.Want {
		return "upgrade this pgapply to the version that last ran here, or a later one"
	}
	return "upgrade the schema: it happens when the new version's `pgapply run` starts"
}

// PrivilegeError says that the role of the control session may not create or
// use the schema.
type PrivilegeError struct {
	Role, Database string
	// Exists tells a schema that is there but closed from one that is missing.
	Exists bool
	Err    error
}

func (e *PrivilegeError) Error() string {
	if e.Exists {
		return fmt.Sprintf("role %q may not use schema pgapply in database %q: %v", e.Role, e.Database, e.Err)
	}
	return fmt.Sprintf("role %q may not create schema pgapply in database %q: %v", e.Role, e.Database, e.Err)
}

func (e *PrivilegeError) Unwrap() error { return e.Err }

// Hint is the statement that an administrator runs in the database.
func (e *PrivilegeError) Hint() string {
	role := pgx.Identifier{e.Role}.Sanitize()
	if e.Exists {
		return fmt.Sprintf("as an administrator, in database %q: GRANT USAGE, CREATE ON SCHEMA pgapply TO %s; "+
			"GRANT ALL ON ALL TABLES IN SCHEMA pgapply TO %s", e.Database, role, role)
	}
	return fmt.Sprintf("as an administrator, in database %q: CREATE SCHEMA pgapply AUTHORIZATION %s", e.Database, role)
}

// OwnerError says that the schema, or a relation in it, belongs to a role that
// could plant code there for our role to run: whoever owns a table may put a
// trigger on it, and we write to these tables.
type OwnerError struct{ Object, Owner, Role string }

func (e *OwnerError) Error() string {
	return fmt.Sprintf("%s on the target belongs to role %q, which has no right to act as role %q", e.Object, e.Owner, e.Role)
}

// Hint is the remedy.
func (e *OwnerError) Hint() string {
	return fmt.Sprintf("look at who made it; then, as an administrator, either ALTER ... OWNER TO %s or drop it",
		pgx.Identifier{e.Role}.Sanitize())
}

// SQLSTATEs that are told apart here.
const (
	insufficientPrivilege = "42501"
	undefinedTable        = "42P01"
	invalidSchemaName     = "3F000"
	dependentObjectsExist = "2BP01"
)

func hasCode(err error, codes ...string) bool {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	for _, code := range codes {
		if server.Code == code {
			return true
		}
	}
	return false
}
