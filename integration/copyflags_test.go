package integration

import (
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// TestMisfitsBeforeACopy: everything that the target lacks is said at once, before
// anything is made on either end.
func TestMisfitsBeforeACopy(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE a (id int PRIMARY KEY, v text, w text)`, `CREATE TABLE b (id int PRIMARY KEY)`, `CREATE TABLE c (id int PRIMARY KEY)`,
		`INSERT INTO c VALUES (1)`, `CREATE PUBLICATION p FOR ALL TABLES`)
	l.onTarget(`CREATE TABLE a (id int PRIMARY KEY)`, `CREATE TABLE c (id int PRIMARY KEY)`)
	requireClass(t, apply.Refused, l.run(copying),
		`"public.a" is missing replicated columns: "v", "w"`, `"public.b" does not exist`, "--copy-schema")
	require.Equal(t, "0", pgtest.Query(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`))
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM pg_namespace WHERE nspname = 'pgapply'`))

	l.onTarget(`ALTER TABLE a ADD v text, ADD w text`)
	requireClass(t, apply.Refused, l.run(copying), `"public.b" does not exist`)
	excluded := func(o *apply.Options) { o.Tables.Exclude = []string{"b"} }
	checkup, err := operate.Check(t.Context(), l.options(copying, excluded))
	require.NoError(t, err)
	require.NoError(t, checkup.Err(), checkup.Text())
	l.start(copying, excluded)
	l.same(`SELECT * FROM c`)
}

// TestCopySchema: what the target lacks of the published tables is created before they
// are copied; what took part, and was dropped since, is not created without its rows.
func TestCopySchema(t *testing.T) {
	_, target := pgtest.Shared(t)
	l := linkOf(t, readable(t), target)
	l.onSource(`CREATE SCHEMA s`, `CREATE TYPE s.mood AS ENUM ('good', 'bad')`, `CREATE TABLE s.a (id serial PRIMARY KEY, m s.mood UNIQUE)`,
		`CREATE TABLE b (id int PRIMARY KEY)`, `INSERT INTO s.a (m) VALUES ('good'), ('bad')`, `INSERT INTO b VALUES (1)`, `CREATE PUBLICATION p FOR ALL TABLES`)
	l.onTarget(`CREATE TABLE b (id int PRIMARY KEY)`)
	creating := func(o *apply.Options) { o.CopyData, o.CopySchema = true, true }
	checkup, err := operate.Check(t.Context(), l.options(creating))
	require.NoError(t, err)
	require.NoError(t, checkup.Err(), checkup.Text())
	require.Contains(t, checkup.Text(), "--copy-schema creates it")
	l.start(creating)
	l.same(`SELECT * FROM s.a ORDER BY id`)
	l.same(`SELECT * FROM b`)

	// One that is published later.
	l.stop()
	l.onSource(`CREATE TABLE later (id int PRIMARY KEY, v text)`, `INSERT INTO later VALUES (1, 'x')`)
	l.start(creating)
	pgtest.WaitFor(t, l.target, `SELECT state::text || count(*) FROM pgapply.subscription_table GROUP BY state`, "r3")
	l.same(`SELECT * FROM later`)
	l.stop()
	l.onTarget(`DROP TABLE b`)
	checkup, err = operate.Check(t.Context(), l.options(creating))
	require.NoError(t, err)
	require.ErrorContains(t, checkup.Err(), "1 error")
	l.start(creating)
	require.Equal(t, "-", pgtest.Query(t, l.target, `SELECT coalesce(to_regclass('public.b')::text, '-')`))
}

// TestCopySchemaWithoutTheProgram: a start that needs pg_dump and has none is refused.
func TestCopySchemaWithoutTheProgram(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE a (id int PRIMARY KEY)`, `CREATE PUBLICATION p FOR TABLE a`)
	t.Setenv("PATH", t.TempDir())
	requireClass(t, apply.Refused, l.run(copying, func(o *apply.Options) { o.CopySchema = true }), "pg_dump")
}

// readable is a publisher that the installed pg_dump can read.
func readable(t *testing.T) *cluster.Cluster {
	t.Helper()
	said, err := exec.Command("pg_dump", "--version").Output()
	require.NoError(t, err, "install the PostgreSQL client programs, on Debian postgresql-client")
	found := regexp.MustCompile(`\(PostgreSQL\) (\d+)`).FindSubmatch(said)
	require.NotNil(t, found, "%s", said)
	major, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	if shared := pgtest.SharedServer(t); shared.Major() <= major {
		return shared
	}
	return pgtest.Start(t, pgtest.OnMajor(major))
}

// TestDeferIndexes: indexes are dropped for the copy, and a process that is killed before
// it has made them again loses none.
func TestDeferIndexes(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY, v text, n int, CONSTRAINT one UNIQUE (n) DEFERRABLE)`, `CREATE INDEX by_v ON a (v)`,
		`CREATE TABLE b (id int PRIMARY KEY, v text)`, `CREATE INDEX b_by_v ON b (lower(v))`)
	l.onSource(`INSERT INTO a SELECT g, 'v' || g, g FROM generate_series(1, 5000) g`, `INSERT INTO b VALUES (1, 'x')`, `CREATE PUBLICATION p FOR ALL TABLES`)
	indexes := `SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1`
	before := l.same(indexes)

	// Table b holds the copy up when that of a is done.
	holder := session(t, l.target)
	holder(`BEGIN; LOCK TABLE b IN SHARE MODE`)
	p := l.spawn("--copy-data", "--defer-indexes", "--table-jobs", "1")
	pgtest.WaitFor(t, l.target, `SELECT string_agg(t.state::text, '' ORDER BY table_name) FROM pgapply.subscription_table t`, "rd")
	require.Equal(t, "by_v|one", pgtest.Query(t, l.target, `SELECT string_agg(index_name, '|' ORDER BY index_name) FROM pgapply.deferred_index`))
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM pg_class WHERE relname IN ('by_v', 'one')`))
	p.kill()
	holder(`ROLLBACK`)

	l.start(copying) // without the flag
	pgtest.WaitFor(t, l.target, `SELECT string_agg(t.state::text, '' ORDER BY table_name) FROM pgapply.subscription_table t`, "rr")
	require.Equal(t, before, pgtest.Query(t, l.target, indexes))
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.deferred_index`))
	l.same(`SELECT * FROM a ORDER BY id`)
	l.same(`SELECT * FROM b ORDER BY id`)

	// A table that is copied again beside the stream.
	l.stop()
	l.start(copying, func(o *apply.Options) { o.DeferIndexes = true })
	l.onTarget(`UPDATE a SET v = 'spoilt'`)
	_, err := operate.Resync(t.Context(), operate.Endpoints{Name: l.name, Target: l.target}, []string{"a"}, true)
	require.NoError(t, err)
	pgtest.WaitFor(t, l.target, `SELECT string_agg(t.state::text, '' ORDER BY table_name) || (SELECT count(*) FROM a WHERE v = 'spoilt') FROM pgapply.subscription_table t`, "rr0")
	require.Equal(t, before, pgtest.Query(t, l.target, indexes))
	l.same(`SELECT * FROM a ORDER BY id`)
}
