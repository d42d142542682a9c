package operate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// What init prints is what it executes; it changes nothing when it prints, does all of it
// once, and then nothing.
func TestInit(t *testing.T) {
	publisher, _ := pgtest.Shared(t)
	server := pgtest.Start(t)
	b := newBed(t, publisher, server)
	receiver := b.slot + "_receiver"
	pgtest.Exec(t, b.source, `create schema s; create table s.t (a int primary key); create table s.later (a int primary key)`,
		`create publication p for table s.t, s.later`, `create role `+receiver+` login replication`)
	t.Cleanup(func() { pgtest.Exec(t, b.source, `drop owned by `+receiver, `drop role `+receiver) })
	pgtest.Exec(t, b.target, `create schema s; create table s.t (a int primary key); create table s.other (a int)`)
	options := InitOptions{Endpoints: b.ends, Role: "The role", Publications: []string{"p"}, Print: true}
	options.Source = as(t, b.source, receiver)
	initialize := func() string {
		done, err := Init(t.Context(), options)
		require.NoError(t, err)
		return done.Text()
	}
	_, err := Init(t.Context(), options)
	requireClass(t, err, apply.Refused, `no role "The role"`, `CREATE ROLE "The role" LOGIN`)

	pgtest.Exec(t, b.target, `create role "The role" login`)
	printed := initialize()
	for _, part := range []string{
		`CREATE SCHEMA pgapply AUTHORIZATION "The role";`, `GRANT EXECUTE ON FUNCTION pg_catalog.pg_replication_origin_advance(text,pg_lsn), pg_catalog.pg_replication_origin_create(text), `,
		`pg_replication_origin_xact_setup(pg_lsn,timestamp with time zone) TO "The role";`,
		`GRANT USAGE ON SCHEMA "s" TO "The role";`, `GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON TABLE "s"."t" TO "The role";`,
		"-- table s.later is not on the target yet", "-- on the publisher, as an administrator\nGRANT USAGE ON SCHEMA \"s\" TO " + receiver + ";\n",
		`GRANT SELECT ON TABLE "s"."t" TO ` + receiver + `;`,
	} {
		require.Contains(t, printed, part)
	}
	require.NotContains(t, printed, "other")
	require.Equal(t, printed, initialize(), "it changes nothing")
	require.Equal(t, "0", pgtest.Query(t, b.target, `select count(*) from pg_namespace where nspname = 'pgapply'`))
	sql, _, _ := strings.Cut(printed, "-- table")
	pgtest.Exec(t, b.target, sql)
	require.Contains(t, initialize(), "-- on the target, role \"The role\" in database ")
	require.Contains(t, initialize(), ": nothing to do\n")

	// The same by executing it, for another role that shares the state.
	pgtest.Exec(t, b.target, `drop schema pgapply cascade; alter schema public owner to postgres; create role second login; create role third login in role second`)
	options.Print, options.Publications, options.Source, options.Schemas, options.Role = false, nil, "", []string{"s"}, "second"
	require.Contains(t, initialize(), ": done\n")
	require.Equal(t, "second", pgtest.Query(t, b.target, `select distinct tableowner from pg_tables where schemaname = 'pgapply'`))
	require.Equal(t, "t", pgtest.Query(t, b.target, `select has_table_privilege('second', 's.other', 'TRUNCATE')`))
	require.Equal(t, `-- on the target, role "second" in database "`+b.where.Database+"\": nothing to do\n", initialize())
	options.Role = "third" // a role must trust whoever owns what it writes to
	_, err = Init(t.Context(), options)
	requireClass(t, err, apply.Refused, `belongs to role "second", which has no right to act as role "third"`)
	options.Role = "postgres"
	require.Equal(t, "-- role \"postgres\" is a superuser: nothing to do\n", initialize())

	// A schema that an administrator has, from a runner that is a superuser.
	pgtest.Exec(t, b.target, `drop schema pgapply cascade`)
	b.store("orders")
	options.Role = "third"
	require.Contains(t, initialize(), `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgapply TO "third";`)
	b.ends.Target = as(t, b.target, "third")
	b.store("orders")
	require.Contains(t, initialize(), "nothing to do")

	// Who may not grant learns what is missing, and nothing is granted.
	options.Target, options.Role = as(t, b.target, "third"), "The role"
	_, err = Init(t.Context(), options)
	requireClass(t, err, apply.Refused, "nothing was granted", "--print")
}
