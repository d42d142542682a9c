package source

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestHistory(t *testing.T) {
	want := History{{1, 0x3000148}, {2, 0x1_05000000}}
	history, err := parseHistoryFile("# comment\n1\t0/3000148\tno recovery target specified\n\n2\t1/5000000\tbefore 2026-01-01 00:00:00+00\n")
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(want, history))
	require.Equal(t, "1 0/3000148, 2 1/5000000", want.String())
	back, err := ParseHistory(want.String())
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(want, back))

	back, err = ParseHistory(History(nil).String())
	require.NoError(t, err)
	require.Empty(t, back)
	for _, broken := range []string{"1", "x 0/1", "1 0/x", "1 0/1,2 0/2", " "} {
		_, err := ParseHistory(broken)
		require.Error(t, err, broken)
		_, err = parseHistoryFile(broken)
		require.Equal(t, broken == " ", err == nil, broken)
	}
}

// FuzzHistoryFile: whatever a server sends, what is read of it can be written and read.
func FuzzHistoryFile(f *testing.F) {
	f.Add("1\t0/3000148\tno recovery target specified\n")
	f.Add("1 0/3000148\n2 FFFFFFFF/FFFFFFFF x\n#\n")
	f.Fuzz(func(t *testing.T, content string) {
		history, err := parseHistoryFile(content)
		if err != nil {
			return
		}
		back, err := ParseHistory(history.String())
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(history, back))
	})
}
