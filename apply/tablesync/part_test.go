package tablesync

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"pgapply/internal/source"
)

func TestStatements(t *testing.T) {
	table := &source.CopyTable{Table: source.Table{Schema: `s"1`, Name: "t"}, OID: 1, Columns: []source.CopyColumn{{Name: `a"b`}, {Name: "c"}}}
	whole := split(table, 0)
	require.Len(t, whole, 1)
	require.Equal(t, `COPY "s""1"."t" ("a""b", "c") TO STDOUT`, whole[0].copyOut(table, false))
	require.Equal(t, `COPY "s""1"."t" ("a""b", "c") FROM STDIN (FORMAT binary)`, copyIn(table, true))
	require.Equal(t, `of s"1.t`, whole[0].String())

	filtered := *table
	filtered.Filter = "(c > 1) OR (c < 0)"
	require.Equal(t, `COPY (SELECT "a""b", "c" FROM ONLY "s""1"."t" WHERE ((c > 1) OR (c < 0))) TO STDOUT (FORMAT binary)`, whole[0].copyOut(&filtered, true))
	generated := *table
	generated.Columns = []source.CopyColumn{{Name: "g", Generated: true}}
	require.Equal(t, `COPY (SELECT "g" FROM ONLY "s""1"."t") TO STDOUT`, whole[0].copyOut(&generated, false))
	bare := *table
	bare.Columns = nil
	require.Equal(t, `SELECT pg_catalog.count(*) FROM ONLY "s""1"."t"`, whole[0].count(&bare))
	require.Equal(t, `INSERT INTO "s""1"."t" SELECT FROM pg_catalog.generate_series(1, 3)`, insert(&bare, 3))

	root := filtered
	root.Partitioned = true
	root.Leaves = []source.CopyLeaf{
		{Table: source.Table{Schema: "s", Name: "small"}, OID: 2, Storage: source.Storage{Bytes: 10, Pages: 1, Ranges: true}},
		{Table: source.Table{Schema: "s", Name: "large"}, OID: 3, Storage: source.Storage{Bytes: 250, Pages: 25, Ranges: true}},
	}
	root.Bytes = 260
	require.Equal(t, `COPY (SELECT "a""b", "c" FROM "s""1"."t" WHERE ((c > 1) OR (c < 0))) TO STDOUT`, split(&root, 0)[0].copyOut(&root, false))
	var statements, names []string
	for _, p := range split(&root, 100) {
		statements, names = append(statements, p.copyOut(&root, false)), append(names, p.String())
	}
	require.Equal(t, []string{
		`COPY (SELECT "a""b", "c" FROM ONLY "s"."small" WHERE ((c > 1) OR (c < 0))) TO STDOUT`,
		`COPY (SELECT "a""b", "c" FROM ONLY "s"."large" WHERE ctid < '(8,0)' AND ((c > 1) OR (c < 0))) TO STDOUT`,
		`COPY (SELECT "a""b", "c" FROM ONLY "s"."large" WHERE ctid >= '(8,0)' AND ctid < '(16,0)' AND ((c > 1) OR (c < 0))) TO STDOUT`,
		`COPY (SELECT "a""b", "c" FROM ONLY "s"."large" WHERE ctid >= '(16,0)' AND ((c > 1) OR (c < 0))) TO STDOUT`,
	}, statements)
	require.Equal(t, []string{"of s.small", "pages 0 to 7 of s.large", "pages 8 to 15 of s.large", "pages from 16 on of s.large"}, names)
}

// Parts cover every page once, and what comes behind the known ones.
func TestSplitCoversEveryPage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		storage := source.Storage{
			Pages: rapid.Int64Range(0, 1<<32-1).Draw(t, "pages"), Ranges: rapid.Bool().Draw(t, "ranges"),
		}
		storage.Bytes = storage.Pages*8192 + rapid.Int64Range(0, 1<<40).Draw(t, "toast")
		limit := rapid.Int64Range(0, 1<<44).Draw(t, "limit")
		parts := split(&source.CopyTable{Storage: storage}, limit)
		if len(parts) == 1 {
			require.False(t, parts[0].pages)
			return
		}
		require.True(t, storage.Ranges && limit > 0 && storage.Bytes > limit)
		require.LessOrEqual(t, len(parts), mostParts)
		next := int64(0)
		for i, p := range parts {
			require.True(t, p.pages)
			require.Equal(t, next, p.from)
			if i < len(parts)-1 {
				require.Greater(t, p.to, p.from)
			}
			next = p.to
		}
		require.Equal(t, int64(-1), next)
	})
}

func TestPlaceOfAnError(t *testing.T) {
	for where, want := range map[string]string{
		`COPY t, line 3, column a: "secret"`:          "3 a",
		`COPY t, line 31`:                             "31 ",
		`COPY t 7, line 12: "1	secret"`:               "12 ",
		`COPY t, Zeile 4, Spalte a b: »secret«`:       "4 a b",
		`SQL function "f" statement 1, line 3`:        "none",
		`COPY a,b 2, line 5, column c: null input`:    "5 c",
		`COPY t, line 6, column "x": "y, line 9, z "`: "6 ",
	} {
		got := "none"
		if match := place.FindStringSubmatch(where); match != nil {
			got = fmt.Sprintf("%s %s", match[1], match[2])
		}
		require.Equal(t, want, got, where)
	}
}
