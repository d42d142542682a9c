package schema

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/source"
)

func TestEntriesOfADump(t *testing.T) {
	text, err := os.ReadFile("testdata/dump.sql")
	require.NoError(t, err)
	var got strings.Builder
	for _, e := range parseDump(string(text)) {
		got.WriteString("[" + e.String() + "]\n" + e.SQL + "\n")
	}
	want, err := os.ReadFile("testdata/entries.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

func TestTokensOfADump(t *testing.T) {
	for text, length := range map[string]int{
		"'a''b' c": 3, "'a\\' c": 4, `E'a\'b' c`: 1, `"a b" c`: 5, "$$ a $b$ $$ c": 11, "$b$ $$ $b$ c": 10, "$1 c": 1,
		"/* a /* b */ c */ d": 17, "/* a": 4, "'a": 2, `"a`: 2, "$$ a": 4, "a": 1, "$ä$ $$ $ä$ c": 12,
	} {
		require.Equal(t, length, skipToken(text, 0), text)
	}
	require.Equal(t, 7, skipToken(`E'a\'b' c`, 1))
	require.Equal(t, 6, skipToken(`ee'a\' c`, 2), "no escape string: the letter belongs to a name")
	require.Equal(t, 3, skipToken(`a$$b$$`, 2)-0, "a dollar inside a name")
}

func FuzzParseDump(f *testing.F) {
	text, err := os.ReadFile("testdata/dump.sql")
	require.NoError(f, err)
	f.Add(string(text))
	f.Add("--\n-- Name: a; Type: TABLE; Schema: s; Owner: -\n--\n\nE'\\")
	f.Fuzz(func(t *testing.T, text string) {
		for _, e := range parseDump(text) {
			require.Contains(t, text, e.SQL)
			require.NotEmpty(t, e.Type)
		}
	})
}

// Names may hold what the header of an entry is made of.
func TestObjectOfAnEntry(t *testing.T) {
	for _, test := range []struct {
		entry  entry
		object source.Object
	}{
		{entry{Type: "FUNCTION", Schema: "s", Name: "f(integer, text)"}, source.Object{Kind: source.FunctionObject, Schema: "s", Name: "f"}},
		{entry{Type: "FUNCTION", Schema: "s", Name: "f(g()"}, source.Object{Kind: source.FunctionObject, Schema: "s", Name: "f(g"}},
		{entry{Type: "TYPE", Schema: "a b", Name: "c  d"}, source.Object{Kind: source.TypeObject, Schema: "a\nb", Name: "c\r\nd"}},
	} {
		require.Equal(t, asShown(test.object), test.entry.object())
	}
}
