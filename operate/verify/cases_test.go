package verify

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

// Floating-point numbers before 12, the server's own hashes before 11, "char" before 16.
func TestMajorsThatWriteValuesDifferently(t *testing.T) {
	target := pgtest.SharedServer(t)
	for _, major := range []int{10, 14} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			p := newPair(t, pgtest.Start(t, pgtest.OnMajor(major)), target)
			p.both(`CREATE TABLE c (one "char" PRIMARY KEY, f float4, fs float8[])`)
			p.onSource(`INSERT INTO c SELECT chr(200)::bytea::text::"char", 1/3.0, array[1/3.0] WHERE false`)
			p.both(`INSERT INTO c VALUES ('a', 1/3.0, array[1/3.0])`)
			checkHostile(t, p)
			require.Empty(t, p.found("c"))
			p.onTarget(`UPDATE c SET f = f * 1.0000001, fs = array[0.33333]`)
			require.Equal(t, []string{"different a: f fs"}, p.found("c"))
		})
	}
}

func TestTablesWithoutAKeyAreCounted(t *testing.T) {
	p := sharedPair(t)
	p.both(`CREATE TABLE bag (a int, b text)`, `INSERT INTO bag SELECT i % 100, 'x' FROM generate_series(1, 20000) i`)
	p.onSource(publish)
	p.options.pages = 8
	require.Empty(t, p.found("bag"))
	p.onTarget(`DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 7)`, `INSERT INTO bag VALUES (8, 'x'), (NULL, NULL)`)
	report := p.verify("bag").Tables[0]
	require.Empty(t, report.Key)
	require.Equal(t, []int64{0, 1, 2}, []int64{report.Missing, report.Extra, report.Different})
	got := map[string]int{}
	for _, d := range report.Differences {
		got[fmt.Sprintf("%s %d/%d", d.Kind, d.SourceRows, d.TargetRows)]++
	}
	require.Equal(t, map[string]int{"extra 0/0": 1, "different 200/199": 1, "different 200/201": 1}, got)
}

// The order of texts, where rows lie, and how types spell a value may differ.
func TestEndsThatAreBuiltDifferently(t *testing.T) {
	p := sharedPair(t)
	p.onSource(`CREATE TABLE k (area int, name text COLLATE "C", n int, label varchar(10), doc json, own int, PRIMARY KEY (name, area)) PARTITION BY LIST (area)`,
		`CREATE TABLE k1 PARTITION OF k FOR VALUES IN (1)`, `CREATE TABLE k2 PARTITION OF k DEFAULT`,
		`CREATE TYPE mood AS ENUM ('sad', 'ok')`, `CREATE TABLE e (id int PRIMARY KEY, m mood, d numeric(8,3))`)
	p.onTarget(`CREATE COLLATION other (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`,
		`CREATE DOMAIN number AS numeric(8,3)`, `CREATE TYPE unused AS ENUM ()`, `CREATE TYPE mood AS ENUM ('sad', 'ok')`,
		`CREATE TABLE k (name text COLLATE other, area bigint, extra int, doc jsonb, n numeric, label text, PRIMARY KEY (area, name))`, `CREATE TABLE e (id int PRIMARY KEY, m mood, d number)`)
	p.both(`INSERT INTO k (area, name, n, label, doc) SELECT i % 3, chr(97 + i % 26) || i || CASE i % 2 WHEN 0 THEN ' ä' ELSE '_Z' END, i, 'l' || i, ('{"b": 1,  "a": ' || i || '}')::json FROM generate_series(1, 3000) i`,
		`INSERT INTO e SELECT i, 'ok', i / 7.0 FROM generate_series(1, 100) i`)
	p.onSource(`CREATE PUBLICATION p FOR TABLE k (area, name, n, label, doc), e WITH (publish_via_partition_root)`)
	require.Empty(t, p.found("k"))
	require.Empty(t, p.found("e"))
	p.onTarget(`UPDATE k SET label = label || ' ', doc = doc || '{"b": 2}' WHERE n = 26`, `DELETE FROM k WHERE n = 27`, `UPDATE e SET m = 'sad' WHERE id = 3`)
	require.Equal(t, []string{"missing b27_Z,0", "different a26 ä,2: label doc"}, reversed(p.found("k")))
	require.Equal(t, []string{"different 3: m"}, p.found("e"))
}

func reversed(list []string) []string {
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
	return list
}

// Only what is published counts: neither other columns nor rows that the filter leaves out.
func TestOnlyWhatIsPublishedIsCompared(t *testing.T) {
	p := sharedPair(t)
	p.both(`CREATE TABLE f (id int PRIMARY KEY, own int, a int)`, `INSERT INTO f SELECT i, i, i FROM generate_series(1, 1000) i`)
	p.onSource(`CREATE PUBLICATION p FOR TABLE f (id, a) WHERE (id % 2 = 0)`)
	p.onTarget(`UPDATE f SET own = 0`, `DELETE FROM f WHERE id = 11`, `UPDATE f SET a = 0 WHERE id = 13`)
	require.Empty(t, p.found("f"))
	require.EqualValues(t, 500, p.verify("f").Rows)
	p.onTarget(`UPDATE f SET a = 0 WHERE id = 20`, `INSERT INTO f VALUES (2000), (2001)`)
	require.Equal(t, []string{"different 20: a", "extra 2000"}, p.found("f"))

	// A row that only the target's values leave out is different, and not missing.
	p.both(`CREATE TABLE g (id int PRIMARY KEY, a int)`, `INSERT INTO g SELECT i, i FROM generate_series(1, 10) i`)
	p.onSource(`CREATE PUBLICATION q FOR TABLE g WHERE (a > 0) WITH (publish = 'insert')`)
	p.options.Publications = []string{"q"}
	p.onTarget(`UPDATE g SET a = -1 WHERE id = 3`, `INSERT INTO g VALUES (11, -1)`)
	require.Equal(t, []string{"different 3: a"}, p.found("g"))
}

// The last slice of a table has no end: rows come behind it while others are read.
func TestSlices(t *testing.T) {
	c := &comparison{options: &Options{pages: 40}}
	var got []string
	for _, s := range c.slices(&relation{parts: []part{{name: "a", pages: 100, ranges: true}, {name: "b", pages: 100}, {name: "c", pages: 40, ranges: true}}}) {
		got = append(got, s.part+": "+s.condition(&table{}, sourceEnd))
	}
	require.Equal(t, []string{
		"a: ctid >= '(0,0)' AND ctid < '(40,0)'", "a: ctid >= '(40,0)' AND ctid < '(80,0)'", "a: ctid >= '(80,0)'", "b: true", "c: true",
	}, got)
	c.options = &Options{RowsPerSecond: 10_000} // half a second each
	require.Len(t, c.slices(&relation{parts: []part{{pages: 1000, rows: 100_000, ranges: true}}}), 20)
}

func TestTablesThatCannotBeComparedDoNotKeepTheOthers(t *testing.T) {
	p := sharedPair(t)
	p.both(`CREATE TABLE good (id int PRIMARY KEY)`, `INSERT INTO good VALUES (1)`)
	p.onSource(`CREATE TABLE absent (id int)`, `CREATE TABLE narrow (id int, b int)`, `CREATE TABLE misfit (id int PRIMARY KEY, a text)`,
		`INSERT INTO misfit VALUES (1, 'secret')`, publish, `CREATE TABLE view (id int)`)
	p.onTarget(`CREATE TABLE narrow (id int)`, `CREATE TABLE misfit (id int PRIMARY KEY, a int)`, `CREATE VIEW view AS SELECT 1 AS id`)
	report := p.verify("absent", "good", "narrow", "misfit", "view", "nowhere")
	var errors []string
	for _, table := range report.Tables {
		errors = append(errors, table.Error)
	}
	require.Equal(t, []string{
		"the target has no such table", "", `the target's table has no column "b"`, "invalid input syntax for type integer (SQLSTATE 22P02)",
		"it is no table on the target", "it is not published by p",
	}, errors)
	require.True(t, report.Tables[1].Equal())
	require.Equal(t, 5, report.NotCompared)
}

func TestWhatIsListedIsBounded(t *testing.T) {
	p := sharedPair(t)
	p.both(`CREATE TABLE m (id int PRIMARY KEY)`)
	p.onSource(publish, `INSERT INTO m SELECT generate_series(1, 5000)`)
	p.options.Limit = 3
	report := p.verify("m")
	require.EqualValues(t, 5000, report.Differing)
	require.Equal(t, []string{"missing 1", "missing 2", "missing 3"}, p.found("m"))
}

func TestSampleIsOfTheSameRows(t *testing.T) {
	p := sharedPair(t)
	p.both(`CREATE TABLE m (id int PRIMARY KEY, a int)`, `INSERT INTO m SELECT i, i FROM generate_series(1, 8000) i`)
	p.onSource(publish)
	p.options.Sample = 4
	report := p.verify("m")
	require.InDelta(t, 2000, report.Rows, 300)
	require.True(t, report.Tables[0].Equal())
	p.onTarget(`UPDATE m SET a = 0`)
	require.Equal(t, report.Rows, p.verify("m").Differing)
}

// What is on its way is no difference, once it has come.
func TestRowsOnTheirWaySettle(t *testing.T) {
	p := sharedPair(t)
	p.both(`CREATE TABLE w (id int PRIMARY KEY, a int)`, `INSERT INTO w SELECT i, i FROM generate_series(1, 1000) i`)
	p.onSource(publish, `UPDATE w SET a = -a WHERE id = 5`, `DELETE FROM w WHERE id = 6`, `INSERT INTO w VALUES (0, 0)`)
	p.onTarget(`UPDATE w SET a = 0 WHERE id = 900`)
	come := false
	p.options.Follow = follower(func() (lsn.LSN, bool) {
		if !come {
			come = true
			return 1, true
		}
		p.onTarget(`UPDATE w SET a = -5 WHERE id = 5`, `DELETE FROM w WHERE id = 6`, `INSERT INTO w VALUES (0, 0) ON CONFLICT DO NOTHING`)
		return upToDate()
	})
	require.Equal(t, []string{"different 900: a"}, p.found("w"))
}

// A row that goes on changing is not called different; nor is one that the target has
// not been told of.
func TestRowsThatDoNotSettleAreNotDifferent(t *testing.T) {
	p := sharedPair(t)
	p.both(`CREATE TABLE w (id int PRIMARY KEY, a int)`, `INSERT INTO w SELECT i, i FROM generate_series(1, 1000) i`)
	p.onSource(publish)
	p.onTarget(`UPDATE w SET a = 0 WHERE id = 5`, `UPDATE w SET a = 0 WHERE id = 6`)
	p.options.Patience = 500 * time.Millisecond
	p.options.Follow = follower(func() (lsn.LSN, bool) {
		p.onSource(`UPDATE w SET a = a + 10000 WHERE id = 5`)
		return upToDate()
	})
	table := p.verify("w").Tables[0]
	require.EqualValues(t, 1, table.Unsettled)
	require.EqualValues(t, 1, table.Different)
	require.Empty(t, table.Behind)

	p.options.Follow = follower(func() (lsn.LSN, bool) { return 0x10, true })
	table = p.verify("w").Tables[0]
	require.EqualValues(t, 2, table.Unsettled)
	require.Contains(t, table.Behind, "has applied changes up to 0/10, and did not get to")

	p.options.Follow = follower(func() (lsn.LSN, bool) { return 0, false })
	report := p.verify("w")
	require.EqualValues(t, 2, report.Differing)
	require.True(t, report.Alone)
}

func TestSumsAreModulo(t *testing.T) {
	for text, want := range map[string]uint64{
		"": 0, "0": 0, "5": 5, "-1": math.MaxUint64, "18446744073709551616": 0, "18446744073709551621": 5, "-18446744073709551618": math.MaxUint64 - 1,
	} {
		require.Equal(t, want, modulo([]byte(text)), text)
	}
}

func TestChunksAreLookedAtAsFarAsMemoryGoes(t *testing.T) {
	list := compareSums([2][]sum{{{3, 1}, {2, 7}, {9, 9}, {1, 1}}, {{3, 2}, {2, 7}, {1, 0}, {0, 0}}})
	require.Equal(t, []unequal{{0, 3}, {2, 9}, {3, 1}}, list)
	chunks, rest := some(list, 11)
	require.Equal(t, []int64{0}, chunks)
	chunks, rest = some(rest, 1)
	require.Equal(t, []int64{2}, chunks, "one at least")
	chunks, rest = some(rest, 1)
	require.Equal(t, []int64{3}, chunks)
	require.Empty(t, rest)
}

func TestKeysAreInOrder(t *testing.T) {
	require.Negative(t, compareKeys([]string{"9"}, []string{"10"}))
	require.Negative(t, compareKeys([]string{"a", "9"}, []string{"a", "10"}))
	require.Negative(t, compareKeys([]string{"a10"}, []string{"a9"}))
	require.Zero(t, compareKeys([]string{"a"}, []string{"a"}))
}

func TestLimiterCountsWhatWasRead(t *testing.T) {
	l := &limiter{rowsPerSecond: 1000}
	l.read(3_600_000)
	first := l.free
	l.read(1000)
	require.Equal(t, time.Second, l.free.Sub(first))
	stopped, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, l.wait(stopped), context.Canceled, "an hour is to be waited for")
	require.NoError(t, (&limiter{}).wait(stopped))
}
