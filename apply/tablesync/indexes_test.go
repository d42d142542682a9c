package tablesync

import (
	"context"
	"errors"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"pgapply/internal/pgtest"
)

// shelf keeps definitions in memory, and their names in table shelved of the target.
type shelf struct {
	mu      sync.Mutex
	indexes []Index
	refuse  error
}

func (s *shelf) Dropping(_ context.Context, _ Table, indexes []Index, exec Exec) error {
	if s.refuse != nil {
		return s.refuse
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.indexes = append(s.indexes, indexes...)
	for _, index := range indexes {
		if err := exec(`insert into public.shelved values ($1)`, index.Name); err != nil {
			return err
		}
	}
	return nil
}

func (s *shelf) built(_ context.Context, index Index, exec Exec) error {
	return exec(`delete from public.shelved where name = $1`, index.Name)
}

func (s *shelf) names() string {
	var names []string
	for _, index := range s.indexes {
		names = append(names, index.Name)
	}
	sort.Strings(names)
	return strings.Join(names, ", ")
}

const everyIndex = `
	select c.relname, pg_get_indexdef(i.indexrelid), t.spcname, obj_description(i.indexrelid, 'pg_class'), k.conname, pg_get_constraintdef(k.oid), k.condeferred,
		obj_description(k.oid, 'pg_constraint'), i.indisvalid, i.indimmediate
	from pg_index i join pg_class c on c.oid = i.indexrelid left join pg_tablespace t on t.oid = c.reltablespace left join pg_constraint k on k.conindid = i.indexrelid and k.contype in ('p', 'u', 'x')
	where c.relnamespace = 'public'::regnamespace order by 1`

func TestIndexesAreDeferred(t *testing.T) {
	e := twoEnds(t)
	e.both(`create table a (id int primary key, v text, n int, "o'n""e" int, r int4range)`, `create table full_table (id int primary key, v int)`,
		`create table referring (id int primary key, v int)`, `create table parted (id int primary key, v int) partition by list (id)`, `create table leaf partition of parted default`)
	pgtest.Exec(t, e.publisher, `insert into a select i, 'v' || i, i, i, int4range(i, i + 1) from generate_series(1, 3000) i`, `insert into full_table values (1, 1)`, `create publication p for all tables with (publish_via_partition_root)`)
	pgtest.Exec(t, e.target, `create table shelved (name text)`,
		`create index a_v on a (lower(v) desc nulls last, n) include (id) with (fillfactor = 70) where n > 10`, `comment on index a_v is 'it''s "one"'`,
		`create unique index "a_o'n""e" on a ("o'n""e")`,
		`alter table a add constraint a_u unique nulls not distinct (n, v) include (id) with (fillfactor = 80) deferrable initially deferred`, `comment on constraint a_u on a is 'deferred'`,
		`alter table a add constraint a_x exclude using gist (r with &&)`,
		`alter table a add constraint needed unique (n)`, `alter table referring add foreign key (v) references a (n)`,
		`create index a_clustered on a (n)`, `alter table a cluster on a_clustered`,
		`create index a_statistics on a ((n + 1))`, `alter index a_statistics alter column 1 set statistics 500`,
		`create index full_v on full_table (v)`, `insert into full_table values (2, 2)`, `create index parted_v on parted (v)`)
	before := e.query(everyIndex)
	shelf := &shelf{}
	e.options.Indexes = shelf
	core, said := observer.New(zap.InfoLevel)
	e.options.Log = zap.New(core)
	e.recorder.copied = func(table Table) error {
		if table.Name == "a" {
			require.Equal(t, "a_clustered, a_pkey, a_statistics, needed", e.query(`select string_agg(relname, ', ' order by relname) from pg_index join pg_class on oid = indexrelid where indrelid = 'a'::regclass`))
		}
		return nil
	}
	summary, err := e.copy("a", "full_table", "parted")
	require.NoError(t, err)
	for _, result := range summary.Tables {
		require.NoError(t, result.Err)
	}
	require.Equal(t, `a_o'n"e, a_u, a_v, a_x`, shelf.names())
	stay := said.FilterMessageSnippet("those of a partitioned table").All()
	require.Len(t, stay, 1)
	require.Equal(t, map[string]any{"schema": "public", "table": "parted", "indexes": "1"}, stay[0].ContextMap())
	require.Equal(t, "4", e.query(`select count(*) from shelved`))

	results, err := BuildIndexes(t.Context(), e.options, shelf.indexes, shelf.built)
	require.NoError(t, err)
	for _, result := range results {
		require.NoError(t, result.Err)
		require.True(t, result.Built)
	}
	require.Equal(t, before, e.query(everyIndex))
	require.Equal(t, "0", e.query(`select count(*) from shelved`))

	// Once more: what is there stays, what is gone does not matter.
	gone := shelf.indexes[0]
	gone.Table.Name = "gone"
	results, err = BuildIndexes(t.Context(), e.options, append(shelf.indexes, gone), shelf.built)
	require.NoError(t, err)
	require.Len(t, results, 5)
	require.Equal(t, before, e.query(everyIndex))
}

// An index that the rows contradict is no matter of the others, and stays recorded.
func TestIndexThatCannotBeMade(t *testing.T) {
	e := twoEnds(t)
	e.both(`create table a (id int primary key, v int)`)
	pgtest.Exec(t, e.publisher, `insert into a select i, 7 from generate_series(1, 100) i`, `create publication p for all tables`)
	pgtest.Exec(t, e.target, `create table shelved (name text)`, `create unique index a_v on a (v)`, `create index a_w on a (v)`, `insert into a values (-1, 1)`)
	shelf := &shelf{}
	e.options.Indexes, e.options.SplitLargerThan = shelf, 1
	e.copyAgain("a")
	require.Equal(t, "a_v, a_w", shelf.names())
	require.Equal(t, "1|100", e.query(`select min(id), count(*) from a`))
	results, err := BuildIndexes(t.Context(), e.options, shelf.indexes, shelf.built)
	require.NoError(t, err)
	require.True(t, results[1].Built)
	fault, ok := errors.AsType[*IndexError](results[0].Err)
	require.True(t, ok)
	require.ErrorContains(t, fault, `make index "a_v" of table "public.a" again: `)
	require.NotEmpty(t, fault.Hint)
	require.Equal(t, "a_v", e.query(`select * from shelved`))

	refusal := errors.New("no")
	_, err = BuildIndexes(t.Context(), e.options, shelf.indexes[1:], func(context.Context, Index, Exec) error { return refusal })
	require.ErrorIs(t, err, refusal)
}

// What is not recorded is not dropped.
func TestIndexesThatAreNotRecordedStay(t *testing.T) {
	e := twoEnds(t)
	e.both(`create table a (id int primary key, v int)`)
	pgtest.Exec(t, e.publisher, `create publication p for all tables`)
	pgtest.Exec(t, e.target, `create index a_v on a (v)`)
	refusal := errors.New("no")
	e.options.Indexes = &shelf{refuse: refusal}
	_, err := e.copy("a")
	require.ErrorIs(t, err, refusal)
	require.Equal(t, "a_v", e.query(`select indexrelid::regclass from pg_index where indrelid = 'a'::regclass and not indisprimary`))
}
