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
