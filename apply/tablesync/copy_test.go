package tablesync

import (
	"fmt"
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
