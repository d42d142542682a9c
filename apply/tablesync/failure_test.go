package tablesync

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/apply/target"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
	"pgapply/internal/source"
)

// A table that cannot be copied is no matter of the others, and leaves nothing behind.
func TestFailuresOfOneTable(t *testing.T) {
	e := twoEnds(t)
	e.both(`create table fine (id int primary key)`, `create table twice (id int primary key, v text)`,
		`create table dropped_there (id int primary key)`, `create table rewritten (id int primary key)`, `create table emptied (id int primary key)`, `create table renewed (id int primary key)`)
	pgtest.Exec(t, e.publisher, `create table refused (id int primary key, v text)`, `create table absent (id int primary key)`, `create table wider (id int primary key, "x y" int, z int)`,
		`create table computed (id int primary key, v int)`, `create table viewed (id int primary key)`, `create table filtered (id int primary key, v text)`)
	pgtest.Exec(t, e.target, `create table refused (id int primary key, v int)`, `create table wider (id int primary key)`,
		`create table computed (id int primary key, v int generated always as (id) stored)`, `create view viewed as select 1 as id`, `create table filtered (id int primary key, v text)`,
		`insert into twice values (7000, 'mine')`)
	for _, name := range []string{"fine", "dropped_there", "rewritten", "emptied", "renewed", "absent"} {
		pgtest.Exec(t, e.publisher, `insert into `+name+` select generate_series(1, 10)`)
	}
	pgtest.Exec(t, e.publisher, `insert into twice select i, repeat('x', 200) from generate_series(1, 9000) i`,
		`insert into refused select i, case when i = 5000 then 'secret' else i::text end from generate_series(1, 9000) i`,
		`insert into filtered select i, 'secret' from generate_series(1, 9000) i`,
		`create publication p for table fine, twice, dropped_there, rewritten, emptied, renewed, refused, absent, wider, computed, viewed, filtered where (length(v) / (id - 8000) < 100000)`)
	e.snapshot()
	pgtest.Exec(t, e.publisher, `drop table dropped_there`, `alter table rewritten alter id type bigint`, `truncate emptied`,
		`drop table renewed`, `create table renewed (id int primary key)`)

	for _, limit := range []int64{0, 64 << 10} {
		t.Run(fmt.Sprint("split=", limit), func(t *testing.T) {
			e.t, e.recorder.heard, e.options.SplitLargerThan = t, nil, limit
			pgtest.Exec(t, e.target, `truncate fine, done`)
			summary, err := e.copy("absent", "twice", "refused", "dropped_there", "rewritten", "emptied", "renewed", "wider", "computed", "viewed", "filtered", "fine")
			require.NoError(t, err)
			results := make(map[string]error)
			for _, result := range summary.Tables {
				require.Equal(t, result.Err == nil, result.Copied, result.Table)
				results[result.Table.Name] = result.Err
			}
			require.NoError(t, results["fine"])
			e.same(`select * from fine order by 1`)
			require.Equal(t, "public.fine", e.query(`select * from done`))

			for name, want := range map[string]string{
				"absent":        `copy table "public.absent": target: logical replication target relation "public.absent" does not exist`,
				"wider":         `copy table "public.wider": target: logical replication target relation "public.wider" is missing replicated columns: "x y", "z"`,
				"computed":      `copy table "public.computed": target: logical replication target relation "public.computed" has incompatible generated column: "v"`,
				"viewed":        `copy table "public.viewed": target: cannot use relation "public.viewed" as logical replication target: it is not a table`,
				"renewed":       `copy table "public.renewed": publisher: it is not published, or was dropped`,
				"dropped_there": `copy table "public.dropped_there": publisher: it is not published, or was dropped`,
			} {
				require.EqualError(t, results[name], want)
			}
			for _, name := range []string{"rewritten", "emptied"} {
				rewritten, ok := errors.AsType[*source.RewrittenError](results[name])
				require.True(t, ok, name)
				require.Equal(t, name, rewritten.Table.Name)
			}
			require.ErrorContains(t, results["twice"], `constraint "twice_pkey"`)
			require.ErrorContains(t, results["refused"], `, column "v": target: invalid input syntax for type integer: "..." (SQLSTATE 22P02)`)
			require.ErrorContains(t, results["filtered"], `: publisher: division by zero (SQLSTATE 22012)`)
			for name, err := range results {
				if err == nil {
					continue
				}
				require.NotContains(t, err.Error(), "secret")
				fault, ok := errors.AsType[*TableError](err)
				require.True(t, ok)
				require.False(t, fault.Lost)
				words := e.recorder.words("public." + name)
				require.Equal(t, "failed public."+name+": "+err.Error(), words[len(words)-1])
				if name == "refused" || name == "twice" {
					require.NotEmpty(t, fault.Hint)
					require.Positive(t, fault.Line)
					require.Equal(t, limit > 0, fault.Part != "", name)
				}
			}
			if limit == 0 {
				require.ErrorContains(t, results["refused"], `copy table "public.refused", line 5000, column "v": target: `)
				require.Equal(t, "0|1", e.query(`select (select count(*) from refused), (select count(*) from twice)`))
			}
		})
	}
}

// A table that somebody drops or rewrites in the middle fails alone.
func TestTableChangedInTheMiddle(t *testing.T) {
	e := twoEnds(t)
	e.both(`create table a (id int primary key)`, `create table b (id int primary key)`, `create table c (id int primary key, v text)`, `create table d (id int primary key)`)
	pgtest.Exec(t, e.publisher, `insert into a values (1)`, `insert into b values (1)`, `insert into c select i, repeat('x', 200) from generate_series(1, 5000) i`, `insert into d values (1)`,
		`create publication p for all tables`)
	e.options.Jobs, e.options.SplitLargerThan = 1, 256<<10
	e.recorder.starting = func(table Table) error {
		switch table.Name {
		case "a":
			pgtest.Exec(t, e.target, `drop table a`)
		case "b":
			pgtest.Exec(t, e.publisher, `drop table b`)
		case "c": // its rows stay visible, at other places
			pgtest.Exec(t, e.publisher, `vacuum full c`)
		}
		return nil
	}
	summary, err := e.copy("a", "b", "c", "d")
	require.NoError(t, err)
	require.ErrorContains(t, summary.Tables[0].Err, `copy table "public.a": target: `)
	require.ErrorContains(t, summary.Tables[0].Err, "SQLSTATE 42P01")
	require.EqualError(t, summary.Tables[1].Err, `copy table "public.b": publisher: table "public.b" was rewritten, truncated or dropped on the publisher after the snapshot`)
	_, rewritten := errors.AsType[*source.RewrittenError](summary.Tables[2].Err)
	require.True(t, rewritten)
	require.Equal(t, "0", e.query(`select count(*) from c`))
	require.True(t, summary.Tables[3].Copied)
}

func TestSnapshotLost(t *testing.T) {
	e := twoEnds(t)
	e.both(`create table a (id int primary key)`, `create table b (id int primary key)`)
	pgtest.Exec(t, e.publisher, `create publication p for all tables`)
	e.options.Jobs = 1
	e.snapshot()
	e.recorder.copied = func(Table) error {
		err := e.holder.Close()
		// Its process takes the snapshot along, a moment later.
		pgtest.WaitFor(t, e.publisher, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'walsender'`, "0")
		return err
	}
	summary, err := e.copy("a", "b")
	require.ErrorIs(t, err, ErrSnapshotLost)
	require.True(t, summary.Tables[0].Copied)
	require.False(t, summary.Tables[1].Copied)
	require.NoError(t, summary.Tables[1].Err)
	require.Equal(t, []string{"starting public.b in 1"}, e.recorder.words("public.b"))
	_, err = e.copy("a")
	require.ErrorIs(t, err, ErrSnapshotLost)
}

// What the Recorder refuses ends everything; nothing of the table commits.
func TestRecorderRefuses(t *testing.T) {
	e := twoEnds(t)
	e.both(`create table a (id int primary key)`)
	pgtest.Exec(t, e.publisher, `insert into a values (1)`, `create publication p for all tables`)
	refusal := errors.New("no")
	e.recorder.copied = func(Table) error { return refusal }
	summary, err := e.copy("a")
	require.ErrorIs(t, err, refusal)
	_, ok := errors.AsType[*RecorderError](err)
	require.True(t, ok)
	require.False(t, summary.Tables[0].Copied)
	require.Equal(t, "0", e.query(`select count(*) from a`))
	e.recorder.copied, e.recorder.starting = nil, e.recorder.copied
	_, err = e.copy("a")
	require.ErrorIs(t, err, refusal)
}

func TestLaterRunner(t *testing.T) {
	e := twoEnds(t)
	e.both(`create table a (id int primary key)`)
	pgtest.Exec(t, e.publisher, `create publication p for all tables`)
	pgtest.Exec(t, e.target, `create schema pgapply`, `create table pgapply.subscription (name text, epoch int8)`, `insert into pgapply.subscription values ('s', 8)`)
	e.options.Subscription, e.options.Fence = "s", target.Fence{Class: 1, Object: 2, Epoch: 7}
	_, err := e.copy("a")
	later, ok := errors.AsType[*target.LaterRunnerError](err)
	require.True(t, ok)
	require.Equal(t, "8", later.Later)
	e.options.Fence.Epoch = 8
	e.recorder.copied = func(Table) error {
		require.Equal(t, "1", e.query(`select count(*) from pg_locks where locktype = 'advisory' and classid = 1 and objid = 2 and mode = 'ShareLock'`))
		return nil
	}
	e.options.Jobs = 1
	_, err = e.copy("a")
	require.NoError(t, err)
}

// When ctx ends, what waits for either server ends with it, and nothing is half there.
func TestCancel(t *testing.T) {
	for _, held := range []string{"publisher", "target"} {
		t.Run(held, func(t *testing.T) {
			e := twoEnds(t)
			e.both(`create table a (id int primary key)`)
			pgtest.Exec(t, e.publisher, `insert into a select generate_series(1, 10)`, `create publication p for all tables`)
			e.snapshot()
			server := e.publisher
			if held == "target" {
				server = e.target
			}
			blocker := pgtest.Open(t, server)
			ctx, cancel := context.WithCancelCause(t.Context())
			e.recorder.starting = func(Table) error {
				blocker.Exec(`begin`, `lock table a in access exclusive mode`)
				return nil
			}
			done := make(chan error)
			var summary Summary
			go func() {
				var err error
				summary, err = Copy(ctx, e.options, []Table{{Schema: "public", Name: "a"}}, &Progress{})
				done <- err
			}()
			pgtest.WaitFor(t, server, `select count(*) from pg_locks where not granted and relation = 'a'::regclass`, "1")
			why := errors.New("enough")
			cancel(why)
			require.ErrorIs(t, <-done, why)
			require.False(t, summary.Tables[0].Copied)
			require.NoError(t, summary.Tables[0].Err)
			require.Equal(t, []string{"starting public.a in 1"}, e.recorder.words("public.a"))
			blocker.Exec(`rollback`)
			pgtest.WaitFor(t, server, `select count(*) from pg_stat_activity where application_name = 'copy' and datname = current_database()`, "0")
			require.Equal(t, "0|0", e.query(`select (select count(*) from a), (select count(*) from done)`))
		})
	}
}

// A connection that is lost costs its table, if another can be had.
func TestLostConnection(t *testing.T) {
	for _, lost := range []string{"publisher", "target"} {
		t.Run(lost, func(t *testing.T) {
			e := twoEnds(t)
			e.both(`create table a (id int primary key)`, `create table b (id int primary key)`)
			pgtest.Exec(t, e.publisher, `insert into a select generate_series(1, 10)`, `insert into b values (1)`, `create publication p for all tables`)
			pgtest.Exec(t, e.target, `select pg_replication_origin_create('lost_' || current_database())`)
			name := "lost_" + e.query(`select current_database()`)
			t.Cleanup(func() {
				pgtest.WaitFor(t, e.target, `select count(*) from pg_stat_activity where application_name = 'copy' and datname = current_database()`, "0")
				pgtest.Exec(t, e.target, `select pg_replication_origin_drop('`+name+`')`)
			})
			e.options.Jobs = 1
			e.options.Origin = func(int) string { return name }
			e.snapshot()
			server := e.publisher
			if lost == "target" {
				server = e.target
			}
			e.recorder.starting = func(table Table) error {
				if table.Name == "a" {
					pgtest.Query(t, server, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'copy' and datname = current_database()`)
				}
				return nil
			}
			summary, err := e.copy("a", "b")
			require.NoError(t, err)
			fault, ok := errors.AsType[*TableError](summary.Tables[0].Err)
			require.True(t, ok)
			require.True(t, fault.Lost)
			require.EqualValues(t, lost, fault.Side)
			require.True(t, summary.Tables[1].Copied)
			require.Equal(t, "0|1", e.query(`select (select count(*) from a), (select count(*) from b)`))
		})
	}
}

// A server that goes away ends the copy; what was copied stays.
func TestServerGone(t *testing.T) {
	for _, gone := range []string{"publisher", "target"} {
		t.Run(gone, func(t *testing.T) {
			publisher, target := pgtest.Pair(t)
			e := endsOf(t, pgtest.Database(t, publisher), pgtest.Database(t, target))
			e.both(`create table a (id int primary key)`, `create table b (id int primary key)`)
			pgtest.Exec(t, e.publisher, `insert into a values (1)`, `create publication p for all tables`)
			e.options.Jobs = 1
			e.snapshot()
			server := publisher
			if gone == "target" {
				server = target
			}
			e.recorder.starting = func(table Table) error {
				if table.Name == "b" {
					return server.Stop(cluster.Immediate)
				}
				return nil
			}
			summary, err := e.copy("a", "b")
			require.Error(t, err)
			require.True(t, summary.Tables[0].Copied)
			require.False(t, summary.Tables[1].Copied)
			require.NoError(t, summary.Tables[1].Err)
			require.Empty(t, e.recorder.words("public.b")[1:])
			if gone == "target" {
				require.NoError(t, server.Restart(t.Context()))
			} else {
				require.Equal(t, source.Transient, source.ClassOf(err), err)
			}
			require.Equal(t, "1|0", e.query(`select (select count(*) from a), (select count(*) from b)`))
		})
	}
}

// A server that has no room for all jobs gets fewer.
func TestNoRoomForAllJobs(t *testing.T) {
	publisher, target := pgtest.Shared(t)
	pgtest.Exec(t, target.URI("postgres"), `create role narrow login connection limit 2 superuser`)
	e := endsOf(t, pgtest.Database(t, publisher), pgtest.Database(t, target))
	t.Cleanup(func() {
		pgtest.Exec(t, e.target, `drop owned by narrow`, `revoke set on parameter session_replication_role from narrow`, `drop role narrow`)
	})
	e.both(`create table a (id int primary key)`, `create table b (id int primary key)`, `create table c (id int primary key)`)
	pgtest.Exec(t, e.target, `alter role narrow nosuperuser`, `grant set on parameter session_replication_role to narrow`, `grant all on all tables in schema public to narrow`)
	pgtest.Exec(t, e.publisher, `insert into a values (1)`, `create publication p for all tables`)
	e.options.Jobs, e.options.Target = 3, strings.Replace(e.target, "postgres@", "narrow@", 1)
	summary, err := e.copy("a", "b", "c")
	require.NoError(t, err)
	for _, result := range summary.Tables {
		require.NoError(t, result.Err)
		require.True(t, result.Copied)
	}
}

func TestHints(t *testing.T) {
	full := failed(Table{Schema: "s", Name: "t"}, nil, Target, &pgconn.PgError{Severity: "ERROR", Code: "53100", Message: "could not extend file", Where: "COPY t, line 7"})
	require.EqualError(t, full, `copy table "s.t", line 7: target: could not extend file (SQLSTATE 53100)`)
	require.Equal(t, "make room on the target's disk", full.Hint)
	require.False(t, full.Lost)
	range1 := failed(Table{Schema: "s", Name: "t"}, &part{table: source.Table{Schema: "s", Name: "leaf"}, pages: true, from: 8, to: 16}, Publisher,
		&pgconn.PgError{Severity: "FATAL", Code: "57P01", Message: "terminating connection"})
	require.EqualError(t, range1, `copy table "s.t", pages 8 to 15 of s.leaf: publisher: terminating connection (SQLSTATE 57P01)`)
	require.True(t, range1.Lost)
}
