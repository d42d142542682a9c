package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply/tablesync"
)

// What is logged while bars are shown is not lost, and neither is what is logged when
// they are gone.
func TestLogBesideBars(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "screen"))
	require.NoError(t, err)
	defer file.Close()
	s := &screen{file: file}
	write := func(text string) {
		n, err := s.Write([]byte(text))
		require.NoError(t, err)
		require.Equal(t, len(text), n)
	}
	write("before\n")
	ended := s.showCopy(&tablesync.Progress{})
	write("meanwhile\n")
	ended()
	write("after\n")
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Regexp(t, `(?s)^before\n.*meanwhile\n.*table +rows.*after\n$`, string(text))
}

// A line keeps within the terminal, and is cut between two things that it says.
func TestRoomOfBars(t *testing.T) {
	require.Equal(t, "public.orders", shortened("public.orders", 13))
	require.Equal(t, "public.or…", shortened("public.orders", 10))
	require.Equal(t, "…", shortened("public.orders", -1))
	require.Equal(t, "5 rows, 7 B", fitting("5 rows, 7 B", 11))
	require.Equal(t, "5 rows", fitting("5 rows, 7 B", 10))
	require.Empty(t, fitting("5 rows, 7 B", 5))
	require.Empty(t, fitting("5,000 rows, 7 B", 6))
	require.Empty(t, fitting("5 rows, 7 B", -5))
}
