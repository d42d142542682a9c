package operate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgapply/apply"
	"pgapply/apply/privilege"
	"pgapply/apply/state"
	"pgapply/apply/target"
	"pgapply/conflict"
	"pgapply/internal/lsn"
	"pgapply/internal/plain"
	"pgapply/origin"
)

// targetFacts are what the target says about itself.
type targetFacts struct {
	server state.Target
	room   targetRoom
	clock  clock
	// rights are those of the role, terms what follows from them for a start, or termsErr
	// why there can be none. sessionErr is why a session that applies cannot be opened.
	rights     *privilege.Rights
	terms      *apply.Terms
	termsErr   error
	sessionErr error

	// stateErr is why the recorded state cannot be read, nil also where there is none.
	stateErr     error
	recorded     bool // schema pgapply is there
	subscription *state.Subscription
	holder       *state.Holder
	runner       *state.Runner
	// progress is what the origins hold, and ownOrigin whether the first one is the
	// recorded one; progressErr is why the role may not see it.
	progress    lsn.LSN
	progressErr error
	ownOrigin   bool
	// prepared are the subscription's prepared transactions, decided the names of those
	// that somebody has committed.
	prepared []state.Prepared
	decided  []string
	// begun are the tables that took part, or are copied.
	begun []state.Member
	// known are those of which it is decided what becomes of the rows that the target has.
	known []state.Member
	// emptyViews are materialized views that nobody has refreshed since they were made.
	emptyViews []string
}

// targetRoom are limits and what is taken of them. A limit of -1 is none.
type targetRoom struct {
	Connections, Reserved, Connected    int
	RoleConnections, RoleConnected      int
	DatabaseConnections, DatabaseInUse  int
	Origins, OriginsInUse, OriginsOfOur int
	OriginSetting                       string
	CommitTimestamps                    bool
	// MaxPrepared and InPrepared are max_prepared_transactions and how many there are now.
	MaxPrepared, InPrepared int
}

func gatherTarget(ctx context.Context, session *targetSession, options apply.Options) (*targetFacts, error) {
	f := &targetFacts{server: session.server}
	if err := f.gatherTerms(ctx, session, options); err != nil {
		return nil, err
	}
	// Of others' sessions a plain role sees whose they are and where, and that is enough.
	row, err := session.conn.Query(ctx, `
		WITH sessions AS (SELECT usename, datname FROM pg_catalog.pg_stat_activity WHERE datid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()),
		     settings AS (SELECT name, setting FROM pg_catalog.pg_settings)
		SELECT (SELECT setting::int4 FROM settings WHERE name = 'max_connections'),
		       CASE WHEN r.rolsuper THEN 0 ELSE
		         (SELECT pg_catalog.sum(setting::int4) FROM settings WHERE name IN ('superuser_reserved_connections', 'reserved_connections')) END::int4,
		       (SELECT pg_catalog.count(*) FROM sessions),
		       CASE WHEN r.rolsuper THEN -1 ELSE r.rolconnlimit END, (SELECT pg_catalog.count(*) FROM sessions WHERE usename = r.rolname),
		       CASE WHEN r.rolsuper THEN -1 ELSE d.datconnlimit END, (SELECT pg_catalog.count(*) FROM sessions WHERE datname = d.datname),
		       o.setting::int4, (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_origin),
		       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_origin WHERE roname = ANY ($1)),
		       o.name, pg_catalog.current_setting('track_commit_timestamp')::bool,
		       pg_catalog.current_setting('max_prepared_transactions')::int4, (SELECT pg_catalog.count(*) FROM pg_catalog.pg_prepared_xacts)
		FROM pg_catalog.pg_roles r, pg_catalog.pg_database d,
		     (SELECT * FROM settings WHERE name IN ('max_active_replication_origins', 'max_replication_slots') ORDER BY name LIMIT 1) o
		WHERE r.rolname = current_user AND d.datname = pg_catalog.current_database()`, allOrigins(session, options))
	if err == nil {
		f.room, err = pgx.CollectOneRow(row, pgx.RowToStructByPos[targetRoom])
	}
	if err != nil {
		return nil, fmt.Errorf("read the limits of the target: %w", err)
	}
	if f.prepared, err = state.ListPrepared(ctx, session.conn, session.preparedPrefix(options.Name)); err != nil {
		return nil, err
	}
	if f.emptyViews, err = materializedViews(ctx, session.conn, "NOT c.relispopulated"); err != nil {
		return nil, fmt.Errorf("look for materialized views of the target: %w", err)
	}
	f.clock, err = askClock(ctx, func(ctx context.Context, sql string) (text string, err error) {
		err = session.conn.QueryRow(ctx, sql+"::text").Scan(&text)
		return text, err
	})
	if err != nil {
		return nil, err
	}
	return f, f.gatherState(ctx, session, options)
}

func firstOrigin(session *targetSession, options apply.Options) string {
	return origin.Name(options.Name, session.server.DatabaseOID, 0)
}

// allOrigins are the names of the origins that a runner takes, one for each session that
// applies or copies.
func allOrigins(session *targetSession, options apply.Options) []string {
	var names []string
	for worker := range options.Sessions() {
		names = append(names, origin.Name(options.Name, session.server.DatabaseOID, worker))
	}
	if options.CopyData {
		for job := range options.TableJobs {
			names = append(names, origin.CopyName(options.Name, session.server.DatabaseOID, job))
		}
	}
	return names
}

// trySession opens a session such as applies, and closes it: what it needs cannot all
// be asked for in advance.
func trySession(ctx context.Context, options apply.Options, fires bool) error {
	session, err := target.Open(ctx, target.Options{
		URI: options.Target, Passfile: options.TargetPassfile, ApplicationName: "pgapply:" + options.Name + ":check",
		SynchronousCommit: options.SynchronousCommit, Subscription: options.Name, Fires: fires,
	})
	if err != nil {
		return err
	}
	session.Close()
	return nil
}

// gatherState reads what is recorded. That it cannot be read is a finding.
func (f *targetFacts) gatherState(ctx context.Context, session *targetSession, options apply.Options) error {
	store, err := state.OpenExisting(ctx, session.conn, options.Name)
	if errors.Is(err, state.ErrNoSchema) {
		return nil
	}
	f.recorded = true
	if err != nil {
		f.stateErr = err
		return nil
	}
	if f.subscription, f.stateErr = store.Subscription(ctx); f.stateErr != nil {
		return nil
	}
	if f.decided, err = store.CommittedByHand(ctx); err != nil {
		return err
	}
	if f.begun, err = store.Begun(ctx); err != nil {
		return err
	}
	if f.known, err = store.Decided(ctx); err != nil {
		return err
	}
	if f.holder, err = store.LockHolder(ctx); err != nil {
		return err
	}
	if f.runner, err = store.Runner(ctx); err != nil {
		return err
	}
	origins, err := store.Origins(ctx)
	if err != nil {
		return err
	}
	name := firstOrigin(session, options)
	for _, known := range origins {
		if known.Name != name || known.ID == 0 {
			continue
		}
		err := session.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_origin WHERE roname = $1 AND roident::int8 = $2)`,
			name, int64(known.ID)).Scan(&f.ownOrigin)
		if err != nil {
			return fmt.Errorf("look for replication origin %q: %w", name, err)
		}
	}
	f.progress, f.progressErr = store.Progress(ctx)
	return nil
}

func checkTarget(f *facts) []Finding {
	if err := f.ends().CheckTarget(); err != nil {
		return failed("target", err)
	}
	server := f.target.server
	if server.Proxied {
		return warning("target", "connect to the server itself; a proxy is no harm that gives each session one of the server for as long as it lives",
			"the connection goes through a proxy or a pooler, before PostgreSQL %s, database %s, role %s: in any mode but that of sessions, locks and the replication origin are lost",
			version(server.Version), server.Database, server.Role)
	}
	return ok("target", "PostgreSQL %s, database %s, role %s", version(server.Version), server.Database, server.Role)
}

func checkState(f *facts) []Finding {
	t := f.target
	if old, ok := errors.AsType[*state.VersionError](t.stateErr); ok && old.Have < old.Want {
		return warning("state", "`pgapply run` upgrades it when it starts; until then slot and progress cannot be checked", "%s", old.Error())
	}
	switch {
	case t.stateErr != nil:
		return failed("state", apply.TargetError(t.stateErr))
	case !t.recorded && !t.rights.MayCreateState:
		return failed("state", t.mayNotMakeState())
	case t.subscription == nil:
		return ok("state", "subscription %s is new", f.options.Name)
	}
	if !t.subscription.Enabled {
		var report Report
		report.addPause(t.subscription)
		return warning("state", report.goOn(), "the subscription is %s", report.paused())
	}
	if t.holder != nil && t.runner != nil && t.runner.LastError != "" {
		return warning("state", t.runner.LastErrorHint, "a runner lives (%s), and its last error is: %s", t.holder, plain.Line(t.runner.LastError))
	}
	if t.holder != nil {
		return ok("state", "subscription %s is recorded, and a runner lives: %s", f.options.Name, t.holder)
	}
	return ok("state", "subscription %s is recorded and no runner lives", f.options.Name)
}

// runnerSessions counts a runner's sessions on the target: those that apply, and one for
// the state.
func runnerSessions(f *facts) int { return f.options.Sessions() + 1 }

func checkConnections(f *facts) []Finding {
	wanted := runnerSessions(f)
	room := f.target.room
	if f.target.holder != nil {
		return ok("connections", "%d of %d in use, those of the runner among them", room.Connected, room.Connections)
	}
	const remedy = "raise it, end sessions that are not needed, or give fewer --workers"
	copying := copyJobs(f)
	for _, limit := range []struct {
		name           string
		allowed, inUse int
	}{
		{name: "max_connections", allowed: room.Connections - room.Reserved, inUse: room.Connected},
		{name: "the role's CONNECTION LIMIT", allowed: room.RoleConnections, inUse: room.RoleConnected},
		{name: "the database's CONNECTION LIMIT", allowed: room.DatabaseConnections, inUse: room.DatabaseInUse},
	} {
		switch free := limit.allowed - limit.inUse; {
		case limit.allowed < 0:
		case free < wanted:
			return failure("connections", remedy, "a runner needs %d connections, and %s leaves %d of %d", wanted, limit.name, max(0, free), limit.allowed)
		case free < wanted+copying:
			return warning("connections", remedy+orJobs(f), "a runner needs %d connections, and %d more while it copies tables, and %s leaves %d of %d",
				wanted, copying, limit.name, free, limit.allowed)
		}
	}
	if copying > 0 {
		return ok("connections", "%d of %d in use; a runner takes %d, and %d more while it copies tables", room.Connected, room.Connections, wanted, copying)
	}
	return ok("connections", "%d of %d in use; a runner takes %d", room.Connected, room.Connections, wanted)
}

func checkOrigins(f *facts) []Finding {
	if terms := f.target.terms; terms != nil && terms.Progress == state.InTable {
		return nil
	}
	room, wanted := f.target.room, f.options.Sessions()+copyJobs(f)
	least := f.options.Sessions() + min(copyJobs(f), 1)
	if missing := wanted - room.OriginsOfOur; missing > 0 && room.OriginsInUse+missing > room.Origins {
		// Origins that nobody uses take no place, but which these are is not for all to see.
		level := warning
		if room.Origins < least {
			level = failure
		}
		return level("origins", "raise "+room.OriginSetting+" and restart the target, drop origins that are not needed, or give fewer --workers"+orJobs(f),
			"a runner needs %s, %s is %d, and %s", counted(int64(wanted), "replication origin"), room.OriginSetting, room.Origins, existing(room.OriginsInUse))
	}
	return ok("origins", "%d of %d replication origins exist", room.OriginsInUse, room.Origins)
}

func orJobs(f *facts) string {
	if copyJobs(f) > 0 {
		return " or --table-jobs"
	}
	return ""
}

func existing(origins int) string {
	if origins == 1 {
		return "1 exists"
	}
	return fmt.Sprintf("%d exist", origins)
}

func checkCommitTimestamps(f *facts) []Finding {
	const subject = "commit times"
	remedy := "set track_commit_timestamp = on and restart the target"
	policies := &f.options.OnConflict
	switch {
	case f.target.terms != nil && f.target.terms.Progress == state.InTable:
		return nil // they say nothing of who wrote a row
	case f.target.room.CommitTimestamps:
		return ok(subject, "track_commit_timestamp is on")
	case policies.Uses(conflict.LastUpdateWins):
		return ok(subject, "track_commit_timestamp is off, which run refuses with these policies: see the target")
	case usesOrigins(policies):
		return warning(subject, remedy, "track_commit_timestamp is off: that somebody else wrote a row is never noticed, and the policies for it decide nothing")
	}
	return ok(subject, "track_commit_timestamp is off: that somebody else wrote a row is not noticed, which no policy needs")
}
