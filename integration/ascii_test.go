package integration

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// TestNamesAndValuesThatAreNoText: databases in SQL_ASCII hold any bytes. Those of rows go
// through as they are. A table whose name is not UTF-8 keeps nobody from a table with a
// good one, and what is recorded of either can be read, as text that is valid.
func TestNamesAndValuesThatAreNoText(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Shared(t)
	l := linkOf(t, publisher, target)
	name := l.name + "_ascii"
	raw := func(uri string) string { return uri + "&client_encoding=SQL_ASCII" }
	for _, server := range []string{publisher.URI("postgres"), target.URI("postgres")} {
		pgtest.Exec(t, server, `CREATE DATABASE `+name+` ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0`)
		t.Cleanup(func() { pgtest.Exec(t, server, `DROP DATABASE `+name+` WITH (FORCE)`) })
	}
	l.source, l.target = publisher.URI(name), target.URI(name)
	odd := "\"t\xff\""
	for _, uri := range []string{raw(l.source), raw(l.target)} {
		pgtest.Exec(t, uri, `CREATE TABLE `+odd+` (id int PRIMARY KEY, "c`+"\xfe"+`" text)`, `CREATE TABLE plain (id int PRIMARY KEY, v text)`)
	}
	pgtest.Exec(t, raw(l.source), `CREATE PUBLICATION p FOR TABLE plain`, `INSERT INTO plain VALUES (1, E'a\xfd')`, `CREATE PUBLICATION all_of_them FOR ALL TABLES`)
	checkup, err := operate.Check(t.Context(), l.options(copying))
	require.NoError(t, err)
	require.NoError(t, checkup.Err(), checkup.Text())
	checkup, err = operate.Check(t.Context(), l.options(copying, func(o *apply.Options) { o.Publications = []string{"all_of_them"} }))
	require.NoError(t, err)
	require.Contains(t, checkup.Text(), "client_encoding = SQL_ASCII")
	require.Error(t, checkup.Err())
	l.start(copying)
	pgtest.WaitFor(t, l.target, `SELECT state FROM pgapply.subscription_table`, "r")
	l.stop()

	pgtest.Exec(t, raw(l.source), `ALTER PUBLICATION p ADD TABLE `+odd, `INSERT INTO `+odd+` VALUES (1, E'b\xfc')`)
	l.start(copying) // takes it in
	pgtest.WaitFor(t, l.target, `SELECT string_agg(state::text, '') FROM pgapply.subscription_table`, "rr")
	l.stop()
	pgtest.Exec(t, raw(l.target), `INSERT INTO plain VALUES (7, E'mine\xfd')`)
	pgtest.Exec(t, raw(l.source), `INSERT INTO `+odd+` VALUES (2, E'c\xfb')`, `INSERT INTO plain VALUES (7, E'theirs\xfc')`)
	l.start(copying)
	l.failure("insert_exists")
	hex := `SELECT string_agg(encode(convert_to(t::text, 'SQL_ASCII'), 'hex'), ' ' ORDER BY id) FROM ` + odd + ` t`
	require.Equal(t, pgtest.Query(t, raw(l.source), hex), pgtest.Query(t, raw(l.target), hex))

	for _, command := range []string{"status --tables", "conflicts list", "conflicts show 1"} {
		stdout, stderr, code := shell(t, append(strings.Fields(command), "--json", "--name", l.name, "--source", l.source, "--target", l.target)...)
		require.Zero(t, code, stderr)
		require.True(t, json.Valid([]byte(stdout)) && utf8.ValidString(stdout), stdout)
		switch command {
		case "status --tables":
			require.Contains(t, stdout, "t\uFFFD")
		case "conflicts show 1":
			require.Contains(t, stdout, "theirs\uFFFD")
			require.Contains(t, stdout, "mine\uFFFD")
		}
	}
	pgtest.Exec(t, raw(l.target), `DELETE FROM plain WHERE id = 7`)
	l.catchUp()
	l.stop()
	pgtest.Exec(t, l.source, `SELECT pg_drop_replication_slot('`+l.name+`')`)
	pgtest.Exec(t, raw(l.target), `SELECT pg_replication_origin_drop(origin_name) FROM pgapply.origin WHERE origin_name IN (SELECT roname FROM pg_replication_origin)`)
}
