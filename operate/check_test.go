package operate

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/cluster"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
	"pgapply/internal/source"
)

// check runs a check of publication p between the ends of the bed.
func (b *bed) check(change ...func(*apply.Options)) *Checkup {
	b.t.Helper()
	options := apply.DefaultOptions()
	options.Name, options.Source, options.Target, options.Slot = b.ends.Name, b.ends.Source, b.ends.Target, b.slot
	options.Publications = []string{"p"}
	options.SpoolLimit = options.MemoryLimit // disks of the tests are not looked at
	for _, c := range change {
		c(&options)
	}
	checkup, err := Check(b.t.Context(), options)
	require.NoError(b.t, err)
	return checkup
}

// complaints are the findings that are not ok.
func (c *Checkup) complaints() []string {
	lines := []string{}
	for _, finding := range c.Findings {
		if finding.Level != OK {
			lines = append(lines, fmt.Sprintf("%s %s: %s | %s", finding.Level, finding.Subject, finding.Text, finding.Remedy))
		}
	}
	return lines
}

// requireComplaint wants one complaint, which begins as given and holds the parts.
func requireComplaint(t *testing.T, checkup *Checkup, begin string, parts ...string) {
	t.Helper()
	complaints := checkup.complaints()
	require.Len(t, complaints, 1)
	require.True(t, strings.HasPrefix(complaints[0], begin), complaints[0])
	for _, part := range parts {
		require.Contains(t, complaints[0], part)
	}
	require.Equal(t, strings.HasPrefix(begin, string(Failure)), checkup.Err() != nil)
}

func TestCheckOfAPairThatFits(t *testing.T) {
	for _, majors := range [][2]int{{10, 14}, {14, cluster.NewestMajor}, {cluster.NewestMajor, 15}} {
		t.Run(fmt.Sprintf("publisher %d, target %d", majors[0], majors[1]), func(t *testing.T) {
			b := newBed(t, pgtest.Start(t, pgtest.OnMajor(majors[0])), pgtest.Start(t, pgtest.OnMajor(majors[1])))
			for _, uri := range []string{b.source, b.target} {
				pgtest.Exec(t, uri, `create table t (a int primary key, b text); create table "U u" (a int)`)
			}
			pgtest.Exec(t, b.source, `alter table "U u" replica identity full`, `create publication p for table t, "U u"`)
			checkup := b.check()
			require.Empty(t, checkup.complaints())
			require.NoError(t, checkup.Err())
			require.Contains(t, checkup.Text(), "2 tables: columns, keys and rights fit\n0 errors, 0 warnings, ")
			require.Equal(t, "0 slots, 0 origins, 0 schemas", b.leftovers(), "a check changes nothing")
		})
	}
}

// Each case is a publication p and what the target makes of it.
func TestCheckOfTables(t *testing.T) {
	b := sharedBed(t)
	keyed := `create table t (a int primary key, b text)`
	for name, test := range map[string]struct {
		source, target string
		change         func(*apply.Options)
		begin          string
		parts          []string
	}{
		"no such publication": {
			source: `select`, begin: "error publications: ", parts: []string{`no publication "p"`, "CREATE PUBLICATION"},
		},
		"nothing published": {source: `create publication p`, begin: "warning publications: no table is published by p"},
		"missing table": {
			source: keyed + `; create publication p for table t`,
			begin:  "error public.t: ", parts: []string{`"public.t" does not exist`, "create the table on the target"},
		},
		"missing table that may miss": {
			source: keyed + `; create publication p for table t`, change: func(o *apply.Options) { o.MissingTable = "skip" },
			begin: "warning public.t: ", parts: []string{`"public.t" does not exist`, "--missing-table skip"},
		},
		"missing table to be created": {
			source: keyed + `; create publication p for table t`, change: func(o *apply.Options) { o.CopySchema = true },
		},
		"rows on the target": {
			source: keyed + `; create publication p for table t`, target: keyed + `; insert into t values (1, 'x')`,
			begin: "error rows: ", parts: []string{"public.t (about 1 row)", "--if-not-empty truncate --yes"},
		},
		"rows on the target that are to go": {
			source: keyed + `; create publication p for table t`, target: keyed + `; insert into t values (1, 'x')`,
			change: func(o *apply.Options) { o.IfNotEmpty, o.Confirmed = "truncate", true },
			begin:  "warning rows: ", parts: []string{"removes", "public.t (about 1 row)"},
		},
		"rows on the target that are the publisher's": {
			source: keyed + `; create publication p for table t`, target: keyed + `; insert into t values (1, 'x')`,
			change: func(o *apply.Options) { o.CopyData = false },
		},
		"a view": {
			source: keyed + `; create publication p for table t`, target: `create view t as select 1 as a`,
			change: func(o *apply.Options) { o.MissingTable = "skip" },
			begin:  "error public.t: ", parts: []string{"it is a view"},
		},
		"missing column": {
			source: keyed + `; create publication p for table t`, target: `create table t (a int primary key, c text)`,
			begin: "error public.t: ", parts: []string{`is missing replicated column: "b"`, "add the column"},
		},
		"generated column": {
			source: keyed + `; create publication p for table t`, target: `create table t (a int primary key, b text generated always as ('x') stored)`,
			begin: "error public.t: ", parts: []string{"incompatible generated column"},
		},
		"identity column beside the key": {
			source: `create table t (a int primary key, b int); create publication p for table t`, target: `create table t (a int primary key, b int generated always as identity)`,
			begin: "warning public.t: ", parts: []string{`column "b" is GENERATED ALWAYS`, "applied one by one", `ALTER TABLE "public"."t" ALTER "b" SET GENERATED BY DEFAULT`},
		},
		"identity column of the key": {
			source: keyed + `; create publication p for table t`, target: `create table t (a int generated always as identity primary key, b text)`,
			begin: "warning public.t: ", parts: []string{`column "a" is GENERATED ALWAYS`, "and not on the publisher", `SET GENERATED BY DEFAULT`},
		},
		"identity columns that cannot change": {
			source: `create table t (a int generated always as identity primary key, b text); create table u (a int primary key, b int);
				create publication p for table t; create publication q for table u with (publish = 'insert')`,
			target: `create table t (a int generated always as identity primary key, b text, c int generated always as identity); create table u (a int primary key, b int generated always as identity)`,
			change: func(o *apply.Options) { o.Publications = []string{"p", "q"} },
		},
		"computed on the publisher": {
			source: `create table t (a int primary key, b int generated always as (a + 1) stored); create publication p for table t`, target: `create table t (a int primary key, b int)`,
			begin: "warning public.t: the publisher computes column \"b\" and does not send it", parts: []string{"make it a generated column on the target too"},
		},
		"computed on both": {
			source: `create table t (a int primary key, b int generated always as (a + 1) stored); create publication p for table t`,
			target: `create table t (a int primary key, b int not null generated always as (a + 2) stored)`,
		},
		"nothing fills it": {
			source: keyed + `; create publication p for table t`, target: `create table t (a int primary key, b text, c int not null, d int not null default 1, e int)`,
			begin: `error public.t: the publisher does not send column "c", which is NOT NULL`, parts: []string{"give it a default"},
		},
		"nothing fills what is left out": {
			source: keyed + `; create publication p for table t (a)`, target: `create table t (a int primary key, b text not null)`,
			begin: `error public.t: the publisher does not send column "b"`,
		},
		"a trigger fills it": {
			source: keyed + `; create publication p for table t`, target: `create table t (a int primary key, b text, c int not null);
				create function f() returns trigger language plpgsql as 'begin new.c = 1; return new; end';
				create trigger each before insert on t for each row execute function f(); alter table t enable always trigger each`,
		},
		"column that is not published": {
			source: keyed + `; create publication p for table t (a)`, target: `create table t (a int primary key)`,
		},
		"no key on the target": {
			source: keyed + `; create publication p for table t`, target: `create table t (a int, b text)`,
			begin: "error public.t: ", parts: []string{"neither REPLICA IDENTITY index nor PRIMARY KEY", "primary key"},
		},
		"no key on the target for inserts": {
			source: keyed + `; create publication p for table t with (publish = 'insert')`, target: `create table t (a int, b text)`,
		},
		"another key on the target": {
			source: keyed + `; create publication p for table t`, target: `create table t (a int, b text primary key)`,
			begin: "error public.t: ", parts: []string{"did not send replica identity column", `"b"`},
		},
		"no identity on the publisher": {
			source: `create table t (a int, b text); create publication p for table t`, target: keyed,
			begin: "warning public.t: it has no replica identity: the publisher itself refuses", parts: []string{"REPLICA IDENTITY"},
		},
		"no equality": {
			source: `create table t (a int, j json); alter table t replica identity full; create publication p for table t`, target: `create table t (a int, j json)`,
			begin: "warning public.t: ", parts: []string{"j has a type without equality", "primary key on the target"},
		},
		"no equality and a key": {
			source: `create table t (a int primary key, j json); alter table t replica identity full; create publication p for table t`, target: `create table t (a int primary key, j json)`,
		},
		"different column lists": {
			source: keyed + `; create publication p for table t (a); create publication q for table t`, target: keyed,
			change: func(o *apply.Options) { o.Publications = []string{"p", "q"} },
			begin:  "error public.t: the publications have different column lists",
		},
		"rule": {
			source: keyed + `; create publication p for table t`,
			target: keyed + `; create rule "R r" as on delete to t do instead nothing; alter table t enable always rule "R r"`,
			begin:  `warning public.t: rule "R r" is enabled for replicated changes`, parts: []string{`ALTER TABLE "public"."t" ENABLE RULE "R r"`},
		},
		"statement trigger": {
			source: keyed + `; create publication p for table t`,
			target: keyed + `; create function f() returns trigger language plpgsql as 'begin return null; end';
				create trigger s after update or truncate on t execute function f(); alter table t enable replica trigger s`,
			begin: `warning public.t: statement trigger "s" is enabled for replicated changes`, parts: []string{`ENABLE TRIGGER "s"`},
		},
		"harmless triggers and rules": {
			source: keyed + `; create publication p for table t`,
			target: keyed + `; create table other (a int); create function f() returns trigger language plpgsql as 'begin return null; end';
				create trigger plain after update on t execute function f();
				create trigger emptied after truncate on t execute function f(); alter table t enable always trigger emptied;
				create trigger each after update on t for each row execute function f(); alter table t enable replica trigger each;
				create trigger elsewhere after update on other execute function f(); alter table other enable always trigger elsewhere;
				create rule r as on delete to t do instead nothing`,
		},
		"deferrable": {
			source: keyed + `; create publication p for table t`, target: `create table t (a int primary key, b text, constraint later unique (b) deferrable)`,
			begin: "warning public.t: constraint later is deferrable",
		},
		"unlogged": {
			source: keyed + `; create publication p for table t`, target: `create unlogged table t (a int primary key, b text)`,
			begin: "warning public.t: it is unlogged", parts: []string{"SET LOGGED"},
		},
		"schema of ours": {
			source: keyed + `; create schema if not exists pgapply; create table pgapply.x (a int primary key); create publication p for all tables`, target: keyed,
		},
		"partitioned": {
			source: `create table t (a int primary key) partition by range (a); create table t1 partition of t default; create publication p for table t with (publish_via_partition_root)`,
			target: `create table t (a int primary key) partition by hash (a); create table t9 partition of t for values with (modulus 1, remainder 0)`,
		},
		"commit times for the last update": {
			source: keyed + `; create publication p for table t`, target: keyed,
			change: func(o *apply.Options) { require.NoError(t, o.OnConflict.Set("insert_exists=last_update_wins")) },
			begin:  "error target: the policy last_update_wins compares commit times", parts: []string{"track_commit_timestamp = on"},
		},
		"commit times for other origins": {
			source: keyed + `; create publication p for table t`, target: keyed,
			change: func(o *apply.Options) { require.NoError(t, o.OnConflict.Set("update_origin_differs=keep_local")) },
			begin:  "warning commit times: track_commit_timestamp is off: that somebody else", parts: []string{"track_commit_timestamp = on"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, uri := range []string{b.source, b.target} {
				pgtest.Exec(t, uri, `set client_min_messages = error; drop publication if exists p, q; drop schema public cascade; create schema public`)
			}
			pgtest.Exec(t, b.source, test.source)
			if test.target != "" {
				pgtest.Exec(t, b.target, test.target)
			}
			var changes []func(*apply.Options)
			if test.change != nil {
				changes = append(changes, test.change)
			}
			checkup := b.check(changes...)
			if test.begin == "" {
				require.Empty(t, checkup.complaints())
				return
			}
			requireComplaint(t, checkup, test.begin, test.parts...)
		})
	}
}

// What a check tells an administrator to do is enough.
func TestCheckOfAPlainRole(t *testing.T) {
	publisher, _ := pgtest.Shared(t)
	server := pgtest.Start(t, pgtest.OnMajor(max(15, pgtest.Major(t))))
	pgtest.Exec(t, server.URI("postgres"), `create role "plain role" login`, `create role other login`)
	b := newBed(t, publisher, server)
	pgtest.Exec(t, b.source, `create schema s; create table s.t (a int primary key, b text); create publication p for table s.t`)
	pgtest.Exec(t, b.target, `create schema s; create table s.t (a int primary key, b text); alter table s.t enable row level security`)
	admin := b.target
	b.ends.Target = as(t, b.target, "plain role")
	checkup := b.check()
	complaints := strings.Join(checkup.complaints(), "\n")
	for _, part := range []string{
		`error state: role "plain role" may not create schema pgapply`,
		"warning progress: in a table, since plain role may not use replication origins: rows carry no",
		"warning triggers: plain role may not set session_replication_role: triggers, rules and foreign keys",
		`error s.t: the role has no right to use schema "s"`,
		"error s.t: the role has no right to SELECT, INSERT, UPDATE, DELETE, TRUNCATE",
		"error s.t: row-level security applies to the role",
	} {
		require.Contains(t, complaints, part)
	}
	require.Equal(t, 4, checkup.Errors)
	requireClass(t, checkup.Err(), apply.Refused, `subscription "orders" is not ready: 4 errors`)

	for _, finding := range checkup.Findings {
		_, statement, administrator := strings.Cut(finding.Remedy, ": ")
		switch {
		case administrator:
			pgtest.Exec(t, admin, statement)
		case strings.HasPrefix(finding.Remedy, "GRANT"):
			pgtest.Exec(t, admin, finding.Remedy)
		case strings.Contains(finding.Remedy, "BYPASSRLS"):
			pgtest.Exec(t, admin, `alter role "plain role" bypassrls`)
		}
	}
	require.Empty(t, b.check().complaints())

	// Rights on the published columns are as good as on the table.
	pgtest.Exec(t, admin, `revoke all on s.t from "plain role"; alter table s.t add c int;
		grant insert (a, b), update (a, b), select (a, b), delete, truncate on s.t to "plain role"`)
	require.Empty(t, b.check().complaints())
	pgtest.Exec(t, admin, `revoke update (b) on s.t from "plain role"`)
	requireComplaint(t, b.check(), "error s.t: the role has no right to UPDATE | GRANT UPDATE ON")

	// A superuser runs what the owner of a table has written.
	pgtest.Exec(t, admin, `alter table s.t owner to other; create function f() returns trigger language plpgsql as 'begin return new; end';
		create trigger each before insert on s.t for each row execute function f(); alter table s.t enable always trigger each; drop schema pgapply`)
	b.ends.Target = admin
	requireComplaint(t, b.check(), "warning s.t: trigger each fires for replicated rows and runs what other has written, as superuser postgres")
}

// What a check tells an administrator of the publisher to do is enough for a copy.
func TestCheckOfTheRoleThatReceives(t *testing.T) {
	b := sharedBed(t)
	receiver := b.slot + "_receiver"
	for _, uri := range []string{b.source, b.target} {
		pgtest.Exec(t, uri, `create schema s; create table s.t (a int primary key, b text)`)
	}
	pgtest.Exec(t, b.source, `create publication p for table s.t`, `create role `+receiver+` login replication`, `alter table s.t enable row level security`)
	t.Cleanup(func() { pgtest.Exec(t, b.source, `drop owned by `+receiver, `drop role `+receiver) })
	admin := b.source
	b.ends.Source = as(t, b.source, receiver)
	require.Empty(t, b.check(func(o *apply.Options) { o.CopyData = false }).complaints(), "nothing is read")
	checkup := b.check()
	require.Equal(t, 3, checkup.Errors, checkup.complaints())
	for _, finding := range checkup.Findings {
		if _, statement, found := strings.Cut(finding.Remedy, "on the publisher: "); found {
			pgtest.Exec(t, admin, statement)
		}
	}
	require.Empty(t, b.check().complaints())
	// Rights on the published columns are as good as on the table.
	pgtest.Exec(t, admin, `revoke select on s.t from `+receiver+`; grant select (a) on s.t to `+receiver)
	requireComplaint(t, b.check(), "error s.t: the role of --source has no right to SELECT", `on the publisher: GRANT SELECT ON TABLE "s"."t" TO `)
	pgtest.Exec(t, admin, `grant select (b) on s.t to `+receiver)
	require.Empty(t, b.check().complaints())
}

func TestCheckOfAReplicaRoleBefore15(t *testing.T) {
	publisher, _ := pgtest.Shared(t)
	server := pgtest.Start(t, pgtest.OnMajor(14))
	pgtest.Exec(t, server.URI("postgres"), `create role plain login`)
	b := newBed(t, publisher, server)
	pgtest.Exec(t, b.source, `create publication p`)
	b.ends.Target = as(t, b.target, "plain")
	complaints := b.check().complaints()
	_, remedy, found := strings.Cut(strings.Join(complaints, "\n"), "plain may not set session_replication_role")
	require.True(t, found, complaints)
	_, statement, _ := strings.Cut(remedy, ": ALTER")
	statement, _, _ = strings.Cut("ALTER"+statement, "\n")
	pgtest.Exec(t, b.target, statement)
	require.Contains(t, b.check().Text(), "plain may set session_replication_role: they do not fire")
}

// A check says of slot and state what a start would say.
func TestCheckOfTheState(t *testing.T) {
	prepared := func(t *testing.T) *bed {
		b := sharedBed(t)
		pgtest.Exec(t, b.source, `create table t (a int primary key)`, `create publication p for table t`)
		pgtest.Exec(t, b.target, `create table t (a int primary key)`)
		return b
	}
	confirmed := func(b *bed) lsn.LSN {
		position, err := lsn.Parse(pgtest.Query(b.t, b.source, `select confirmed_flush_lsn from pg_replication_slots where slot_name = $1`, b.slot))
		require.NoError(b.t, err)
		return position
	}
	recorded := func(t *testing.T) (*bed, *state.Store) {
		b := prepared(t)
		store := b.store("orders")
		b.createOrigins(store)
		b.beginSlot(store)
		b.createSlot(store)
		require.NoError(t, store.SlotCreated(t.Context(), confirmed(b)))
		return b, store
	}

	t.Run("recorded", func(t *testing.T) {
		b, _ := recorded(t)
		checkup := b.check(func(o *apply.Options) { o.Publications = nil }) // those that are recorded
		require.Empty(t, checkup.complaints())
		require.Contains(t, checkup.Text(), "subscription orders is recorded and no runner lives")
		require.Contains(t, checkup.Text(), fmt.Sprintf("%s is confirmed up to %s, and the target is at %[2]s", b.slot, confirmed(b)))
	})
	t.Run("slot that nobody knows", func(t *testing.T) {
		b := prepared(t)
		b.createSlot(nil)
		requireComplaint(t, b.check(), "error slot: ", "exists on the publisher and the state", "--create-slot=false")
		checkup := b.check(func(o *apply.Options) { o.CreateSlot = false })
		require.Empty(t, checkup.complaints())
		require.Contains(t, checkup.Text(), b.slot+" will be adopted at "+confirmed(b).String())
	})
	t.Run("slot to adopt that is not there", func(t *testing.T) {
		requireComplaint(t, prepared(t).check(func(o *apply.Options) { o.CreateSlot = false }), "error slot: ", "does not exist on the publisher")
	})
	t.Run("slot half made", func(t *testing.T) {
		b := prepared(t)
		b.beginSlot(b.store("orders"))
		b.createSlot(nil)
		checkup := b.check()
		require.Empty(t, checkup.complaints())
		require.Contains(t, checkup.Text(), b.slot+" will be created")
	})
	t.Run("slot gone", func(t *testing.T) {
		b, _ := recorded(t)
		pgtest.Query(t, b.source, `select pg_drop_replication_slot($1)`, b.slot)
		requireComplaint(t, b.check(), "error slot: ", "is gone from the publisher", "pgapply cleanup")
	})
	t.Run("origin gone", func(t *testing.T) {
		b, store := recorded(t)
		b.dropOrigins(store)
		requireComplaint(t, b.check(), "error slot: ", "replication origin", "is gone from the target")
	})
	t.Run("gap", func(t *testing.T) {
		b, _ := recorded(t)
		pgtest.Exec(t, b.target, `update pgapply.subscription set consistent_point = '0/1'`)
		requireComplaint(t, b.check(), "error slot: ", "the target can prove only what committed before 0/1")
	})
	t.Run("another slot", func(t *testing.T) {
		b, _ := recorded(t)
		requireComplaint(t, b.check(func(o *apply.Options) { o.Slot = "other" }), "error slot: ", "uses slot", `not "other"`)
	})
	t.Run("paused", func(t *testing.T) {
		b, store := recorded(t)
		_, err := store.Pause(t.Context(), "maintenance")
		require.NoError(t, err)
		requireComplaint(t, b.check(), "warning state: the subscription is paused since ", ": maintenance", "pgapply resume")
	})
	t.Run("running", func(t *testing.T) {
		b, store := recorded(t)
		_, err := store.TryLock(t.Context())
		require.NoError(t, err)
		checkup := b.check()
		require.Empty(t, checkup.complaints())
		require.Contains(t, checkup.Text(), "subscription orders is recorded, and a runner lives: server process")
	})
	t.Run("older", func(t *testing.T) {
		b, _ := recorded(t)
		pgtest.Exec(t, b.target, `update pgapply.version set version = 1`)
		requireComplaint(t, b.check(), "warning state: schema pgapply on the target has version 1", "pgapply run")
	})
	t.Run("newer", func(t *testing.T) {
		b, _ := recorded(t)
		pgtest.Exec(t, b.target, `update pgapply.version set version = 1000`)
		requireComplaint(t, b.check(), "error state: schema pgapply on the target has version 1000", "upgrade this pgapply")
	})
	t.Run("one database", func(t *testing.T) {
		b := prepared(t)
		b.ends.Target = b.source
		requireComplaint(t, b.check(), "error ends: source and target are the same database")
	})
}

func TestCheckOfAPublisherThatCannotDecode(t *testing.T) {
	_, server := pgtest.Shared(t)
	b := newBed(t, pgtest.Start(t, pgtest.With("wal_level", "replica"), pgtest.With("max_replication_slots", "1")), server)
	pgtest.Exec(t, b.source, `select pg_create_physical_replication_slot('taken')`, `create table t (a int primary key)`,
		`set client_min_messages = error; create publication p for table t`)
	pgtest.Exec(t, b.target, `create table t (a int primary key)`)
	checkup := b.check()
	require.Equal(t, 2, checkup.Errors)
	require.Contains(t, checkup.Text(), "wal_level on the publisher is replica")
	require.Contains(t, checkup.Text(), "max_replication_slots is 1, and all are taken")
}

func TestCheckOfEncodings(t *testing.T) {
	b := sharedBed(t)
	for name, test := range map[string]struct{ from, to, begin string }{
		"equal":            {"LATIN1", "LATIN1", ""},
		"into UTF8":        {"LATIN1", "UTF8", ""},
		"no meaning":       {"SQL_ASCII", "SQL_ASCII", ""},
		"out of UTF8":      {"UTF8", "LATIN1", "warning encodings: the publisher's UTF8 is converted to LATIN1: a character"},
		"loses meaning":    {"UTF8", "SQL_ASCII", "warning encodings: the target's SQL_ASCII keeps the bytes"},
		"without meaning":  {"SQL_ASCII", "UTF8", "warning encodings: the publisher's SQL_ASCII says nothing"},
		"no conversion":    {"EUC_KR", "LATIN1", "error encodings: the publisher's EUC_KR cannot be converted to the target's LATIN1"},
		"rare conversion":  {"EUC_KR", "UTF8", ""},
		"within a country": {"KOI8R", "WIN1251", "warning encodings: "},
	} {
		t.Run(name, func(t *testing.T) {
			ends := map[*cluster.Cluster]string{b.publisher: test.from, b.server: test.to}
			uris := map[*cluster.Cluster]string{}
			for server, encoding := range ends {
				database := fmt.Sprintf("encoded_%s_%s", strings.ToLower(test.from), strings.ToLower(test.to))
				pgtest.Exec(t, server.URI("postgres"), fmt.Sprintf(`create database %s encoding '%s' template template0 locale 'C'`, database, encoding))
				t.Cleanup(func() { pgtest.Exec(t, server.URI("postgres"), `drop database `+database) })
				uris[server] = server.URI(database)
			}
			pgtest.Exec(t, uris[b.publisher], `create table t (a int primary key)`, `create publication p for table t`)
			pgtest.Exec(t, uris[b.server], `create table t (a int primary key)`)
			checkup := b.check(func(o *apply.Options) { o.Source, o.Target = uris[b.publisher], uris[b.server] })
			if test.begin == "" {
				require.Empty(t, checkup.complaints())
				return
			}
			requireComplaint(t, checkup, test.begin)
		})
	}
}

func TestCheckWithoutAnEnd(t *testing.T) {
	b := sharedBed(t)
	pgtest.Exec(t, b.source, `create publication p`)
	for _, test := range []struct {
		change     func(*apply.Options)
		complaints []string
	}{
		{func(o *apply.Options) { o.Source = nowhere(t) }, []string{"error publisher: connect to the publisher"}},
		{func(o *apply.Options) { o.Target = nowhere(t) }, []string{"error target: connect to the target", "warning publications: "}},
		{func(o *apply.Options) { o.Source, o.Target = nowhere(t), nowhere(t) }, []string{"error publisher: ", "error target: "}},
	} {
		checkup := b.check(test.change)
		require.Len(t, checkup.complaints(), len(test.complaints))
		for i, complaint := range checkup.complaints() {
			require.True(t, strings.HasPrefix(complaint, test.complaints[i]), complaint)
		}
		require.Error(t, checkup.Err())
		require.NotContains(t, checkup.Text(), "\n\n")
	}
}

func TestCheckOfWrongOptions(t *testing.T) {
	b := sharedBed(t)
	options := apply.DefaultOptions()
	options.Source, options.Target = b.source, b.target
	_, err := Check(t.Context(), options)
	require.Equal(t, apply.Configuration, apply.ClassOf(err))
	require.ErrorContains(t, err, "no publication given")
}

// Limits that a test's servers cannot be brought to.
func TestCheckOfRoom(t *testing.T) {
	f := func(change func(*targetRoom)) *facts {
		room := targetRoom{Connections: 10, Reserved: 3, Connected: 5, RoleConnections: -1, DatabaseConnections: -1, Origins: 10, OriginsInUse: 9, OriginSetting: "max_active_replication_origins"}
		change(&room)
		return &facts{options: apply.Options{Workers: 1, Streaming: "on"}, target: &targetFacts{room: room}, publisher: &publisherFacts{ready: source.Readiness{MaxSlots: 2}}}
	}
	for name, test := range map[string]struct {
		ask    func(*facts) []Finding
		change func(*targetRoom)
		level  Level
		text   string
	}{
		"enough":             {checkConnections, func(*targetRoom) {}, OK, "5 of 10 in use; a runner takes 2"},
		"connections":        {checkConnections, func(r *targetRoom) { r.Connected = 6 }, Failure, "a runner needs 2 connections, and max_connections leaves 1 of 7"},
		"none at all":        {checkConnections, func(r *targetRoom) { r.Connected = 9 }, Failure, "max_connections leaves 0 of 7"},
		"role's":             {checkConnections, func(r *targetRoom) { r.RoleConnections, r.RoleConnected = 3, 2 }, Failure, "the role's CONNECTION LIMIT leaves 1 of 3"},
		"role's are enough":  {checkConnections, func(r *targetRoom) { r.RoleConnections, r.RoleConnected = 3, 1 }, OK, "5 of 10"},
		"database's":         {checkConnections, func(r *targetRoom) { r.DatabaseConnections = 0 }, Failure, "the database's CONNECTION LIMIT leaves 0 of 0"},
		"origins":            {checkOrigins, func(*targetRoom) {}, OK, "9 of 10 replication origins exist"},
		"origins all used":   {checkOrigins, func(r *targetRoom) { r.OriginsInUse = 10 }, Warning, "a runner needs 1 replication origin, max_active_replication_origins is 10, and 10 exist"},
		"ours among them":    {checkOrigins, func(r *targetRoom) { r.OriginsInUse, r.OriginsOfOur = 10, 1 }, OK, "10 of 10"},
		"no origins allowed": {checkOrigins, func(r *targetRoom) { r.Origins, r.OriginsInUse = 0, 0 }, Failure, "max_active_replication_origins is 0"},
	} {
		findings := test.ask(f(test.change))
		require.Len(t, findings, 1, name)
		require.Equal(t, test.level, findings[0].Level, name)
		require.Contains(t, findings[0].Text, test.text, name)
	}
}

// Before a slot is made all transactions must end, whatever their database.
func TestCheckOfWhatTheSlotWaitsFor(t *testing.T) {
	f := func() *facts {
		return &facts{
			options: apply.DefaultOptions(), target: &targetFacts{},
			publisher: &publisherFacts{waits: waits{
				where:    "publisher",
				running:  []source.Transaction{{PID: 7, Application: "psql", User: "me", Database: "d", Age: 75 * time.Second}},
				prepared: []source.Transaction{{GID: "g", Database: "e", Age: time.Hour}},
			}},
		}
	}
	findings := checkWaits(f())
	require.Len(t, findings, 2)
	require.Equal(t, `creating it waits for what writes on the publisher: process 7 (application "psql", role me, database d, for 1m)`, findings[0].Text)
	require.Equal(t, `creating it waits for what is prepared on the publisher: prepared transaction "g" (database e, for 1h0m)`, findings[1].Text)
	require.Equal(t, Warning, findings[0].Level)
	for name, change := range map[string]func(*facts){
		"nothing runs": func(f *facts) { f.publisher.waits = waits{} },
		"adopted":      func(f *facts) { f.options.CreateSlot = false },
		"there":        func(f *facts) { f.target.subscription = &state.Subscription{SlotState: state.SlotCreated} },
	} {
		facts := f()
		change(facts)
		require.Empty(t, checkWaits(facts), name)
	}
	creating := f()
	creating.target.subscription, creating.publisher.slot = &state.Subscription{SlotState: state.SlotCreating}, &source.Slot{}
	require.Len(t, checkWaits(creating), 2, "the runner waits now")
}

func TestCheckFindsWhatIsPrepared(t *testing.T) {
	for _, major := range []int{10, cluster.NewestMajor} {
		_, server := pgtest.Shared(t)
		b := newBed(t, pgtest.Start(t, pgtest.OnMajor(major), pgtest.With("max_prepared_transactions", "2")), server)
		pgtest.Exec(t, b.source, `create publication p`)
		pgtest.Exec(t, b.source, `begin; create table t (a int); prepare transaction 'it''s'`)
		running := pgtest.Open(t, b.source)
		running.Exec(`begin`, `create table u (a int)`)
		complaints := strings.Join(b.check().complaints(), "\n")
		require.Regexp(t, `warning slot: creating it waits for what is prepared on the publisher: prepared transaction "it's" \(role postgres, database \S+?(, for \S+)?\) \| COMMIT PREPARED`, complaints)
		require.NotContains(t, complaints, "process", "it is too young")
		running.Exec(`rollback`)
	}
}

// Room for prepared transactions matters where the publisher sends them as such.
func TestCheckOfTwoPhase(t *testing.T) {
	left := []state.Prepared{{Name: "pgapply_orders_5_744_1A2B", XID: 744, Finish: 0x1a2b}}
	for name, test := range map[string]struct {
		change func(*facts)
		level  Level // empty for no finding
		text   string
	}{
		"off":          {func(f *facts) { f.options.TwoPhase, f.target.room.MaxPrepared = false, 0 }, "", ""},
		"enough":       {func(*facts) {}, OK, "max_prepared_transactions leaves 2 of 5"},
		"none allowed": {func(f *facts) { f.target.room.MaxPrepared = 0 }, Failure, "max_prepared_transactions is 0"},
		"too few":      {func(f *facts) { f.publisher.prepared = 3 }, Warning, "3 transactions may come that the publisher has prepared now, and max_prepared_transactions leaves 2 of 5"},
		"held already": {func(f *facts) { f.publisher.prepared, f.target.prepared = 3, left }, OK, "leaves 2 of 5"},
		"off, and cannot": {func(f *facts) {
			f.options.TwoPhase, f.publisher.slot, f.publisher.version = false, &source.Slot{TwoPhase: true}, 17_00_05
		}, OK, "leaves 2 of 5"},
		"to be turned off": {func(f *facts) { f.options.TwoPhase, f.publisher.slot = false, &source.Slot{TwoPhase: true} }, "", ""},
		"may not be turned off": {func(f *facts) {
			f.options.TwoPhase, f.publisher.slot, f.target.prepared = false, &source.Slot{TwoPhase: true}, left
		}, Failure, "cannot be turned off"},
		"decided by hand": {func(f *facts) {
			f.options.TwoPhase, f.publisher.slot, f.target.decided = false, &source.Slot{TwoPhase: true}, []string{"name"}
		}, Failure, "COMMIT PREPARED has come"},
		"left by an earlier one": {func(f *facts) { f.target.subscription, f.target.prepared = nil, left }, Failure, "pgapply_orders_5_744_1A2B (transaction 744, finished at 0/1A2B"},
	} {
		f := &facts{
			options:   apply.Options{Name: "orders", TwoPhase: true},
			target:    &targetFacts{subscription: &state.Subscription{SlotState: state.SlotCreated}, room: targetRoom{MaxPrepared: 5, InPrepared: 3}},
			publisher: &publisherFacts{version: 18_00_04},
		}
		test.change(f)
		findings := checkTwoPhase(f)
		if test.level == "" {
			require.Empty(t, findings, name)
			continue
		}
		require.Len(t, findings, 1, name)
		require.Equal(t, test.level, findings[0].Level, name)
		require.Contains(t, findings[0].Text, test.text, name)
		require.Equal(t, test.level == OK, findings[0].Remedy == "", name)
	}
}

func exampleCheckup() *Checkup {
	return &Checkup{
		Subscription: "orders", Errors: 1, Warnings: 1,
		Findings: []Finding{
			{Level: OK, Subject: "target", Text: "PostgreSQL 18.4, database warehouse, role applier"},
			{Level: Warning, Subject: "public.a_table_with_a_name_that_is_much_longer", Text: "one\ntwo", Remedy: "do this"},
			{Level: Failure, Subject: "public.t", Text: "it is broken", Remedy: "mend it"},
		},
	}
}

func TestCheckOfTheSpoolDirectory(t *testing.T) {
	there := t.TempDir()
	file := filepath.Join(there, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, test := range map[string]struct {
		directory string
		level     Level
		text      string
	}{
		"default":      {"", OK, "up to 128.0 MiB in "},
		"there":        {there + "/", OK, there},
		"not there":    {filepath.Join(there, "a", "b"), Warning, "does not exist yet: the runner creates it in " + there},
		"a file":       {file, Failure, "not a directory"},
		"below a file": {filepath.Join(file, "a"), Failure, "not a directory"},
		"read-only":    {"/proc", Failure, "--spool-dir /proc cannot be used: "},
	} {
		options := apply.DefaultOptions()
		options.SpoolDir, options.SpoolLimit = test.directory, options.MemoryLimit
		findings := checkSpool(&facts{options: options})
		require.Len(t, findings, 1, name)
		require.Equal(t, test.level, findings[0].Level, name)
		require.Contains(t, findings[0].Text, test.text, name)
	}
}

func TestCheckOfTheSpoolsRoom(t *testing.T) {
	options := apply.DefaultOptions()
	require.Empty(t, spoolRoom(&options, "/s", options.SpoolLimit, true))
	require.Empty(t, spoolRoom(&options, "/s", 0, false), "what is free is not known")
	findings := spoolRoom(&options, "/s", options.SpoolLimit-1, true)
	require.Len(t, findings, 1)
	require.Equal(t, Warning, findings[0].Level)
	require.Contains(t, findings[0].Text, "/s has 16.0 GiB free, less than --spool-limit 16.0 GiB")
	options.SpoolLimit = options.MemoryLimit - 1
	findings = spoolRoom(&options, "/s", options.SpoolLimit, true)
	require.Len(t, findings, 1)
	require.Equal(t, Warning, findings[0].Level)
	require.Contains(t, findings[0].Text, "is never applied")
	require.Contains(t, findings[0].Remedy, "raise --spool-limit")
}

func TestCheckOfPoliciesForTables(t *testing.T) {
	options := apply.DefaultOptions()
	for _, policy := range []string{"update_missing=error", "public.t:delete_missing=error", "public.a:b:insert_exists=keep_local", "public.T:delete_missing=error"} {
		require.NoError(t, options.OnConflict.Set(policy))
	}
	published := func(name string) source.Published {
		return source.Published{Table: source.Table{Schema: "public", Name: name}}
	}
	publisher := &publisherFacts{published: []source.Published{published("t"), published("a:b")}}
	findings := checkPolicies(&facts{options: options, publisher: publisher})
	require.Len(t, findings, 1)
	require.Equal(t, Warning, findings[0].Level)
	require.Equal(t, "--on-conflict public.T:delete_missing=error is for a table that is not published", findings[0].Text)
}

func TestCheckNamesTheRunnersLastError(t *testing.T) {
	target := &targetFacts{
		recorded: true, subscription: &state.Subscription{Enabled: true}, holder: &state.Holder{PID: 99},
		runner: &state.Runner{LastError: "no room", LastErrorHint: "make room"},
	}
	findings := checkState(&facts{target: target})
	require.Equal(t, []Finding{{
		Level: Warning, Subject: "state", Text: "a runner lives (" + target.holder.String() + "), and its last error is: no room", Remedy: "make room",
	}}, findings)
	target.runner.LastError = ""
	require.Equal(t, OK, checkState(&facts{target: target})[0].Level)
}

func TestCheckupAsText(t *testing.T) { golden(t, "checkup.txt", exampleCheckup().Text()) }

// The names are read by scripts.
func TestCheckupAsJSON(t *testing.T) {
	text, err := json.MarshalIndent(exampleCheckup(), "", "\t")
	require.NoError(t, err)
	golden(t, "checkup.json", string(text)+"\n")
}
