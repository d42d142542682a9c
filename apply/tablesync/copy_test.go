package tablesync

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

func TestCopy(t *testing.T) {
	for _, binary := range []bool{false, true} {
		t.Run(fmt.Sprint("binary=", binary), func(t *testing.T) {
			e := twoEnds(t)
			e.options.Binary, e.options.Analyze = binary, true
			e.both(`create table a (id int primary key, v text, w numeric, at timestamptz, tags text[])`, `create table b (id int primary key)`,
				`create schema "s ""1"`, `create table "s ""1"."T't.é" ("c d" int, "e""f" text)`)
			pgtest.Exec(t, e.publisher,
				`insert into a select i, repeat(chr(32 + i % 90), i % 50), i / 3.0, now(), array[i::text, null, E'\\x\t'] from generate_series(1, 20000) i`,
				`insert into a values (-1, null, 'NaN', 'infinity', null), (-2, E'a\tb\\N\n\r\\.', 0, '-infinity', '{}')`,
				`insert into "s ""1"."T't.é" values (1, 'x'), (2, '\.')`,
				`create publication p for all tables`)
			summary, err := e.copy("a", "b", `s "1.T't.é`)
			require.NoError(t, err)
			for i, rows := range []int64{20002, 0, 2} {
				require.NoError(t, summary.Tables[i].Err)
				require.True(t, summary.Tables[i].Copied)
				require.Equal(t, binary, summary.Tables[i].Binary)
				require.Equal(t, rows, summary.Tables[i].Rows)
			}
			e.same(`select * from a order by id`)
			e.same(`select * from "s ""1"."T't.é" order by 1`)
			require.Equal(t, "3", e.query(`select count(*) from done`))
			require.Equal(t, "20002", e.query(`select reltuples from pg_class where relname = 'a'`))
			require.Equal(t, []string{"starting public.a in 1", "copied public.a 20002 rows"}, e.recorder.words("public.a"))
		})
	}
}

// What is published decides what is copied, as the native subscription copies it.
func TestPublishedPart(t *testing.T) {
	e := twoEnds(t)
	e.both(`create table filtered (id int primary key, v text)`, `create table unfiltered (id int primary key)`, `create table narrow (a int primary key, b int, c int)`,
		`create table clash (a int primary key, b int)`,
		`create table parent (id int primary key)`, `create table child () inherits (parent)`, `create table none ()`, `create table empty ()`)
	pgtest.Exec(t, e.publisher, `create table computed (id int primary key, twice int generated always as (id * 2) stored)`,
		`create table root (id int primary key, v text) partition by range (id)`, `create table low partition of root for values from (0) to (100)`,
		`create table high (v text, id int not null)`, `alter table root attach partition high for values from (100) to (1000)`,
		`create table wider ()`, `insert into wider default values`, `insert into wider default values`, `insert into wider default values`,
		`create publication p for table filtered where (id < 10), unfiltered where (id < 10), narrow (c, a), clash (a), computed, root where (id % 2 = 0), only parent, none, empty, wider
			with (publish_via_partition_root, publish = 'delete', publish_generated_columns = stored)`,
		`create publication q for table filtered where (id > 95), unfiltered, clash`,
		`insert into filtered select i, 'x' from generate_series(1, 100) i`, `insert into unfiltered select generate_series(1, 100)`,
		`insert into narrow values (1, 2, 3)`, `insert into computed values (4)`, `insert into root select i * 10, 'v' from generate_series(0, 99) i`,
		`insert into parent values (1)`, `insert into child values (2)`, `insert into none default values`, `insert into none default values`)
	pgtest.Exec(t, e.target, `create table computed (id int primary key, twice int)`, `create table root (v text, id bigint primary key)`,
		`create table wider (id int generated always as identity, v text default 'default', twice int generated always as (7) stored)`)
	e.options.Publications = []string{"p", "q"}
	for _, limit := range []int64{0, 1} {
		e.options.SplitLargerThan = limit
		e.copyAgain("filtered", "unfiltered", "narrow", "computed", "root", "parent", "child", "none", "empty", "wider")
		require.Equal(t, "1|9|96|100", e.query(`select min(id), count(*) filter (where id < 10), min(id) filter (where id > 9), max(id) from filtered`))
		require.Equal(t, "100", e.query(`select count(*) from unfiltered`))
		require.Equal(t, "1||3", e.query(`select * from narrow`))
		require.Equal(t, "4|8", e.query(`select * from computed`))
		require.Equal(t, "100|0|990|v", e.query(`select count(*), min(id), max(id), max(v) from root`))
		require.Equal(t, "1", e.query(`select id from only parent`))
		require.Equal(t, "0", e.query(`select count(*) from child`))
		require.Equal(t, "2|0", e.query(`select count(*), (select count(*) from empty) from none`))
		require.Equal(t, "3|default|7", e.query(`select count(distinct id), max(v), max(twice) from wider`))
	}
	summary, err := e.copy("clash", "child")
	require.NoError(t, err)
	require.ErrorContains(t, summary.Tables[0].Err, `cannot use different column lists for table "public.clash" in different publications`)
	require.ErrorContains(t, summary.Tables[1].Err, `copy table "public.child": publisher: it is not published`)
}

// A table that is split is copied as the snapshot shows it, whatever is written meanwhile.
func TestSplitWhileWritersRun(t *testing.T) {
	e := twoEnds(t)
	e.both(`create table big (id int primary key, n int, v text)`, `create table fan (id int primary key, v text) partition by hash (id)`,
		`create table fan0 partition of fan for values with (modulus 2, remainder 0)`, `create table fan1 partition of fan for values with (modulus 2, remainder 1)`)
	pgtest.Exec(t, e.publisher, `insert into big select i, 0, repeat('x', 100) from generate_series(1, 20000) i`, `insert into fan select i, repeat('x', 100) from generate_series(1, 20000) i`,
		`create publication p for all tables with (publish_via_partition_root)`, `analyze`)
	e.options.Jobs, e.options.SplitLargerThan, e.options.Binary = 3, 256<<10, true
	e.snapshot()
	pgtest.Exec(t, e.publisher, `update big set n = 1 where id % 3 = 0`, `delete from big where id % 7 = 0`, `insert into big select -i, 2, 'new' from generate_series(1, 5000) i`)

	var writers sync.WaitGroup
	stop := make(chan struct{})
	writers.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				pgtest.Exec(t, e.publisher, fmt.Sprintf(`update big set n = n + 1 where id %% 50 = %d`, i%50), `vacuum big`)
			}
		}
	})
	progress := &Progress{}
	summary, err := Copy(t.Context(), e.options, []Table{{Schema: "public", Name: "big"}, {Schema: "public", Name: "fan"}}, progress)
	close(stop)
	writers.Wait()
	require.NoError(t, err)
	for i, result := range summary.Tables {
		require.NoError(t, result.Err)
		require.Greater(t, result.Parts, 5)
		require.Equal(t, int64(20000), result.Rows)
		require.True(t, result.Binary)
		require.Positive(t, result.Duration)
		state := progress.Tables()[i]
		require.Equal(t, result.Parts, state.PartsDone)
		require.Equal(t, int64(20000), state.Rows)
		require.Equal(t, result.Bytes, state.Bytes)
		require.False(t, state.Finished.IsZero())
	}
	require.Positive(t, progress.Tables()[0].EstimatedRows)
	require.Equal(t, "20000|0|1|20000|100", e.query(`select count(distinct id), max(n), min(id), max(id), min(length(v)) from big`))
	require.Equal(t, "20000", e.query(`select count(distinct id) from fan`))
	require.Equal(t, []string{fmt.Sprintf("starting public.big in %d", summary.Tables[0].Parts), "copied public.big 20000 rows"}, e.recorder.words("public.big"))
}

// Names and values pass through in the encoding of the target's database.
func TestEncodings(t *testing.T) {
	publisher, target := pgtest.Shared(t)
	pgtest.Exec(t, target.URI("postgres"), `create database latin encoding latin1 template template0 locale 'C'`)
	t.Cleanup(func() { pgtest.Exec(t, target.URI("postgres"), `drop database latin with (force)`) })
	e := endsOf(t, pgtest.Database(t, publisher), target.URI("latin"))
	e.both(`set client_encoding = utf8`, `create table "é" ("ü" text primary key)`, `create table euro (v text)`)
	pgtest.Exec(t, e.publisher, `insert into "é" values ('é'), ('ß')`, `insert into euro values ('fine'), ('secret €')`, `create publication p for all tables`)
	summary, err := e.copy("\xe9", "euro")
	require.NoError(t, err)
	require.NoError(t, summary.Tables[0].Err)
	require.Equal(t, "2|2|2", e.query("select count(*), sum(octet_length(\"\xfc\")), sum(length(\"\xfc\")) from \"\xe9\""))
	fault := summary.Tables[1].Err
	require.ErrorContains(t, fault, `copy table "public.euro": publisher: `)
	require.ErrorContains(t, fault, "SQLSTATE 22P05")
	require.NotContains(t, fault.Error(), "secret")
	require.Equal(t, "0", e.query(`select count(*) from euro`))
}

// Publishers of every major are copied, and in one part where ranges of pages would each
// read the whole table.
func TestMajors(t *testing.T) {
	_, target := pgtest.Shared(t)
	for _, major := range []int{10, 13, 15, 17} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			publisher := pgtest.Start(t, pgtest.OnMajor(major))
			e := endsOf(t, pgtest.Database(t, publisher), pgtest.Database(t, target))
			e.both(`create table a (id int primary key, v text, j jsonb)`)
			pgtest.Exec(t, e.publisher, `insert into a select i, repeat('x', 100), '{"a": 1}' from generate_series(1, 5000) i`)
			tables, root, generated := "a", "", ""
			if major >= 13 {
				root = " with (publish_via_partition_root)"
				tables += ", root"
				e.both(`create table root (id int) partition by list (id)`, `create table leaf partition of root default`)
				pgtest.Exec(t, e.publisher, `insert into root select generate_series(1, 10)`)
			}
			if major >= 12 {
				generated = ", computed"
				e.both(`create table computed (id int primary key, twice int generated always as (id * 2) stored)`)
				pgtest.Exec(t, e.publisher, `insert into computed values (4)`)
			}
			pgtest.Exec(t, e.publisher, `create publication p for table `+tables+generated+root, `create publication q for table a`)
			e.options.Publications = append(e.options.Publications, "q")
			e.options.Binary, e.options.SplitLargerThan = true, 64<<10
			summary, err := e.copy("a", "root", "computed")
			require.NoError(t, err)
			require.NoError(t, summary.Tables[0].Err)
			require.Equal(t, major > 13, summary.Tables[0].Parts > 1)
			e.same(`select * from a order by id`)
			if major >= 13 {
				require.NoError(t, summary.Tables[1].Err)
				e.same(`select * from root order by id`)
			}
			if major >= 12 {
				require.NoError(t, summary.Tables[2].Err)
				e.same(`select * from computed`)
			}
		})
	}
}

// What the target has is removed first where that is wanted, also under a foreign key.
func TestClean(t *testing.T) {
	for _, limit := range []int64{0, 64 << 10} {
		t.Run(fmt.Sprint("split=", limit), func(t *testing.T) {
			e := twoEnds(t)
			e.both(`create table a (id int primary key, v text)`, `create table b (id int primary key, a int references a, v text)`, `create table parted (id int primary key) partition by list (id)`,
				`create table leaf partition of parted default`)
			pgtest.Exec(t, e.publisher, `insert into a select i, repeat('x', 100) from generate_series(1, 3000) i`, `insert into b select i, i, repeat('x', 100) from generate_series(1, 3000) i`,
				`insert into parted select generate_series(1, 3000)`, `create publication p for all tables with (publish_via_partition_root)`)
			pgtest.Exec(t, e.target, `insert into a values (1, 'old'), (-1, 'old')`, `insert into b values (1, 1, 'old'), (-1, -1, 'old')`, `insert into parted values (1), (-1)`)
			e.options.SplitLargerThan = limit
			e.copyAgain("a", "b", "parted")
			for _, name := range []string{"a", "b", "parted"} {
				e.same(`select * from ` + name + ` order by id`)
			}
		})
	}
}

// Rows, and what is recorded with them, carry the job's origin.
func TestOrigin(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	e := endsOf(t, pgtest.Database(t, publisher), pgtest.Database(t, target))
	e.both(`create table a (id int primary key)`, `create table b (id int primary key)`)
	pgtest.Exec(t, e.publisher, `insert into a values (1)`, `insert into b values (1)`, `create publication p for all tables`)
	pgtest.Exec(t, e.target, `select pg_replication_origin_create('copy_' || i) from generate_series(0, 1) i`)
	e.options.Origin = func(job int) string { return fmt.Sprint("copy_", job) }
	before := e.query(`select now()`)
	summary, err := e.copy("a", "b")
	require.NoError(t, err)
	require.True(t, summary.Tables[0].Copied && summary.Tables[1].Copied)
	require.Equal(t, "4", e.query(`select count(*) from (select xmin from a union all select xmin from b union all select xmin from done) r,
		pg_xact_commit_timestamp_origin(r.xmin) o join pg_replication_origin n on n.roident = o.roident where roname like 'copy\__' and timestamp > '`+before+`'`))
}
