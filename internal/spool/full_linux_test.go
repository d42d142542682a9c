package spool

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// The device file that is always full exists on Linux only.
func TestDiskFull(t *testing.T) {
	dir := open(t, t.TempDir(), 100)
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	require.NoError(t, err)
	file := &File{dir: dir, file: full}
	_, err = file.Write([]byte("row"))
	_, ok := errors.AsType[*DiskFullError](err)
	require.True(t, ok, "%v", err)
	require.ErrorContains(t, err, dir.parent)
	require.ErrorContains(t, err, "--spool-dir")
	require.NotContains(t, err.Error(), "row")
	require.Zero(t, dir.Used(), "what was not written must not count")
	require.NoError(t, full.Close())
}
