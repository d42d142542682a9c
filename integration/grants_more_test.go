package integration

import (
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/privilege"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// eachGrantMajor are the majors whose grants are tried: the one under test, and all from
// 14 on where PGAPPLY_MATRIX asks for them, as `make matrix` does.
func eachGrantMajor(t *testing.T, test func(t *testing.T, major int)) {
	t.Helper()
	if os.Getenv("PGAPPLY_MATRIX") == "" {
		test(t, pgtest.Major(t))
		return
	}
	for major := 14; major <= cluster.NewestMajor; major++ {
		t.Run(strconv.Itoa(major), func(t *testing.T) { test(t, major) })
	}
}

// TestGrantsToCreateTables: what --copy-schema needs is on the list, and each item of it
// is met by a table that the target lacks: check and run name it, and init brings it.
func TestGrantsToCreateTables(t *testing.T) {
	t.Parallel()
	eachGrantMajor(t, func(t *testing.T, major int) {
		l := linkOf(t, readable(t), serverOf(t, major))
		l.onSource(`CREATE SCHEMA s`, `CREATE TABLE s.first (id int PRIMARY KEY)`, `INSERT INTO s.first VALUES (1)`, `CREATE PUBLICATION p FOR ALL TABLES`)
		l.onTarget(`CREATE SCHEMA s`)
		administrator := l.plainRole()
		creating := func(o *apply.Options) { o.CopyData, o.CopySchema = true, true }
		initialize := func() []string {
			return administrator.initialize(func(o *operate.InitOptions) { o.CopySchema = true }).Steps
		}
		require.NotEmpty(t, initialize())
		require.Empty(t, initialize())
		l.start(creating)
		l.same(`SELECT * FROM s.first`)
		l.stop()
		tried := 0
		for _, p := range privilege.List() {
			if p.When != privilege.CreatingTables {
				continue
			}
			tried++
			table, on := "s.second", "SCHEMA s"
			if p.On == "the database" {
				table, on = "fresh.third", `DATABASE `+pgtest.Query(t, administrator.target, `SELECT quote_ident(current_database())`)
				l.onSource(`CREATE SCHEMA fresh`)
			}
			l.onSource(`CREATE TABLE `+table+` (id int PRIMARY KEY)`, `INSERT INTO `+table+` VALUES (2)`)
			administrator.onTarget(`REVOKE ` + p.Name + ` ON ` + on + ` FROM ` + l.role())
			checkup, err := operate.Check(t.Context(), l.options(creating))
			require.NoError(t, err)
			require.ErrorContains(t, checkup.Err(), "1 error", checkup.Text())
			require.Contains(t, checkup.Text(), p.Name+" on "+strings.ToLower(on[:1]), checkup.Text())
			requireClass(t, apply.Target, l.run(creating), "permission denied for", "GRANT CREATE ON")
			steps := initialize()
			require.Len(t, steps, 1)
			require.Contains(t, steps[0], p.Name+" ON "+strings.Fields(on)[0])
			checkup, err = operate.Check(t.Context(), l.options(creating))
			require.NoError(t, err)
			require.NoError(t, checkup.Err(), checkup.Text())
			l.start(creating)
			pgtest.WaitFor(t, l.target, `SELECT state FROM pgapply.subscription_table WHERE table_name = $1`, "r", strings.Split(table, ".")[1])
			l.same(`SELECT * FROM ` + table)
			l.stop()
		}
		require.Equal(t, 2, tried)
	})
}

// serverOf is the shared server where it has the major, else one of its own.
func serverOf(t *testing.T, major int) *cluster.Cluster {
	t.Helper()
	if major == pgtest.Major(t) {
		return pgtest.SharedServer(t)
	}
	return pgtest.Start(t, pgtest.OnMajor(major))
}

// TestGrantsOnThePublisher: with what the list names for the publisher's role a table is
// copied, and with any item of it missing it is not: check and run say which.
func TestGrantsOnThePublisher(t *testing.T) {
	t.Parallel()
	eachGrantMajor(t, func(t *testing.T, major int) {
		publisher := serverOf(t, major)
		all := map[string]string{
			"REPLICATION on the role": `ALTER ROLE %r REPLICATION`, "CONNECT on the database": `GRANT CONNECT ON DATABASE %d TO %r`,
			"USAGE on the schema of each table": `GRANT USAGE ON SCHEMA s TO %r`, "SELECT on each table": `GRANT SELECT ON s.t TO %r`,
		}
		tried := 0
		for _, missing := range privilege.List() {
			if missing.When != privilege.Receiving {
				continue
			}
			tried++
			name := missing.Name + " on " + missing.On
			require.Contains(t, all, name)
			t.Run(name, func(t *testing.T) {
				l := linkOf(t, publisher, pgtest.SharedServer(t))
				l.both(`CREATE SCHEMA s`, `CREATE TABLE s.t (id int PRIMARY KEY, v text)`)
				role, database := l.name+"_receiver", pgtest.Query(t, l.source, `SELECT quote_ident(current_database())`)
				l.onSource(`CREATE PUBLICATION p FOR TABLE s.t`, `INSERT INTO s.t VALUES (1, 'a')`, `CREATE ROLE `+role+` LOGIN`, `REVOKE CONNECT ON DATABASE `+database+` FROM PUBLIC`)
				admin := *l
				t.Cleanup(func() { admin.onSource(`DROP OWNED BY `+role, `DROP ROLE `+role) })
				grant := func(sql string) { admin.onSource(strings.NewReplacer("%r", role, "%d", database).Replace(sql)) }
				for what, sql := range all {
					if what != name {
						grant(sql)
					}
				}
				parsed, err := url.Parse(l.source)
				require.NoError(t, err)
				parsed.User = url.User(role)
				asRole := func(o *apply.Options) { o.Source = parsed.String() }
				checkup, err := operate.Check(t.Context(), l.options(copying, asRole))
				require.NoError(t, err)
				require.Error(t, checkup.Err(), checkup.Text())
				require.Contains(t, checkup.Text(), missing.Name)
				if missing.On == "the role" || missing.On == "the database" {
					requireClass(t, apply.Source, l.run(copying, asRole), missing.Name)
					grant(all[name])
				} else {
					l.launch(l.options(copying, asRole))
					pgtest.WaitFor(t, l.target, `SELECT last_error LIKE '%permission denied for%' FROM pgapply.subscription_table`, "t")
					done, err := operate.Init(t.Context(), operate.InitOptions{
						Endpoints: operate.Endpoints{Name: l.name, Source: parsed.String(), Target: l.target}, Role: "postgres", Publications: []string{"p"}, Print: true,
					})
					require.NoError(t, err)
					require.Len(t, done.Publisher, 1)
					require.Contains(t, done.Publisher[0], missing.Name)
					l.cancel()
					_ = l.wait()
					admin.onSource(done.Publisher...)
				}
				checkup, err = operate.Check(t.Context(), l.options(copying, asRole))
				require.NoError(t, err)
				require.NoError(t, checkup.Err(), checkup.Text())
				l.start(copying, asRole)
				pgtest.WaitFor(t, l.target, `SELECT state FROM pgapply.subscription_table`, "r")
				l.same(`SELECT * FROM s.t`)
				l.stop()
				admin.onSource(`SELECT pg_drop_replication_slot('` + l.name + `')`)
			})
		}
		require.Equal(t, len(all), tried)
	})
}
