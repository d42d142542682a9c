package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"pgapply/apply/catalog"
	"pgapply/apply/privilege"
	"pgapply/apply/state"
	"pgapply/conflict"
)

// Terms are those on which the target lets the subscription apply. What its role may do
// decides them, and what the options say:
//
//	origin functions           ──► Progress  in origins, else in the table alone
//	session_replication_role   ──► Fires     nothing, else triggers, rules, foreign keys
//
// The fence, the order of commits and the position that commits with the rows are the same
// on all terms. They hold for the life of a control session.
type Terms struct {
	Progress state.ProgressIn
	Fires    bool
	// Lacking are the grants that would have brought better terms.
	Lacking []privilege.Grant
}

// initHint says how the grants come about.
const initHint = "`pgapply init --role %s`, run by an administrator, grants it"

// Terms decides. recorded is where the subscription keeps its progress, empty for one that
// is new. The error is a refusal.
func (o *Options) Terms(rights *privilege.Rights, recorded state.ProgressIn) (*Terms, error) {
	t := &Terms{Progress: state.InOrigins, Fires: !rights.Quiet, Lacking: rights.ForQuiet()}
	if o.Progress == string(state.InTable) {
		t.Progress = state.InTable
	} else if missing := rights.ForStamping(); len(missing) > 0 {
		hint := fmt.Sprintf(initHint+": %s", privilege.Quote(rights.Role), privilege.SQL(missing))
		if o.Progress == string(state.InOrigins) {
			return nil, refused(hint+". Or keep the progress in a table, with what is lost then: --progress table",
				"role %q may not use replication origins, which --progress origin needs: it lacks %s", rights.Role, names(missing))
		}
		if recorded == state.InOrigins {
			return nil, refused(hint+". Or go on without origins, with what is lost then: --progress table",
				"subscription %q keeps its progress in replication origins, and role %q may not use them any more: it lacks %s", o.Name, rights.Role, names(missing))
		}
		t.Progress, t.Lacking = state.InTable, append(missing, t.Lacking...)
	}
	return t, t.allow(o)
}

func names(grants []privilege.Grant) string {
	var list []string
	for _, grant := range grants {
		list = append(list, grant.Privilege)
	}
	return strings.Join(list, ", ")
}

// allow refuses what rests on origins where there are none.
func (t *Terms) allow(o *Options) error {
	if t.Progress == state.InOrigins {
		return nil
	}
	const hint = "have the origin functions granted: `pgapply init --role ROLE`"
	switch {
	case o.OnConflict.Uses(conflict.LastUpdateWins):
		return refused(hint+", or choose another policy",
			"the policy last_update_wins compares commit times of the publisher, which the target does not keep without replication origins (--progress table)")
	case o.Origin == "none":
		return refused(hint+", or use --origin any where nothing is replicated back",
			"--origin none is for replication both ways, and what is applied here would go back: without replication origins (--progress table) nothing says where it came from")
	}
	return nil
}

// WithoutOrigins is what is lost where the progress is in the table.
const WithoutOrigins = "rows carry no replication origin and the time of their commit here: that somebody else wrote a row is never noticed (no *_origin_differs), " +
	"last_update_wins and --origin none are refused, and servers that receive from this one cannot tell what is replicated"

// WithoutQuiet is what is lost where triggers fire.
const WithoutQuiet = "triggers, rules and foreign keys of the target fire for what is applied, a second time where the publisher's have: " +
	"one session applies, and tables that have any go row by row"

// settleTerms finds out on what terms the target lets us apply.
func (a *attempt) settleTerms(ctx context.Context) error {
	if a.control.terms != nil {
		return nil
	}
	rights, err := privilege.LookAtOwn(ctx, a.control.conn)
	if err != nil {
		return TargetError(err)
	}
	terms, err := a.options.Terms(rights, a.found.ProgressIn)
	if err != nil {
		return err
	}
	const inTable = "the progress is kept in a table: "
	switch {
	case terms.Progress == state.InOrigins:
	case a.options.Progress == string(state.InTable):
		a.log.Info(inTable + WithoutOrigins)
	default:
		a.log.Warn(inTable+WithoutOrigins, zap.String("lacking", names(rights.ForStamping())))
	}
	a.control.terms = terms
	return nil
}

// refuseFiringFirst is refuseFiring before anything is made or copied.
func (a *attempt) refuseFiringFirst(ctx context.Context) error {
	if !a.control.terms.Fires || a.control.store != nil {
		return nil // or an earlier attempt has looked
	}
	wanted, err := a.wantedTables(ctx)
	if err != nil {
		return SourceError(err)
	}
	fire, err := a.firing(queries(func(sql string) ([][][]byte, error) {
		result := a.control.conn.PgConn().ExecParams(ctx, sql, nil, nil, nil, nil).Read()
		return result.Rows, result.Err
	}), wanted)
	switch {
	case err != nil:
		return err
	case len(fire) > 0:
		a.log.Warn(WithoutQuiet, zap.String("fire", Firing(fire)), zap.String("lacking", names(a.control.terms.Lacking)))
	default:
		a.log.Warn("the role may not set session_replication_role: one session applies, and triggers, rules and foreign keys would fire, of which the tables have none now")
	}
	return nil
}

// refuseFiring refuses to have the target's triggers fire for changes that the
// publisher's have answered already, unless somebody wants that. Tables may have joined
// since the first start, and triggers.
func (a *attempt) refuseFiring(ctx context.Context) error {
	if !a.control.terms.Fires {
		return nil
	}
	tables, err := a.control.store.Tables(ctx)
	if err != nil {
		return TargetError(err)
	}
	_, err = a.firing(a.session, tables)
	return err
}

// firing lists what fires on the tables, or refuses that.
func (a *attempt) firing(querier catalog.Querier, tables []state.Table) ([]catalog.SideEffect, error) {
	effects, err := catalog.LoadFiring(querier)
	if err != nil {
		return nil, TargetError(err)
	}
	fire := slices.DeleteFunc(effects, func(effect catalog.SideEffect) bool {
		return !slices.ContainsFunc(tables, func(table state.Table) bool { return table.Schema == effect.Schema && table.Name == effect.Table })
	})
	if len(fire) > 0 && !a.options.FireTriggers {
		return nil, refused(FiringHint(a.control.terms.Lacking),
			"the role may not set session_replication_role, and so would fire, a second time where the publisher's have: %s", Firing(fire))
	}
	return fire, nil
}

// FiringHint is the remedy where something fires that should not.
func FiringHint(lacking []privilege.Grant) string {
	var quiet []privilege.Grant
	for _, grant := range lacking {
		if strings.HasSuffix(grant.Privilege, "session_replication_role") {
			quiet = append(quiet, grant)
		}
	}
	return "as an administrator: " + privilege.SQL(quiet) + ". Or drop or disable what fires on the target, or let it: --fire-triggers"
}

// Firing lists what fires, in words.
func Firing(effects []catalog.SideEffect) string {
	const most = 10
	var list []string
	for i, effect := range effects {
		if i == most {
			list = append(list, fmt.Sprintf("and %d more", len(effects)-most))
			break
		}
		list = append(list, fmt.Sprintf("%s on %s", effect, pgx.Identifier{effect.Schema, effect.Table}.Sanitize()))
	}
	return printable(strings.Join(list, ", "))
}

// queries is a catalog.Querier for what takes no parameters.
type queries func(sql string) ([][][]byte, error)

func (q queries) Query(sql string, _ ...string) ([][][]byte, error) { return q(sql) }

// stamped tells whether transactions carry replication origins.
func (a *attempt) stamped() bool { return a.control.terms.Progress == state.InOrigins }
