// Package privilege is the one list of what a role must be allowed: on the target the
// role that applies, and on the publisher the one that receives.
//
//	list ──► Look: what of it the role lacks ──► check names it, run decides by it
//	  │                                     └──► init grants it
//	  └────► docs/reference/privileges.md
//
// Nothing else says what has to be granted. The package changes nothing.
package privilege

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// When says for which way to apply a privilege is needed.
type When string

// The ways.
const (
	Always When = "always"
	// Stamping keeps the progress in replication origins.
	Stamping When = "--progress origin"
	// Quiet keeps triggers, rules and foreign keys from firing.
	Quiet When = "unless --fire-triggers"
	// CreatingTables is for tables that the target lacks.
	CreatingTables When = "--copy-schema"
	// Receiving is needed on the publisher.
	Receiving When = "on the publisher"
)

// Privilege is one thing that a role must be allowed.
type Privilege struct {
	When When
	// Name is the privilege, and On what it is about: an origin function by its name,
	// or "the database", "each table" and the like.
	Name, On string
	// For says what needs it.
	For string
}

// originFunctions are those of replication origins that are called. Their parameters
// differ from major to major: the target's catalog has the signatures.
func originFunctions() []Privilege {
	function := func(name, use string) Privilege {
		return Privilege{When: Stamping, Name: "EXECUTE", On: "pg_replication_origin_" + name, For: use}
	}
	return []Privilege{
		function("create", "one origin for each session that applies or copies"),
		function("drop", "a subscription that begins anew; `cleanup`"),
		function("session_setup", "the session takes its origin"),
		function("session_reset", "it gives it back"),
		function("progress", "where to go on, and whether that is on disk"),
		function("advance", "an origin that a failed transaction has moved is set back"),
		function("xact_setup", "the commit is stamped with position and time of the publisher's"),
		function("xact_reset", "a failed one is not"),
	}
}

// FunctionNames are the origin functions that stamping needs.
func FunctionNames() []string {
	var names []string
	for _, function := range originFunctions() {
		names = append(names, function.On)
	}
	return names
}

// List is everything, in the order in which it is explained.
func List() []Privilege {
	list := []Privilege{
		{Always, "CONNECT", "the database", "every session"},
		{Always, "USAGE, CREATE", "schema pgapply", "the state; the schema is the role's own where `init` has made it, so that a later version can upgrade it"},
		{Always, "USAGE", "the schema of each table", "everything"},
		{Always, "SELECT", "each table", "rows are searched; a copy looks whether there are any"},
		{Always, "INSERT", "each table", "published inserts; copies"},
		{Always, "UPDATE", "each table", "published updates; rows that are deleted, or in the way, are locked first"},
		{Always, "DELETE", "each table", "published deletes"},
		{Always, "TRUNCATE", "each table", "published truncations; `--if-not-empty truncate` and `resync`"},
	}
	list = append(list, originFunctions()...)
	return append(list, []Privilege{
		{Quiet, "SET", "session_replication_role", "triggers, rules and foreign keys do not fire; on 14 ALTER ROLE ... SET in its place"},
		{CreatingTables, "CREATE", "the database", "schemas that the target lacks"},
		{CreatingTables, "CREATE", "the schema of each table", "tables that the target lacks, which the role owns then"},
		{Receiving, "REPLICATION", "the role", "the slot and the stream"},
		{Receiving, "CONNECT", "the database", "every session"},
		{Receiving, "USAGE", "the schema of each table", "copies; `verify`"},
		{Receiving, "SELECT", "each table", "copies; `verify`"},
	}...)
}

// Changes are what a publication publishes of a table, and whether it is copied.
type Changes struct{ Inserts, Updates, Deletes, Truncates, Copied bool }

// All is every change.
func All() Changes { return Changes{true, true, true, true, true} }

// OfTable are the privileges that changes of a table need, in the order of [List].
func OfTable(c Changes) []string {
	list := []string{}
	for _, right := range []struct {
		name   string
		needed bool
	}{
		{"SELECT", c.Inserts || c.Updates || c.Deletes || c.Copied},
		{"INSERT", c.Inserts || c.Copied},
		{"UPDATE", c.Inserts || c.Updates || c.Deletes},
		{"DELETE", c.Deletes},
		{"TRUNCATE", c.Truncates},
	} {
		if right.needed {
			list = append(list, right.name)
		}
	}
	return list
}

// Grant is a privilege that a role lacks, and the statement that gives it.
type Grant struct {
	// Privilege names it, such as `EXECUTE on function pg_replication_origin_create(text)`.
	Privilege string
	SQL       string
	// role gets it; function is what it is about, empty for anything else.
	role, function string
}

// On makes the grant of privileges on an object, which is SQL: its kind and its name.
func On(privileges, object, role string) Grant {
	kind, name, _ := strings.Cut(object, " ")
	grant := Grant{
		Privilege: privileges + " on " + strings.ToLower(kind) + " " + name,
		SQL:       fmt.Sprintf("GRANT %s ON %s TO %s", privileges, object, Quote(role)),
		role:      role,
	}
	if kind == "FUNCTION" {
		grant.function = name
	}
	return grant
}

// Quote makes an SQL identifier of names.
func Quote(names ...string) string { return pgx.Identifier(names).Sanitize() }

// Statements are those of the grants, with what concerns functions in one. They are for one
// role.
func Statements(grants []Grant) (statements []string) {
	var functions []string
	for _, grant := range grants {
		if grant.function != "" {
			functions = append(functions, grant.function)
		}
	}
	for _, grant := range grants {
		if grant.function == "" {
			statements = append(statements, grant.SQL)
		} else if functions != nil {
			statements = append(statements, On("EXECUTE", "FUNCTION "+strings.Join(functions, ", "), grant.role).SQL)
			functions = nil
		}
	}
	return statements
}

// SQL joins the statements of grants.
func SQL(grants []Grant) string { return strings.Join(Statements(grants), "; ") }
