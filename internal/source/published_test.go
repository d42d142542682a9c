package source

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// describe writes a published table in one line; * marks the key.
func describe(p *Published) string {
	changes := ""
	for letter, published := range map[string]bool{"i": p.Inserts, "u": p.Updates, "d": p.Deletes, "t": p.Truncates} {
		if published {
			changes += letter
		}
	}
	columns := make([]string, len(p.Columns))
	for i, column := range p.Columns {
		columns[i] = column.Name
		if column.Key {
			columns[i] += "*"
		}
	}
	return fmt.Sprintf("%s.%s %c %d changes %d lists (%s) %t", p.Schema, p.Name, p.Identity, len(changes), p.ColumnLists, strings.Join(columns, ", "), p.HasIdentity())
}

func TestPublishedTables(t *testing.T) {
	forEachMajor(t, []int{10, 11, 12, 14, 15, 16, 18}, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		pgtest.Exec(t, uri, `create schema "s 1"`,
			`create table "s 1"."T't" (b int, a int, gone int, "c d" text, primary key (a, b))`, `alter table "s 1"."T't" drop column gone`,
			`create table bare (a int, b int)`,
			`create table nothing (a int primary key)`, `alter table nothing replica identity nothing`,
			`create table whole (a int primary key, b int)`, `alter table whole replica identity full`,
			`create table late (a int primary key deferrable)`,
			`create table indexed (a int primary key, b int not null unique)`, `alter table indexed replica identity using index indexed_b_key`,
			`create publication everything for all tables`,
			`create publication inserts for table bare with (publish = 'insert')`)
		conn := connectTo(t, uri)
		list := func(publications ...string) []string {
			published, err := conn.Published(t.Context(), publications)
			require.NoError(t, err)
			var lines []string
			for i := range published {
				lines = append(lines, describe(&published[i]))
			}
			return lines
		}
		all := 4
		if server.Major() == 10 {
			all = 3
		}
		require.Equal(t, []string{
			fmt.Sprintf("public.bare d %d changes 1 lists (a, b) false", all),
			fmt.Sprintf("public.indexed i %d changes 1 lists (a, b*) true", all),
			fmt.Sprintf("public.late d %d changes 1 lists (a) false", all),
			fmt.Sprintf("public.nothing n %d changes 1 lists (a) false", all),
			fmt.Sprintf("public.whole f %d changes 1 lists (a*, b*) true", all),
			fmt.Sprintf("s 1.T't d %d changes 1 lists (b*, a*, c d) true", all),
		}, list("everything", `no'such\`))
		require.Equal(t, []string{"public.bare d 1 changes 1 lists (a, b) false"}, list("inserts"))
		require.Empty(t, list())

		if server.Major() >= 11 {
			pgtest.Exec(t, uri, `create table covering (a int, b int, primary key (a) include (b))`, `create table empty ()`)
			require.Contains(t, list("everything"), "public.covering d 4 changes 1 lists (a*, b) true")
			require.Contains(t, list("everything"), "public.empty d 4 changes 1 lists () false")
		}
		if server.Major() >= 12 {
			pgtest.Exec(t, uri, `create table computed (a int primary key, b int generated always as (a + 1) stored)`)
			require.Contains(t, list("everything"), "public.computed d 4 changes 1 lists (a*) true")
		}
		if server.Major() >= 14 {
			pgtest.Exec(t, uri, `create table root (a int primary key) partition by range (a)`, `create table leaf partition of root default`,
				`create publication via_root for table root with (publish_via_partition_root)`, `create publication via_leaf for table root`)
			require.Equal(t, []string{"public.root d 4 changes 1 lists (a*) true"}, list("via_root"))
			require.Equal(t, []string{"public.leaf d 4 changes 1 lists (a*) true"}, list("via_leaf"))
		}
		if server.Major() >= 15 {
			pgtest.Exec(t, uri, `create table listed (a int primary key, b int, c int)`,
				`create publication one for table listed (c, a)`, `create publication two for table listed (a, b)`)
			require.Equal(t, []string{"public.listed d 4 changes 1 lists (a*, c) true"}, list("one"))
			require.Contains(t, list("one", "two")[0], "public.listed d 4 changes 2 lists (")
		}
		if server.Major() >= 18 {
			pgtest.Exec(t, uri, `create publication stored for table computed with (publish_generated_columns = stored)`)
			require.Equal(t, []string{"public.computed d 4 changes 1 lists (a*, b) true"}, list("stored"))
		}
	})
}
