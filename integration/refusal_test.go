package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// untouched proves that a refused start left nothing on either end.
func (l *link) untouched() {
	l.t.Helper()
	require.Empty(l.t, pgtest.Query(l.t, l.source, `SELECT slot_name FROM pg_replication_slots WHERE database = current_database()`))
	require.Empty(l.t, pgtest.Query(l.t, l.target, `SELECT nspname FROM pg_namespace WHERE nspname = 'pgapply'`))
	require.Empty(l.t, pgtest.Query(l.t, l.target, `SELECT roname FROM pg_replication_origin WHERE roname LIKE '%' || $1 || '%'`, l.name))
}

// TestRefusedStart: what cannot work ends at once, says what and names the remedy,
// and changes nothing.
func TestRefusedStart(t *testing.T) {
	for _, c := range []struct {
		name   string
		class  apply.Class
		change func(l *link, o *apply.Options)
		texts  []string
	}{
		{"malformed source URI", apply.Configuration, func(_ *link, o *apply.Options) { o.Source = "postgres://[::1/x" }, []string{"publisher", "connection string"}},
		{"malformed target URI", apply.Configuration, func(_ *link, o *apply.Options) { o.Target = "port=junk" }, []string{"target", "connection string"}},
		{"no such source database", apply.Source, func(l *link, o *apply.Options) { o.Source = strings.Replace(l.source, l.name, "nowhere", 1) }, []string{"nowhere"}},
		{"no such target database", apply.Target, func(l *link, o *apply.Options) { o.Target = strings.Replace(l.target, "/", "/", 1) + "&dbname=nowhere" }, []string{"nowhere"}},
		{"no such source user", apply.Source, func(l *link, o *apply.Options) { o.Source = strings.Replace(l.source, "postgres@", "nobody@", 1) }, []string{"nobody", "pg_hba.conf"}},
		{"no such target user", apply.Target, func(l *link, o *apply.Options) { o.Target = strings.Replace(l.target, "postgres@", "nobody@", 1) }, []string{"nobody", "pg_hba.conf"}},
		{"missing publication", apply.Refused, func(_ *link, o *apply.Options) { o.Publications = []string{"p", "q x"} }, []string{`"q x"`, "CREATE PUBLICATION"}},
		{"same database", apply.Refused, func(l *link, o *apply.Options) { o.Target = l.source }, []string{"same database"}},
		{"slot to adopt is missing", apply.Refused, func(_ *link, o *apply.Options) { o.CreateSlot = false }, []string{"does not exist", "--create-slot"}},
		{"no commit times to compare", apply.Refused, func(_ *link, o *apply.Options) { onConflict("insert_exists=last_update_wins")(o) }, []string{"last_update_wins", "track_commit_timestamp"}},
		{"spool that cannot be made", apply.Refused, func(_ *link, o *apply.Options) { o.SpoolDir = "/dev/null/spool" }, []string{"create spool directory", "--spool-dir"}},
		{"rows on the target", apply.Refused, func(l *link, o *apply.Options) {
			l.both(`CREATE TABLE "full" (id int PRIMARY KEY)`)
			l.onSource(`ALTER PUBLICATION p ADD TABLE "full"`)
			l.onTarget(`INSERT INTO "full" SELECT generate_series(1, 3)`)
			o.CopyData = true
		}, []string{"public.full", "--if-not-empty", "--copy-data=false"}},
		{"rows on the target that nobody has agreed to remove", apply.Refused, func(l *link, o *apply.Options) {
			l.both(`CREATE TABLE "full" (id int PRIMARY KEY)`)
			l.onSource(`ALTER PUBLICATION p ADD TABLE "full"`)
			l.onTarget(`INSERT INTO "full" SELECT generate_series(1, 3)`)
			o.CopyData, o.IfNotEmpty = true, "truncate"
		}, []string{"public.full", "--yes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t)
			l.onSource(`CREATE PUBLICATION p`)
			o := l.options()
			c.change(l, &o)
			engine, err := apply.New(o)
			if err == nil {
				err = engine.Run(t.Context())
			}
			requireClass(t, c.class, err, c.texts...)
			l.untouched()
		})
	}
}

// TestRefusedPassword: servers that want a password and get none, or a wrong one.
func TestRefusedPassword(t *testing.T) {
	publisher, target := pgtest.Pair(t)
	l := &link{t: t, source: publisher.URI("postgres"), target: target.URI("postgres"), name: "s"}
	l.both(`CREATE ROLE secret SUPERUSER LOGIN PASSWORD 'right'`)
	l.onSource(`CREATE PUBLICATION p`)
	for _, server := range []*cluster.Cluster{publisher, target} {
		hba := filepath.Join(pgtest.Query(t, server.URI("postgres"), `SHOW data_directory`), "pg_hba.conf")
		text, err := os.ReadFile(hba)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(hba, append([]byte("host all,replication secret 127.0.0.1/32 scram-sha-256\n"), text...), 0o600))
		pgtest.Exec(t, server.URI("postgres"), `SELECT pg_reload_conf()`)
		pgtest.WaitFor(t, server.URI("postgres"), `SELECT count(*) FROM pg_hba_file_rules WHERE 'secret' = ANY (user_name)`, "1")
	}
	as := func(uri, password string) string { return strings.Replace(uri, "postgres@", "secret:"+password+"@", 1) }
	err := l.run(func(o *apply.Options) { o.Source = as(l.source, "wrong") })
	requireClass(t, apply.Source, err, "secret", "password")
	require.NotContains(t, err.Error(), "wrong")
	l.untouched()
	err = l.run(func(o *apply.Options) { o.Target = as(l.target, "wrong") })
	requireClass(t, apply.Target, err, "secret", "password")
	require.NotContains(t, err.Error(), "wrong")
	l.untouched()
	l.start(func(o *apply.Options) { o.Source, o.Target = as(l.source, "right"), as(l.target, "right") })
}

func TestRefusedServers(t *testing.T) {
	publisher := pgtest.Start(t, pgtest.With("wal_level", "replica"))
	_, target := pgtest.Shared(t)
	l := &link{t: t, source: publisher.URI("postgres"), target: pgtest.Database(t, target), name: "s"}
	l.onSource(`CREATE PUBLICATION p`)
	requireClass(t, apply.Refused, l.run(), "wal_level", "logical")
	l.untouched()

	// The same server is a target in recovery once it believes to be a standby.
	data := pgtest.Query(t, l.source, `SHOW data_directory`)
	require.NoError(t, publisher.Stop(cluster.Fast))
	require.NoError(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644))
	require.NoError(t, publisher.Restart(t.Context()))
	standby := publisher.URI("postgres")
	source, _ := pgtest.Shared(t)
	l = &link{t: t, source: pgtest.Database(t, source), target: standby, name: "s2"}
	l.onSource(`CREATE PUBLICATION p`)
	requireClass(t, apply.Refused, l.run(), "in recovery", "primary")
	l.untouched()
}

// TestUnknownSlot: a slot that the state does not know is neither used nor dropped,
// unless it is adopted.
func TestUnknownSlot(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`,
		`SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')`, `INSERT INTO t VALUES (1)`)
	requireClass(t, apply.Refused, l.run(), l.name, "--create-slot=false")
	l.start(func(o *apply.Options) { o.CreateSlot = false })
	l.catchUp()
	l.same(`SELECT * FROM t`)
	l.stop()

	// Once adopted it is the subscription's.
	l.onSource(`INSERT INTO t VALUES (2)`)
	l.start()
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
}

func TestForeignSlots(t *testing.T) {
	l := newLink(t)
	other := newLink(t)
	l.onSource(`CREATE PUBLICATION p`, `SELECT pg_create_logical_replication_slot('foreign_' || current_database(), 'test_decoding')`)
	other.onSource(`SELECT pg_create_logical_replication_slot('other_' || current_database(), 'pgoutput')`)
	adopt := func(slot string) func(*apply.Options) {
		return func(o *apply.Options) { o.Slot, o.CreateSlot = slot, false }
	}
	requireClass(t, apply.Refused, l.run(adopt("foreign_"+l.name)), "pgoutput")
	requireClass(t, apply.Refused, l.run(adopt("other_"+other.name)), other.name, "--source")
}

// TestLostSlot: changes may be missing, so nothing is made up: exit 7.
func TestLostSlot(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	l.stop()
	l.onSource(`SELECT pg_drop_replication_slot(current_database())`)
	requireClass(t, apply.SlotLost, l.run(), "is gone")
	// Somebody makes one of the same name: still not the slot that was lost.
	l.onSource(`INSERT INTO t VALUES (2)`, `SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')`)
	requireClass(t, apply.SlotLost, l.run(), "confirmed up to", "cleanup")
	require.Equal(t, "1", pgtest.Query(t, l.target, `SELECT id FROM t`))
}

// TestMovedSlot: somebody consumed changes from the slot behind our back.
func TestMovedSlot(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	l.stop()
	l.onSource(`INSERT INTO t VALUES (2)`, `SELECT pg_replication_slot_advance(current_database(), pg_current_wal_lsn())`)
	requireClass(t, apply.SlotLost, l.run(), "confirmed up to")
	// The origin is the other half of the proof.
	l.onTarget(`SELECT pg_replication_origin_drop(origin_name) FROM pgapply.origin`)
	requireClass(t, apply.SlotLost, l.run(), "origin")
}

func TestNewerState(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE PUBLICATION p`)
	l.start()
	l.stop()
	l.onTarget(`UPDATE pgapply.version SET version = version + 1`)
	requireClass(t, apply.Refused, l.run(), "version", "upgrade this pgapply")
	require.Equal(t, "1", pgtest.Query(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, l.name))
}

// TestMisfits: a relation that does not fit the target stops its transaction and
// all after it, names what is wrong, and goes on by itself once that is mended.
func TestMisfits(t *testing.T) {
	for _, c := range []struct {
		name, target, mend string
		texts              []string
	}{
		{"missing table", ``, `CREATE TABLE t (id int PRIMARY KEY, a text, b int)`, []string{`"public.t" does not exist`, "create the table"}},
		{"missing columns", `CREATE TABLE t (id int PRIMARY KEY)`, `ALTER TABLE t ADD a text, ADD b int`, []string{`"public.t" is missing replicated columns: "a", "b"`}},
		{"missing column", `CREATE TABLE t (id int PRIMARY KEY, a text)`, `ALTER TABLE t ADD b int`, []string{`"public.t" is missing replicated column: "b"`, "add the column"}},
		{"view", `CREATE VIEW t AS SELECT 1 AS id, 'x' AS a, 2 AS b`, `DROP VIEW t; CREATE TABLE t (id int PRIMARY KEY, a text, b int)`, []string{`"public.t"`, "a view"}},
		{"generated column", `CREATE TABLE t (id int PRIMARY KEY, a text, b int GENERATED ALWAYS AS (1) STORED)`, `ALTER TABLE t ALTER b DROP EXPRESSION`, []string{`incompatible generated column: "b"`}},
		{"type", `CREATE TABLE t (id int PRIMARY KEY, a int, b int)`, `ALTER TABLE t ALTER a TYPE text`, []string{"public.t", "22P02"}},
		{"constraint", `CREATE TABLE t (id int PRIMARY KEY, a text, b int CHECK (b < 0))`, `ALTER TABLE t DROP CONSTRAINT t_b_check`, []string{"public.t", "t_b_check"}},
		{"no key", `CREATE TABLE t (id int, a text, b int)`, `ALTER TABLE t ADD PRIMARY KEY (id)`, []string{"REPLICA IDENTITY index nor PRIMARY KEY"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t)
			l.onSource(`CREATE TABLE t (id int PRIMARY KEY, a text, b int)`)
			l.both(`CREATE TABLE other (id int PRIMARY KEY)`)
			if c.target != "" {
				l.onTarget(c.target)
			}
			l.onSource(`CREATE PUBLICATION p FOR TABLE t, other`)
			l.start()
			l.onSource(`BEGIN; INSERT INTO other VALUES (1); INSERT INTO t VALUES (1, 'secret', 7); UPDATE t SET b = 8; COMMIT`, `INSERT INTO other VALUES (2)`)
			status := l.failure(c.texts...)
			require.NotContains(t, status.LastError, "secret")
			require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM other`))
			l.onTarget(c.mend)
			l.catchUp()
			l.same(`SELECT * FROM t`)
			l.same(`SELECT * FROM other ORDER BY id`)
			require.Equal(t, state.Streaming, l.engine.Status().Phase)
			require.Empty(t, l.engine.Status().LastError)
		})
	}
}

// TestErrorsHideValues: neither what the engine says nor what it keeps has values of rows,
// whatever the SQLSTATE of a value that the target does not take.
func TestErrorsHideValues(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE TABLE t (id int PRIMARY KEY, v regclass)`)
	l.start()
	l.onSource(`INSERT INTO t SELECT g, 'topsecret' FROM generate_series(1, 9) g`)
	status := l.failure("INSERT on public.t", "42P01")
	require.NotContains(t, status.LastError+status.LastErrorHint, "topsecret")
	require.NotContains(t, pgtest.Query(t, l.target, `SELECT s::text FROM pgapply.subscription s`), "topsecret")
}

// TestStopOnError: --on-error stop ends with what a person has to look at.
func TestStopOnError(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE PUBLICATION p FOR TABLE t`)
	l.start(func(o *apply.Options) { o.OnError = "stop" })
	l.onSource(`INSERT INTO t VALUES (1)`)
	requireClass(t, apply.Conflict, l.wait(), "public.t", "create the table")
}

// TestEndPosition: --endpos applies what committed before it, acknowledges, ends.
func TestEndPosition(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	require.NoError(t, l.run(func(o *apply.Options) { o.EndAtCurrent = true }))
	l.onSource(`INSERT INTO t SELECT generate_series(1, 1000)`, `INSERT INTO t VALUES (1001)`)
	end := pgtest.Query(t, l.source, `SELECT pg_current_wal_insert_lsn()`)
	l.onSource(`INSERT INTO t VALUES (1002)`)
	require.NoError(t, l.run(func(o *apply.Options) { require.NoError(t, o.EndLSN.Scan(end)) }))
	require.Equal(t, "1001", pgtest.Query(t, l.target, `SELECT count(*) FROM t`))
	require.Equal(t, "t", pgtest.Query(t, l.source, `SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`, end, l.name))
	require.NoError(t, l.run(func(o *apply.Options) { o.EndAtCurrent = true }))
	l.same(`SELECT count(*) FROM t`)
	// Nothing is left to come: the end is reached all the same.
	require.NoError(t, l.run(func(o *apply.Options) { o.EndAtCurrent = true }))
}
