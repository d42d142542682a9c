package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// The tests in this file say what databases, roles and other sessions cannot change.

// TestSessionImmunity: what is set for the target's database and for the role is not
// in force where rows are applied. A trigger there tells what is.
func TestSessionImmunity(t *testing.T) {
	settings := []struct{ name, hostile, inForce string }{
		{"statement_timeout", "1ms", "0"},
		{"lock_timeout", "1ms", "0"},
		{"idle_in_transaction_session_timeout", "1ms", "0"},
		// Not every major knows these two, so they are not in the start of a session
		// but set right after it: they must leave the time for that.
		{"idle_session_timeout", "500ms", "0"},
		{"transaction_timeout", "500ms", "0"},
		{"default_transaction_isolation", "serializable", "read committed"},
		{"transaction_isolation", "", "read committed"},
		{"default_transaction_read_only", "on", "off"},
		{"transaction_read_only", "", "off"},
		{"default_transaction_deferrable", "on", "off"},
		{"datestyle", "SQL, DMY", "ISO, MDY"},
		{"intervalstyle", "sql_standard", "postgres"},
		{"extra_float_digits", "-15", "3"},
		{"array_nulls", "off", "on"},
		{"bytea_output", "escape", "escape"}, // text in either form is read alike
		{"search_path", "trap", ""},
		{"row_security", "on", "off"},
		{"lc_monetary", "C.utf8", "C"},
		{"xmloption", "document", "content"},
		{"session_replication_role", "local", "replica"},
		{"client_encoding", "LATIN1", "UTF8"},
		{"synchronous_commit", "remote_apply", "off"},
	}
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, d date, i interval, f float8, a text[], b bytea, m money, x text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE TABLE seen (name text, setting text)`, `CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.seen SELECT name, setting FROM pg_settings; RETURN NULL; END $$`,
		`CREATE TRIGGER see AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION see()`, `ALTER TABLE t ENABLE ALWAYS TRIGGER see`)
	role := "role_" + l.name
	l.both(`CREATE SCHEMA trap`, `CREATE FUNCTION trap.never(int, int) RETURNS bool LANGUAGE sql AS 'SELECT false'`,
		`CREATE OPERATOR trap.= (LEFTARG = int, RIGHTARG = int, FUNCTION = trap.never)`, `CREATE TABLE trap.t (id int)`)
	for _, uri := range []string{l.source, l.target} {
		pgtest.Exec(t, uri, `CREATE ROLE `+role+` SUPERUSER LOGIN`)
		t.Cleanup(func() { pgtest.Exec(t, uri, `DROP OWNED BY `+role, `DROP ROLE `+role) })
		var known []string
		for _, setting := range settings {
			if setting.hostile != "" && (setting.name != "transaction_timeout" || pgtest.Major(t) >= 17) {
				known = append(known, fmt.Sprintf(`SET %s = '%s'`, setting.name, setting.hostile))
			}
		}
		// Half of them for the role anywhere, half for the role in the database.
		for i, set := range known {
			owner := `ROLE ` + role
			if i%2 == 1 {
				owner += ` IN DATABASE ` + pgtest.Query(t, uri, `SELECT current_database()`)
			}
			pgtest.Exec(t, uri, `ALTER `+owner+` `+set)
		}
	}
	as := func(uri string) string { return strings.Replace(uri, "postgres@", role+"@", 1) }
	l.start(func(o *apply.Options) { o.Source, o.Target = as(o.Source), as(o.Target) })
	l.onSource(`INSERT INTO t VALUES (1, '2024-02-03', '-1 day 2 hours', 0.1::float8 + 0.2, '{NULL,"NULL"}', '\x00ff5c', '-1234.5', 'ä')`, `UPDATE t SET x = 'ö' WHERE id = 1`)
	l.catchUp()
	l.same(`SELECT * FROM t`)
	require.Empty(t, l.recorded())
	for _, setting := range settings {
		t.Run(setting.name, func(t *testing.T) {
			if setting.name == "transaction_timeout" && pgtest.Major(t) < 17 {
				return
			}
			require.Equal(t, setting.inForce, pgtest.Query(t, l.target, `SELECT setting FROM seen WHERE lower(name) = lower($1)`, setting.name))
		})
	}
	// Longer than every timeout.
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE t`)
	l.onSource(`UPDATE t SET x = 'waited' WHERE id = 1`)
	l.awaitBlocked()
	pgtest.WaitFor(t, l.target, `SELECT clock_timestamp() > query_start + '1 s' FROM pg_stat_activity WHERE application_name = $1`, "t", l.name+":w0")
	lock(`COMMIT`)
	l.catchUp()
	require.Equal(t, "waited", l.same(`SELECT x FROM t`))
	require.Zero(t, l.engine.Status().Retries)
	l.stop()
}

// encoded is a link between databases of the given encodings.
func encoded(t *testing.T, source, target string) *link {
	l := newLink(t)
	publisher, server := pgtest.Shared(t)
	for _, end := range []struct {
		uri      *string
		postgres string
		place    func(string) string
		encoding string
	}{
		{&l.source, publisher.URI("postgres"), publisher.URI, source}, {&l.target, server.URI("postgres"), server.URI, target},
	} {
		name := l.name + "_" + strings.ToLower(end.encoding)
		pgtest.Exec(t, end.postgres, `CREATE DATABASE `+name+` ENCODING '`+end.encoding+`' LOCALE 'C' TEMPLATE template0`)
		*end.uri = end.place(name)
	}
	l.name = pgtest.Query(t, l.source, `SELECT current_database()`)
	t.Cleanup(func() {
		pgtest.Exec(t, l.source, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '`+l.name+`'`)
		if pgtest.Query(t, l.target, `SELECT to_regclass('pgapply.origin')`) != "" {
			pgtest.Exec(t, l.target, `SELECT pg_replication_origin_drop(origin_name) FROM pgapply.origin`)
		}
		for uri, administrator := range map[string]string{l.source: publisher.URI("postgres"), l.target: server.URI("postgres")} {
			name := pgtest.Query(t, uri, `SELECT current_database()`)
			pgtest.WaitFor(t, administrator, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1`, "0", name)
			pgtest.Exec(t, administrator, `DROP DATABASE `+name)
		}
	})
	return l
}

// TestEncodingsThatDiffer: text arrives in the target's encoding, also as keys, as
// parts of values of other types, and in names.
func TestEncodingsThatDiffer(t *testing.T) {
	for _, pair := range [][2]string{{"LATIN1", "UTF8"}, {"UTF8", "LATIN9"}} {
		t.Run(pair[0]+" to "+pair[1], func(t *testing.T) {
			l := encoded(t, pair[0], pair[1])
			utf8 := func(uri string) string { return uri + "&client_encoding=UTF8" }
			for _, uri := range []string{utf8(l.source), utf8(l.target)} {
				pgtest.Exec(t, uri, `CREATE TABLE "Größe" ("ä" text PRIMARY KEY, j json, b bytea)`)
			}
			pgtest.Exec(t, utf8(l.source), `CREATE PUBLICATION p FOR TABLE "Größe"`)
			l.start()
			pgtest.Exec(t, utf8(l.source), `INSERT INTO "Größe" VALUES ('naïve', '{"ä": "é"}', '\xe4'), ('ÿ', NULL, NULL)`, `UPDATE "Größe" SET "ä" = 'ñ' WHERE "ä" = 'naïve'`, `DELETE FROM "Größe" WHERE "ä" = 'ÿ'`)
			l.catchUp()
			require.Equal(t, `ñ|{"ä": "é"}|\xe4`, pgtest.Query(t, utf8(l.target), `SELECT * FROM "Größe"`))
			l.stop()
		})
	}
}

// TestEncodingsWithoutAConversion are refused before anything exists.
func TestEncodingsWithoutAConversion(t *testing.T) {
	l := encoded(t, "WIN1252", "LATIN1")
	l.onSource(`CREATE PUBLICATION p`)
	err := l.run(func(o *apply.Options) { o.OnError = "stop" })
	requireClass(t, apply.Source, err, "WIN1252", "LATIN1")
	l.untouched()
}

// TestBytesWithoutAnEncoding: what an SQL_ASCII publisher holds is no text to a UTF8
// target where it is not UTF-8. That stops; nothing is made up.
func TestBytesWithoutAnEncoding(t *testing.T) {
	l := encoded(t, "SQL_ASCII", "UTF8")
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 'ä')`)
	l.catchUp()
	l.same(`SELECT * FROM t`)
	l.onSource(`INSERT INTO t VALUES (2, E'\xe4')`)
	l.failure(`"UTF8"`, "22021")
	require.Equal(t, "1|ä", pgtest.Query(t, l.target, `SELECT * FROM t`))
	l.stop()
}

// TestDeadlock: the target takes apply as the victim. It begins the transaction anew,
// and nobody has to look.
func TestDeadlock(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start(func(o *apply.Options) { o.OnError = "stop" })
	l.onSource(`INSERT INTO t VALUES (1, 'a'), (2, 'a'), (3, 'a')`)
	l.catchUp()
	gate, local := session(t, l.target), session(t, l.target)
	gate(`BEGIN; SELECT FROM t WHERE id = 2 FOR UPDATE`)
	local(`SET deadlock_timeout = '1h'; BEGIN; UPDATE t SET v = 'local' WHERE id = 3`)
	l.onSource(`BEGIN; UPDATE t SET v = 'b' WHERE id = 1; UPDATE t SET v = 'b' WHERE id = 2; UPDATE t SET v = 'b' WHERE id = 3; COMMIT`)
	l.awaitBlocked()
	done := make(chan struct{})
	go func() {
		defer close(done)
		local(`UPDATE t SET v = 'local' WHERE id = 1`)
	}()
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, "2")
	gate(`ROLLBACK`)
	<-done
	local(`COMMIT`)
	l.catchUp()
	require.Equal(t, "1|b\n2|b\n3|b", l.same(`SELECT * FROM t ORDER BY id`))
	pgtest.WaitFor(t, l.target, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`, "1")
}

// TestRightsOfThePlainRole: a role that is no superuser needs what the operations need
// and no more; what it lacks stops the change, and names the table. Row-level security
// is never applied to a part of the rows.
func TestRightsOfThePlainRole(t *testing.T) {
	publisher, _ := pgtest.Shared(t)
	server := pgtest.Start(t, pgtest.OnMajor(max(15, pgtest.Major(t))))
	l := linkOf(t, publisher, server)
	pgtest.Exec(t, server.URI("postgres"), `CREATE ROLE plain LOGIN`, `GRANT SET ON PARAMETER session_replication_role TO plain`)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`GRANT CREATE ON DATABASE `+pgtest.Query(t, l.target, `SELECT current_database()`)+` TO plain`,
		`DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname LIKE 'pg_replication_origin%' OR proname = 'pg_show_replication_origin_status' LOOP
			EXECUTE 'GRANT EXECUTE ON FUNCTION ' || f || ' TO plain'; END LOOP; END $$`,
		`GRANT SELECT ON pg_replication_origin TO plain`, `GRANT INSERT, SELECT ON t TO plain`)
	l.start(func(o *apply.Options) { o.Target = strings.Replace(o.Target, "postgres@", "plain@", 1) })
	l.onSource(`INSERT INTO t VALUES (1, 'a')`)
	l.catchUp()
	l.onSource(`UPDATE t SET v = 'b'`)
	l.failure("UPDATE on public.t", "permission denied", "42501")
	l.onTarget(`GRANT UPDATE ON t TO plain`)
	l.catchUp()
	l.same(`SELECT * FROM t`)
	l.onTarget(`ALTER TABLE t ENABLE ROW LEVEL SECURITY`, `CREATE POLICY every_row ON t USING (true)`)
	l.onSource(`UPDATE t SET v = 'c'`)
	l.failure("public.t", "row-level security")
	require.Equal(t, "b", pgtest.Query(t, l.target, `SELECT v FROM t`))
	l.onTarget(`ALTER ROLE plain BYPASSRLS`)
	l.catchUp()
	l.same(`SELECT * FROM t`)
	l.stop()
}
