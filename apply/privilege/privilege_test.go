package privilege

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

var update = flag.Bool("update", false, "write docs/reference/privileges.md")

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestReference holds docs/reference/privileges.md to the list. Run it with -update to
// write the page. No other page has a list of its own.
func TestReference(t *testing.T) {
	var text strings.Builder
	text.WriteString(`# Privileges

What each role must be allowed, and which way to apply needs it. This page is made from the list that ` + "`pgapply check`, `run` and `init`" + ` go by, and tests hold it to
that: with all of it everything works, and with any of it taken away something does not, and says so. ` + "`pgapply init --role ROLE --print`" + ` writes it as SQL, with the signatures
of your server, for what is missing.

## The role that applies, on the target

| privilege | on | needed for | when |
|---|---|---|---|
`)
	row := func(p Privilege) string {
		when := "`" + string(p.When) + "`"
		switch p.When {
		case Always:
			when = string(p.When)
		case Quiet:
			when = "unless `--fire-triggers`"
		case Stamping, CreatingTables, Receiving:
		}
		on := p.On
		if strings.Contains(on, "_") {
			on = "`" + on + "`"
		}
		if p.When == Receiving {
			return fmt.Sprintf("| %s | %s | %s |\n", p.Name, on, p.For)
		}
		return fmt.Sprintf("| %s | %s | %s | %s |\n", p.Name, on, p.For, when)
	}
	for _, p := range List() {
		if p.When != Receiving {
			text.WriteString(row(p))
		}
	}
	text.WriteString("\nOf the privileges on tables those are needed that the publication's operations ask for. Instead of a table's, those on all published columns will do.\n" +
		"\n## The role that receives, on the publisher\n\n| privilege | on | needed for |\n|---|---|---|\n")
	for _, p := range List() {
		if p.When == Receiving {
			text.WriteString(row(p))
		}
	}
	const project = "../.."
	path := filepath.Join(project, "docs/reference/privileges.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	}
	written, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(written), text.String(), "go test ./apply/privilege -run Reference -update")

	others, err := filepath.Glob(filepath.Join(project, "docs/*.md"))
	require.NoError(t, err)
	for _, page := range append(others, filepath.Join(project, "README.md")) {
		other, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, name := range FunctionNames() {
			require.NotContains(t, string(other), name, page)
		}
	}
}

// TestFunctions: every name of the list is one function of the server, and trying it as
// somebody who may call it is no refusal, nor leaves a trace.
func TestFunctions(t *testing.T) {
	server := pgtest.SharedServer(t)
	uri := pgtest.Database(t, server)
	for _, name := range FunctionNames() {
		require.Equal(t, "1", pgtest.Query(t, uri, `select count(*) from pg_proc where proname = $1 and pronamespace = 'pg_catalog'::regnamespace`, name), name)
	}
	conn := connect(t, uri)
	rights, err := LookAtOwn(t.Context(), conn)
	require.NoError(t, err)
	origins := `select count(*) from pg_replication_origin`
	before := pgtest.Query(t, uri, origins)
	require.NoError(t, rights.TryFunctions(t.Context(), conn))
	require.Empty(t, rights.Functions)
	require.True(t, rights.Quiet)
	require.Equal(t, before, pgtest.Query(t, uri, origins))
	require.Equal(t, "origin", pgtest.Query(t, uri, `select current_setting('session_replication_role')`))
	_, err = Look(t.Context(), conn, "nobody of this name")
	require.ErrorIs(t, err, ErrNoRole)
}

func connect(t *testing.T, uri string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), uri)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close(context.Background())
		<-conn.PgConn().CleanupDone()
	})
	return conn
}

func TestOfTable(t *testing.T) {
	require.Equal(t, []string{"SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE"}, OfTable(All()))
	require.Equal(t, []string{"SELECT", "UPDATE", "DELETE"}, OfTable(Changes{Deletes: true}), "rows are locked before they go")
	require.Equal(t, []string{"SELECT", "INSERT"}, OfTable(Changes{Copied: true}))
	require.Empty(t, OfTable(Changes{}))
	var listed []string
	for _, p := range List() {
		if p.When == Always && p.On == "each table" {
			listed = append(listed, p.Name)
		}
	}
	require.Equal(t, OfTable(All()), listed)
}

func TestStatements(t *testing.T) {
	const role = `a TO "b`
	require.Empty(t, Statements(nil))
	require.Equal(t, []string{
		`GRANT USAGE ON SCHEMA "s" TO "a TO ""b"`,
		`GRANT EXECUTE ON FUNCTION f(int), g() TO "a TO ""b"`,
		`GRANT SELECT ON TABLE "t" TO "a TO ""b"`,
	}, Statements([]Grant{
		On("USAGE", `SCHEMA "s"`, role), On("EXECUTE", "FUNCTION f(int)", role), On("SELECT", `TABLE "t"`, role), On("EXECUTE", "FUNCTION g()", role),
	}))
}
