package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/privilege"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// TestGrantsAreExact: with what init grants everything works, and with each item of the
// list taken away something does not, check and run name it, and init brings it back.
func TestGrantsAreExact(t *testing.T) {
	t.Parallel()
	eachGrantMajor(t, grantsAreExact)
}

func grantsAreExact(t *testing.T, major int) {
	l := newLink(t)
	if major != pgtest.Major(t) {
		l = linkOf(t, pgtest.SharedServer(t), pgtest.Start(t, pgtest.OnMajor(major)))
	}
	l.both(`CREATE SCHEMA s`, `CREATE TABLE s.t (id int PRIMARY KEY, v text)`)
	l.onTarget(`CREATE FUNCTION s.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`,
		`CREATE TRIGGER each AFTER INSERT ON s.t FOR EACH ROW EXECUTE FUNCTION s.f()`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE s.t`, `INSERT INTO s.t VALUES (1, 'a'), (2, 'b')`)
	administrator := l.plainRole()
	require.NotEmpty(t, administrator.initialize().Steps)
	require.Empty(t, administrator.initialize().Steps)
	options := func(o *apply.Options) { o.CopyData, o.Progress = true, "origin" }
	checks := func() *operate.Checkup {
		checkup, err := operate.Check(t.Context(), l.options(options))
		require.NoError(t, err)
		return checkup
	}
	require.NoError(t, checks().Err())
	l.start(options)
	needs := map[string]string{ // what meets the want of a privilege
		"USAGE": `INSERT INTO s.t VALUES (10, 'new')`, "INSERT": `INSERT INTO s.t VALUES (11, 'new')`, "SELECT": `UPDATE s.t SET v = 'some'`,
		"UPDATE": `UPDATE s.t SET v = 'other'`, "DELETE": `DELETE FROM s.t WHERE id = 1`, "TRUNCATE": `TRUNCATE s.t`,
	}
	for _, change := range needs {
		l.onSource(change)
	}
	l.onSource(`TRUNCATE s.t; INSERT INTO s.t VALUES (1, 'a'), (2, 'b')`)
	l.catchUp()
	l.stop()

	for _, p := range privilege.List() {
		if p.When == privilege.CreatingTables || p.When == privilege.Receiving {
			continue
		}
		on, wants := "", p.Name
		switch p.On {
		case "the database":
			on = `DATABASE ` + pgtest.Query(t, administrator.target, `SELECT quote_ident(current_database())`)
		case "schema pgapply":
			on, wants = `SCHEMA pgapply`, "schema pgapply"
		case "the schema of each table":
			on, wants = `SCHEMA s`, `schema "s"`
		case "each table":
			on = `TABLE s.t`
		case "session_replication_role":
			on, wants = "PARAMETER session_replication_role", p.On
		default:
			on = `FUNCTION ` + pgtest.Query(t, administrator.target, `SELECT oid::regprocedure FROM pg_proc WHERE proname = $1`, p.On)
			wants = p.On
		}
		name := p.Name + " on " + p.On
		sql := fmt.Sprintf(`REVOKE %s ON %s FROM %s`, p.Name, on, l.role())
		if p.On == "session_replication_role" {
			administrator.revokeQuiet(l.role())
		} else {
			administrator.onTarget(sql)
		}
		checkup := checks()
		require.Error(t, checkup.Err(), name)
		require.Contains(t, checkup.Text(), wants, name)

		if p.On == "each table" || p.On == "the schema of each table" {
			l.start(options) // what is missing is met by the change that needs it
			l.onSource(needs[p.Name])
			l.failure("permission denied for", "pgapply check", "pgapply init")
			require.Len(t, administrator.initialize().Steps, 1, name)
			l.catchUp()
			l.same(`SELECT count(*) FROM s.t`)
			l.stop()
			continue
		}
		err := l.run(options)
		requireClass(t, apply.Refused, err, wants, "administrator")
		steps := administrator.initialize().Steps
		require.Len(t, steps, 1, name)
		require.Contains(t, steps[0], p.Name, name)
	}
	require.NoError(t, checks().Err())
}
