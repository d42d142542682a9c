package merge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"pgapply/decoder"
)

// tuple makes a row of text values; "-" is NULL and "u" unchanged.
func tuple(values ...string) decoder.Tuple {
	var t decoder.Tuple
	for _, value := range values {
		switch value {
		case "-":
			t = append(t, decoder.Value{Kind: decoder.Null})
		case "u":
			t = append(t, decoder.Value{Kind: decoder.Unchanged})
		default:
			t = append(t, decoder.Value{Kind: decoder.Text, Data: []byte(value)})
		}
	}
	return t
}

func begin(width int, key ...int) *Batch {
	b := New()
	b.Begin(width, key, false)
	return b
}

func describe(b *Batch) string {
	var text []string
	result := b.Result()
	for _, list := range []struct {
		name string
		rows []int32
	}{{"delete", result.Deletes}, {"update", result.Updates}, {"absent", result.Absent}, {"insert", result.Inserts}} {
		for _, row := range list.rows {
			line := list.name
			for column := range b.width {
				value := b.Value(row, column)
				switch value.Kind {
				case decoder.Unchanged:
					line += " u"
				case decoder.Null:
					line += " -"
				default:
					line += " " + string(value.Data)
				}
				if list.name == "delete" || list.name == "absent" {
					break
				}
			}
			text = append(text, line)
		}
	}
	return strings.Join(text, "; ")
}

// TestMerge: what two and three changes of one row come to.
func TestMerge(t *testing.T) {
	for _, c := range []struct{ changes, want string }{
		{"insert k a b", "insert k a b"},
		{"insert k a b, update k c u", "insert k c b"},
		{"insert k a b, update k - u", "insert k - b"},
		{"insert k a b, delete k", "absent k"},
		{"insert k a b, delete k, insert k c d", "insert k c d"},
		{"update k a b, update k c u", "update k c b"},
		{"update k u b, update k c u", "update k c b"},
		{"update k u b", "update k u b"},
		{"update k a b, delete k", "delete k"},
		{"delete k", "delete k"},
		{"delete k, insert k a b", "delete k; insert k a b"},
		{"delete k, insert k a b, update k c u", "delete k; insert k c b"},
		{"delete k, insert k a b, delete k", "delete k"},
		{"update k a u, delete k, insert k c d", "delete k; insert k c d"},
		{"insert m a b, update k a b, delete n", "delete n; update k a b; insert m a b"},
		{"insert k a b, insert k c d", "refused after insert k a b"},
		{"delete k, update k a b", "refused after delete k"},
		{"delete k, delete k", "refused after delete k"},
	} {
		b := begin(3, 0)
		got := ""
		for change := range strings.SplitSeq(c.changes, ", ") {
			words := strings.Fields(change)
			if !add(b, words[0], tuple(words[1:]...)) {
				got = "refused after "
				break
			}
		}
		require.Equal(t, c.want, got+describe(b), c.changes)
	}
}

func add(b *Batch, kind string, values decoder.Tuple) bool {
	switch kind {
	case "insert":
		return b.Insert(values) >= 0
	case "update":
		return b.Update(values) >= 0
	}
	return b.Delete(append(values, decoder.Value{Kind: decoder.Null}, decoder.Value{Kind: decoder.Null})[:3]) >= 0
}

func TestWithoutAKeyNothingIsMerged(t *testing.T) {
	b := begin(1)
	for range 100 {
		require.LessOrEqual(t, 0, b.Insert(tuple("a")))
	}
	require.Len(t, b.Result().Inserts, 100)
}

// TestFormsAreNotMixed: one array cannot hold text and binary values.
func TestFormsAreNotMixed(t *testing.T) {
	b := begin(2, 0)
	require.LessOrEqual(t, 0, b.Insert(tuple("k", "-")))
	mixed := tuple("m", "a")
	mixed[1].Kind = decoder.Binary
	require.LessOrEqual(t, 0, b.Insert(mixed), "the column has no form yet")
	require.Equal(t, -1, b.Update(tuple("k", "a")))
	require.Equal(t, []byte{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 25, 0, 0, 0, 2, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 'a'},
		b.Array(nil, b.Result().Inserts, 1, ',', 25))
	require.Equal(t, `{"k","m"}`, string(b.Array(nil, b.Result().Inserts, 0, ',', 25)))

	one := New()
	one.Begin(2, nil, true)
	require.Equal(t, 0, one.Insert(tuple("-", "a")))
	require.Equal(t, -1, one.Insert(mixed), "not in one column, but in one batch")
	mixed[1] = decoder.Value{Kind: decoder.Null}
	require.Equal(t, 1, one.Insert(mixed))
}

func TestTextArray(t *testing.T) {
	b := begin(1)
	for _, value := range []string{`a"b\c`, "", "NULL", "-", "{,;}"} {
		require.LessOrEqual(t, 0, b.Insert(tuple(value)))
	}
	require.Equal(t, `{"a\"b\\c";"";"NULL";NULL;"{,;}"}`, string(b.Array(nil, b.Result().Inserts, 0, ';', 0)))
}

// database is a model of the target: rows of two columns by key.
type database map[string][2]string

// apply does what a statement for each list does, and reports whether every one of them
// touched as many rows as it has elements.
func (d database) apply(b *Batch) bool {
	result := b.Result()
	key := func(row int32) string { return string(b.Value(row, 0).Data) }
	expected := true
	for _, row := range result.Deletes {
		_, there := d[key(row)]
		expected = expected && there
		delete(d, key(row))
	}
	for _, row := range result.Updates {
		values, there := d[key(row)]
		expected = expected && there
		for column := 1; column < 3; column++ {
			if b.Sent(row, column) {
				values[column-1] = string(b.Value(row, column).Data)
			}
		}
		d[key(row)] = values
	}
	for _, row := range result.Absent {
		_, there := d[key(row)]
		expected = expected && !there
	}
	for _, row := range result.Inserts {
		_, there := d[key(row)]
		expected = expected && !there
		d[key(row)] = [2]string{string(b.Value(row, 1).Data), string(b.Value(row, 2).Data)}
	}
	return expected
}

// TestMergeHidesNothing: the result of a batch is that of its changes one by one; and
// where one of those would not meet what it expects, the batch does not either.
func TestMergeHidesNothing(t *testing.T) {
	keys := []string{"k", "l", "m", "n"}
	rapid.Check(t, func(t *rapid.T) {
		one, whole := database{}, database{}
		for _, key := range keys {
			if rapid.Bool().Draw(t, "there") {
				one[key] = [2]string{"old", "old"}
			}
		}
		maps.Copy(whole, one)
		asExpected, wholeAsExpected := true, true
		b := begin(3, 0)
		for i := range rapid.IntRange(1, 30).Draw(t, "changes") {
			key := rapid.SampledFrom(keys).Draw(t, "key")
			values, there := one[key]
			a, c := fmt.Sprint("a", i), fmt.Sprint("c", i)
			kind := rapid.SampledFrom([]string{"insert", "update", "delete"}).Draw(t, "kind")
			if rapid.IntRange(0, 9).Draw(t, "sane") > 0 { // mostly what a publisher would send
				if there && kind == "insert" {
					kind = "update"
				} else if !there {
					kind = "insert"
				}
			}
			change := tuple(key, a, c)
			switch kind {
			case "insert":
				asExpected = asExpected && !there
				one[key] = [2]string{a, c}
			case "update":
				asExpected = asExpected && there
				values[0] = a
				if rapid.Bool().Draw(t, "sent") {
					values[1] = c
				} else {
					change[2].Kind = decoder.Unchanged
				}
				if there {
					one[key] = values
				}
			default:
				asExpected = asExpected && there
				delete(one, key)
				change = tuple(key)
			}
			if !add(b, kind, change) {
				wholeAsExpected = whole.apply(b) && wholeAsExpected
				b.Begin(3, []int{0}, false)
				require.True(t, add(b, kind, change))
			}
		}
		require.LessOrEqual(t, b.Rows(), len(keys))
		wholeAsExpected = whole.apply(b) && wholeAsExpected
		require.Equal(t, asExpected, wholeAsExpected)
		if asExpected {
			require.Equal(t, one, whole)
		}
	})
}

// TestNothingIsAllocated in the steady state.
func TestNothingIsAllocated(t *testing.T) {
	b := begin(3, 0, 1)
	var tuples []decoder.Tuple
	for i := range 1000 {
		tuples = append(tuples, tuple(fmt.Sprint(i%700), "k", "some value"))
	}
	var array []byte
	key := []int{0, 1}
	fill := func() {
		b.Begin(3, key, false)
		for i, values := range tuples {
			if i < 700 {
				b.Insert(values)
			} else {
				b.Update(values)
			}
		}
		array = b.Array(array[:0], b.InKeyOrder(b.Result().Inserts), 2, ',', 25)
	}
	fill()
	require.Zero(t, testing.AllocsPerRun(20, fill))
	require.Equal(t, 700, b.Rows())
	require.Equal(t, 1000, b.Changes())
	require.True(t, slices.IsSorted(b.Result().Inserts), "in the order in which they came")
}

func TestCopy(t *testing.T) {
	b := begin(3)
	b.Insert(tuple("a\tb\nc\rd\\e", "-", ""))
	b.Insert(tuple(`\N`, `\.`, "x"))
	uniform, binary := b.Uniform()
	require.True(t, uniform)
	require.False(t, binary)
	require.Equal(t, "a\\\tb\\nc\\rd\\\\e\t\\N\t\n\\\\N\t\\\\.\tx\n", string(b.Copy(nil, b.Result().Inserts)))

	b = begin(2)
	row := tuple("ab", "-")
	row[0].Kind = decoder.Binary
	b.Insert(row)
	uniform, binary = b.Uniform()
	require.True(t, uniform)
	require.True(t, binary)
	require.Equal(t, copyHeader+"\x00\x02\x00\x00\x00\x02ab\xff\xff\xff\xff\xff\xff", string(b.Copy(nil, b.Result().Inserts)))
	row[1] = decoder.Value{Kind: decoder.Text, Data: []byte("c")}
	b.Insert(row)
	uniform, _ = b.Uniform()
	require.False(t, uniform)
}

// TestKeyOrder is that of numbers, and otherwise one that tells all keys apart.
func TestKeyOrder(t *testing.T) {
	b := begin(3, 0, 2)
	for _, key := range []string{"10", "9", "123456789", "123456788", "100", "", strings.Repeat("x", 300), strings.Repeat("x", 299) + "a"} {
		for _, second := range []string{"b", "a"} {
			b.Update(tuple(key, "v", second))
		}
	}
	var got []string
	for _, row := range b.InKeyOrder(b.Result().Updates) {
		got = append(got, string(b.Value(row, 0).Data[:min(9, len(b.Value(row, 0).Data))])+string(b.Value(row, 2).Data))
	}
	require.Equal(t, []string{
		"a", "b", "9a", "9b", "10a", "10b", "100a", "100b", "123456788a", "123456788b", "123456789a", "123456789b",
		"xxxxxxxxxa", "xxxxxxxxxb", "xxxxxxxxxa", "xxxxxxxxxb",
	}, got)
	require.Empty(t, b.InKeyOrder(nil))
}
