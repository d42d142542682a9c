package integration

import (
	"fmt"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// A role that is no superuser, owns nothing, and has what `pgapply init` has granted.

// plainRole makes such a role on the target and has the link use it. What needs an
// administrator goes on to be done as one, through the link that is returned.
func (l *link) plainRole() (administrator *link) {
	l.t.Helper()
	was := *l
	administrator = &was
	role := l.name + "_role"
	database := pgtest.Query(l.t, l.target, `SELECT quote_ident(current_database())`)
	l.onTarget(`CREATE ROLE `+role+` LOGIN`, `REVOKE CONNECT ON DATABASE `+database+` FROM PUBLIC`, `REVOKE ALL ON SCHEMA public FROM PUBLIC`)
	l.t.Cleanup(func() {
		parameters.Lock()
		defer parameters.Unlock()
		pgtest.Exec(l.t, administrator.target, `DROP OWNED BY `+role+` CASCADE`, `ALTER ROLE `+role+` RESET ALL`, `DROP ROLE `+role)
	})
	parsed, err := url.Parse(l.target)
	require.NoError(l.t, err)
	parsed.User = url.User(role)
	l.target = parsed.String()
	return administrator
}

// parameters serialises grants on parameters, whose lists of rights all databases of a
// server share, and which it does not lock.
var parameters sync.Mutex

// role is the name of the plain role.
func (l *link) role() string { return l.name + "_role" }

// initialize runs `pgapply init` as the administrator.
func (l *link) initialize(change ...func(*operate.InitOptions)) *operate.Initialization {
	l.t.Helper()
	options := operate.InitOptions{
		Endpoints: operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}, Role: l.role(), Publications: []string{"p"},
	}
	for _, set := range change {
		set(&options)
	}
	parameters.Lock()
	defer parameters.Unlock()
	done, err := operate.Init(l.t.Context(), options)
	require.NoError(l.t, err)
	return done
}

// withoutOrigins takes the functions of replication origins away from the role.
func (l *link) withoutOrigins(role string) {
	l.t.Helper()
	l.onTarget(`DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname LIKE 'pg_replication_origin%' LOOP
		EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM %I', f, '` + role + `'); END LOOP; END $$`)
}

// TestPlainRole: everything that a subscription does, as a role with the grants of init and
// nothing more, with the progress in origins and in the table. Tables belong to others.
func TestPlainRole(t *testing.T) {
	t.Parallel()
	for _, progress := range []state.ProgressIn{state.InOrigins, state.InTable} {
		t.Run(string(progress), func(t *testing.T) {
			t.Parallel()
			publisher, target := pgtest.Shared(t)
			l := linkOf(t, publisher, target)
			l.loadTables()
			l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
			l.onSource(`ALTER PUBLICATION p ADD TABLE c`, `INSERT INTO c SELECT g, 'c' FROM generate_series(1, 500) g`, `DELETE FROM counter`,
				`INSERT INTO counter SELECT g, 0 FROM generate_series(0, 7) g`)
			l.onTarget(`DELETE FROM counter`)
			administrator := l.plainRole()
			administrator.initialize()
			if progress == state.InTable {
				administrator.withoutOrigins(l.role())
			}
			prepares := pgtest.Major(t) >= 15 // those that publish
			options := func(o *apply.Options) {
				o.CopyData, o.TwoPhase, o.TableJobs, o.SplitLargerThan = true, prepares, 2, 1<<20
			}
			l.start(options) // on what it finds
			require.Equal(t, progress, l.engine.Status().Stream.Progress)
			require.Equal(t, string(progress), pgtest.Query(t, l.target, `SELECT progress_in FROM pgapply.subscription`))

			w := l.startLoad(4) // groups, in parallel, and streams
			w.issue(200)
			for _, end := range []string{`COMMIT PREPARED`, `ROLLBACK PREPARED`} {
				if !prepares {
					break
				}
				l.onSource(`BEGIN; UPDATE c SET v = 'prepared' WHERE id = 1; PREPARE TRANSACTION '` + l.name + `'`) // such names are the server's
				pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`, "1")
				l.onSource(end + ` '` + l.name + `'`)
				pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`, "0")
			}
			administrator.onTarget(`DELETE FROM c WHERE id = 2`, `UPDATE c SET id = 0 WHERE id = 3`)
			l.onSource(`UPDATE c SET v = 'x'`, `DELETE FROM c WHERE id IN (0, 2, 3)`, `UPDATE c SET id = id + 1000 WHERE id < 10`)
			w.finish()
			l.catchUp()
			l.sameLoad()
			require.Equal(t, "4", pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.conflict WHERE conflict_type IN ('update_missing', 'delete_missing')`))

			ends := operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}
			_, err := operate.Pause(t.Context(), ends, "")
			require.NoError(t, err)
			l.onSource(`TRUNCATE c`, `INSERT INTO c VALUES (1, 'after')`)
			_, err = operate.Resume(t.Context(), ends, nil)
			require.NoError(t, err)
			l.catchUp()
			administrator.onTarget(`DELETE FROM c`)
			verifying := operate.DefaultVerifyOptions()
			verifying.Endpoints, verifying.Repair, verifying.Confirmed = ends, operate.RepairApply, true
			verified, err := operate.Verify(t.Context(), verifying)
			require.NoError(t, err)
			require.EqualValues(t, 1, verified.Repaired)
			l.same(`SELECT * FROM c`)
			report, err := operate.ReadStatus(t.Context(), ends)
			require.NoError(t, err)
			require.Empty(t, report.Problems)
			l.stop()
			_, err = operate.Cleanup(t.Context(), operate.CleanupOptions{Endpoints: ends, Confirmed: true})
			require.NoError(t, err)
			require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'pgapply_`+l.name+`%'`))
		})
	}
}

// TestCopyUnderRowSecurity: row-level security that applies to the role is refused as the
// built-in subscription does, with its remedy; one that does not is none.
func TestCopyUnderRowSecurity(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Shared(t)
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`, `INSERT INTO t VALUES (1)`)
	l.onTarget(`ALTER TABLE t ENABLE ROW LEVEL SECURITY`, `CREATE POLICY every_row ON t USING (true)`)
	administrator := l.plainRole()
	administrator.initialize()
	err := l.run(func(o *apply.Options) { o.CopyData = true })
	requireClass(t, apply.Refused, err, `row-level security`, "BYPASSRLS")
	administrator.onTarget(`ALTER ROLE ` + l.role() + ` BYPASSRLS`)
	l.start(func(o *apply.Options) { o.CopyData = true })
	l.onSource(`INSERT INTO t VALUES (2)`)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
	l.stop()
}

// TestFiring: where the role may not set session_replication_role, what would fire is
// named and refused; agreed to, it fires, each change once and in order.
func TestFiring(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Shared(t)
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE parent (id int PRIMARY KEY)`, `CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL CONSTRAINT has_parent REFERENCES parent)`, `CREATE TABLE lone (id int PRIMARY KEY, n int)`)
	l.onTarget(`CREATE TABLE log (id int)`, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.log VALUES (NEW.id); RETURN NEW; END $$`,
		`CREATE TRIGGER noting AFTER INSERT ON child FOR EACH ROW EXECUTE FUNCTION note()`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE parent, child, lone`,
		`INSERT INTO parent SELECT g FROM generate_series(1000, 1009) g`, `INSERT INTO child SELECT g, g FROM generate_series(1000, 1009) g`)
	administrator := l.plainRole()
	administrator.initialize()
	administrator.revokeQuiet(l.role())
	err := l.run()
	requireClass(t, apply.Refused, err, `foreign key "has_parent" on "public"."child"`, `foreign key "has_parent" on "public"."parent"`, `trigger "noting" on "public"."child"`,
		"session_replication_role", "--fire-triggers")
	// A child cannot be copied before its parents, and is tried again.
	l.start(func(o *apply.Options) { o.FireTriggers, o.CopyData, o.TableJobs = true, true, 1 })
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pgapply.subscription_table WHERE state = 'r'`, "3")
	require.True(t, l.engine.Status().Stream.Fires)
	for i := range 20 {
		l.onSource(fmt.Sprintf(`INSERT INTO parent VALUES (%d)`, i), fmt.Sprintf(`INSERT INTO child VALUES (%d, %[1]d), (%d, %[1]d)`, i, 100+i),
			fmt.Sprintf(`INSERT INTO lone SELECT g, 0 FROM generate_series(%d, %d) g`, 100*i, 100*i+99))
	}
	l.onSource(`UPDATE lone SET n = n + 1`, `DELETE FROM child WHERE id < 10; DELETE FROM parent WHERE id NOT IN (SELECT parent FROM child)`)
	l.catchUp()
	for _, table := range []string{"parent", "child", "lone"} {
		l.same(`SELECT * FROM ` + table + ` ORDER BY id`)
	}
	require.Equal(t, "50|50", pgtest.Query(t, administrator.target, `SELECT count(*), count(DISTINCT id) FROM log`))
	status := l.engine.Status()
	require.Contains(t, fmt.Sprint(status.RowByRow), `{public.child foreign key "has_parent"}`)
	require.NotContains(t, fmt.Sprint(status.RowByRow), "lone")
	l.stop()

	// What has come since is noticed too, and waited for where it comes while it runs.
	administrator.onTarget(`ALTER TABLE child DROP CONSTRAINT has_parent; DROP TRIGGER noting ON child`)
	l.start()
	administrator.both(`CREATE TABLE late (id int PRIMARY KEY)`)
	administrator.onTarget(`CREATE TRIGGER noting AFTER INSERT ON late FOR EACH ROW EXECUTE FUNCTION note(); GRANT ALL ON late TO ` + l.role())
	l.onSource(`ALTER PUBLICATION p ADD TABLE late`)
	_, err = operate.Refresh(t.Context(), operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}, true)
	require.NoError(t, err)
	l.failure(`trigger "noting" on "public"."late"`)
	administrator.onTarget(`DROP TRIGGER noting ON late`)
	l.onSource(`INSERT INTO late VALUES (1)`)
	l.catchUp()
	l.stop()
}

// revokeQuiet takes session_replication_role away from the role.
func (l *link) revokeQuiet(role string) {
	l.t.Helper()
	parameters.Lock()
	defer parameters.Unlock()
	sql := `REVOKE SET ON PARAMETER session_replication_role FROM ` + role
	if pgtest.Query(l.t, l.target, `SELECT current_setting('server_version_num')::int < 150000`) == "t" {
		sql = `DO $$ BEGIN EXECUTE format('ALTER ROLE ` + role + ` IN DATABASE %I RESET ALL', current_database()); END $$`
	}
	l.onTarget(sql)
}
