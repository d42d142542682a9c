package operate

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/apply"
	"pgapply/apply/catalog"
	"pgapply/apply/privilege"
	"pgapply/apply/state"
	"pgapply/conflict"
)

// gatherTerms finds out on what terms a start would apply, and tries them.
func (f *targetFacts) gatherTerms(ctx context.Context, session *targetSession, options apply.Options) (err error) {
	if f.rights, err = privilege.LookAtOwn(ctx, session.conn); err != nil {
		return err
	}
	if err := f.rights.TryFunctions(ctx, session.conn); err != nil {
		return err
	}
	var recorded state.ProgressIn
	if found, err := state.Look(ctx, session.conn, options.Name); err == nil { // else gatherState says so
		recorded = found.ProgressIn
	}
	f.terms, f.termsErr = options.Terms(f.rights, recorded)
	f.sessionErr = trySession(ctx, options, !f.rights.Quiet)
	return nil
}

// checkTerms says how the progress is kept, and what is lost where that is not in origins.
func checkTerms(f *facts) []Finding {
	const subject = "progress"
	terms, role := f.target.terms, f.target.server.Role
	switch {
	case f.target.termsErr != nil:
		return failed(subject, f.target.termsErr)
	case terms.Progress == state.InOrigins:
		return ok(subject, "in replication origins, which %s may use", role)
	case usesOrigins(&f.options.OnConflict):
		return warning(subject, f.administrator(f.target.rights.ForStamping()), "in a table, without replication origins: that somebody else wrote a row is never noticed, and the policies for it decide nothing")
	case f.options.Progress == string(state.InTable):
		return warning(subject, "", "in a table, as --progress table says: %s", apply.WithoutOrigins)
	}
	return warning(subject, f.administrator(f.target.rights.ForStamping()),
		"in a table, since %s may not use replication origins: %s", role, apply.WithoutOrigins)
}

// administrator is a remedy that consists of grants.
func (f *facts) administrator(grants []privilege.Grant) string {
	return "as an administrator, in database " + pgx.Identifier{f.target.server.Database}.Sanitize() + ": " + privilege.SQL(grants)
}

// checkSession says whether a session that applies can be opened, and whether triggers
// are quiet in it. Where they are not, checkFiring names them.
func checkSession(f *facts) []Finding {
	const subject = "triggers"
	switch {
	case f.target.sessionErr != nil:
		return failed("role", apply.TargetError(f.target.sessionErr))
	case f.target.rights.Quiet:
		return ok(subject, "%s may set session_replication_role: they do not fire, nor do rules and foreign keys", f.target.server.Role)
	}
	return warning(subject, f.administrator(f.target.rights.ForQuiet()), "%s may not set session_replication_role: %s", f.target.server.Role, apply.WithoutQuiet)
}

// gatherFiring looks for what would fire on the published tables.
func (f *facts) gatherFiring(ctx context.Context, conn *pgx.Conn) error {
	if f.target.rights.Quiet {
		return nil
	}
	effects, err := catalog.LoadFiring(querier(ctx, conn))
	if err != nil {
		return err
	}
	for i := range f.tables {
		t := &f.tables[i]
		for _, effect := range effects {
			if effect.Schema == t.Schema && effect.Table == t.Name {
				t.fires = append(t.fires, effect)
			}
		}
	}
	return nil
}

// checkFiring refuses, as a start does, to have something fire a second time.
func checkFiring(f *facts, t *tableFacts) []Finding {
	if len(t.fires) == 0 {
		return nil
	}
	if f.options.FireTriggers {
		return warning(t.name(), "", "--fire-triggers: %s", apply.Firing(t.fires))
	}
	return failure(t.name(), apply.FiringHint(f.target.rights.ForQuiet()),
		"the role may not set session_replication_role, and so would fire, a second time where the publisher's have: %s", apply.Firing(t.fires))
}

// mayNotMakeState is what a start would say.
func (f *targetFacts) mayNotMakeState() error {
	return apply.TargetError(&state.PrivilegeError{
		Role: f.server.Role, Database: f.server.Database, Err: errors.New("it has no right to create schemas"),
	})
}

// usesOrigins tells whether policies decide by who wrote a row.
func usesOrigins(policies *conflict.Policies) bool {
	return slices.ContainsFunc(policies.Strings(), func(policy string) bool { return strings.Contains(policy, "_origin_differs=") })
}
