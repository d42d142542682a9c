package tablesync

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

func TestNotEmpty(t *testing.T) {
	_, target := pgtest.Shared(t)
	uri := pgtest.Database(t, target)
	pgtest.Exec(t, uri, `create table nothing (a int)`, `create table child () inherits (nothing)`, `create table "o'n""e" (a int)`,
		`create table parted (a int) partition by list (a)`, `create table leaf partition of parted default`, `create table counted (a int)`,
		`insert into child values (1)`, `insert into "o'n""e" values (1)`, `insert into parted values (1)`, `insert into counted select generate_series(1, 500)`,
		`analyze counted`, `create view v as select 1`)
	tables := []Table{{Schema: "public", Name: "gone"}}
	for _, name := range []string{"nothing", `o'n"e`, "parted", "v", "counted"} {
		tables = append(tables, Table{Schema: "public", Name: name})
	}
	for i := range 120 { // more than one statement looks into
		tables = append(tables, Table{Schema: "public", Name: fmt.Sprint("gone", i)})
	}
	tables = append(tables, Table{Schema: "public", Name: "child", Clean: Truncate})
	options := Options{Target: uri}
	session, err := options.openSession(t.Context(), 0)
	require.NoError(t, err)
	defer session.close()
	filled, err := NotEmpty(session, tables)
	require.NoError(t, err)
	require.Equal(t, []Filled{
		{Table{Schema: "public", Name: `o'n"e`}, 1},
		{Table{Schema: "public", Name: "parted"}, 1},
		{Table{Schema: "public", Name: "counted"}, 500},
		{Table{Schema: "public", Name: "child", Clean: Truncate}, 1},
	}, filled)
}
