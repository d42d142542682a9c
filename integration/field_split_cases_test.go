package integration

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestSplitStatements(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"nothing", " \n\t; ;; -- no\n/* more */ ;", nil},
		{"several on a line", "SELECT 1; SELECT 2;SELECT 3", []string{"SELECT 1", "SELECT 2", "SELECT 3"}},
		{"transaction", "BEGIN; INSERT INTO t VALUES (1); COMMIT;", []string{"BEGIN", "INSERT INTO t VALUES (1)", "COMMIT"}},
		{"strings", `SELECT 'a;''b', "c;""d", 'e\';SELECT 2`, []string{`SELECT 'a;''b', "c;""d", 'e\'`, "SELECT 2"}},
		{"escapes", `SELECT E'a\';b', e'\\';SELECT fe'\';SELECT 2`, []string{`SELECT E'a\';b', e'\\'`, `SELECT fe'\'`, "SELECT 2"}},
		{"other prefixes", `SELECT U&'\0061;', N';', B'1', X'1F', U&";";x`, []string{`SELECT U&'\0061;', N';', B'1', X'1F', U&";"`, "x"}},
		{"dollar quotes", "DO $$ BEGIN; $a$;$a$; END $$;DO $a$ $b$; $$;$a$; DO $é1$;$é1$", []string{"DO $$ BEGIN; $a$;$a$; END $$", "DO $a$ $b$; $$;$a$", "DO $é1$;$é1$"}},
		{"no dollar quotes", "SELECT $1, a$b$c;SELECT a$$;SELECT $1a$;", []string{"SELECT $1, a$b$c", "SELECT a$$", "SELECT $1a$"}},
		{"comments", "SELECT 1 -- it's; over\n+ 2; /* ; /* ' */ ; */ SELECT /* ; */ 3 -- last", []string{"SELECT 1 -- it's; over\n+ 2", "SELECT /* ; */ 3"}},
		{"comment signs in operators", "SELECT 1 +--;\n2; SELECT 3*/*;*/4", []string{"SELECT 1 +--;\n2", "SELECT 3*/*;*/4"}},
		{"parentheses", "CREATE RULE r AS ON INSERT TO t DO ALSO (DELETE FROM a; DELETE FROM b); SELECT ')' ; )SELECT (2", []string{
			"CREATE RULE r AS ON INSERT TO t DO ALSO (DELETE FROM a; DELETE FROM b)", "SELECT ')'", ")SELECT (2",
		}},
		{"atomic body", "CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 1 END; END; SELECT 2", []string{
			"CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 1 END; END", "SELECT 2",
		}},
		{"atomic procedure", "create procedure p() begin atomic select 1; end; select 2", []string{"create procedure p() begin atomic select 1; end", "select 2"}},
		{"begin and end elsewhere", "CREATE TABLE begin(a int); SELECT CASE 1 WHEN 1 THEN 2 END; END; BEGIN", []string{
			"CREATE TABLE begin(a int)", "SELECT CASE 1 WHEN 1 THEN 2 END", "END", "BEGIN",
		}},
		{"number before a letter", `SELECT 1e';';SELECT 2`, []string{`SELECT 1e';'`, "SELECT 2"}},
		{"parameters and casts", "SELECT 'a'::text, x.y[1:2], :name;SELECT 2", []string{"SELECT 'a'::text, x.y[1:2], :name", "SELECT 2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			have, err := splitStatements(test.script)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(test.want, have))
		})
	}
}

func TestSplitStatementsRejects(t *testing.T) {
	for script, fault := range map[string]string{
		"SELECT 1;\n'":        "line 2 of the script: a quote that is not closed",
		`SELECT "a`:           "a quote that is not closed",
		`SELECT E'a\'`:        "a quote that is not closed",
		`SELECT E'a\`:         "a quote that is not closed",
		"SELECT $a$ $b$":      "line 1 of the script: a dollar-quoted string that is not closed",
		"\n\n/* /* */":        "line 3 of the script: a comment that is not closed",
		"/*":                  "a comment that is not closed",
		"SELECT 1 \\gexec":    "a backslash",
		"SELECT 1\n\\echo it": "line 2 of the script: a backslash",
	} {
		_, err := splitStatements(script)
		require.ErrorContains(t, err, fault, script)
	}
}

// FuzzSplitStatements: statements are pieces of the script in order, each of them
// is one statement by itself, and what lies between them says nothing.
func FuzzSplitStatements(f *testing.F) {
	for _, seed := range []string{
		"SELECT 1; SELECT 'a;b'; DO $$ x; $$", "/* ; /* */ */ SELECT E'\\';' -- ;\n; (;)", "CREATE FUNCTION f() BEGIN ATOMIC; END; END",
		"$a$ $a;$a$", "a$$;$$", "1e'\\';", `"";""`, "\\", "é;\xff;\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, script string) {
		places, err := placeStatements(script)
		if err != nil {
			return
		}
		said := 0
		silent := func(to int) {
			between, err := splitStatements(script[said:to])
			require.NoError(t, err)
			require.Empty(t, between, "left out of %q", script[said:to])
		}
		for _, place := range places {
			silent(place.from)
			statement := script[place.from:place.to]
			require.NotEmpty(t, statement)
			again, err := splitStatements(statement)
			require.NoError(t, err)
			require.Equal(t, []string{statement}, again)
			said = place.to
		}
		silent(len(script))
	})
}
