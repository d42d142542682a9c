package tablesync

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestShare(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		table TableProgress
		share float64
	}{
		{TableProgress{EstimatedRows: -1}, 0},
		{TableProgress{EstimatedRows: 100, Rows: 25, Bytes: 1000, DiskBytes: 1000}, 0.25},
		{TableProgress{EstimatedRows: 100, Rows: 250}, 0.99},
		{TableProgress{EstimatedRows: -1, Rows: 250, Bytes: 500, DiskBytes: 1000}, 0.5},
		{TableProgress{EstimatedRows: 100, Rows: 50, Finished: now}, 1},
	} {
		require.InDelta(t, c.share, c.table.Share(), 1e-9, "%+v", c.table)
	}
	require.Zero(t, Share(nil))
	require.InDelta(t, 0.5, Share([]TableProgress{{EstimatedRows: -1}, {Finished: now}}), 1e-9)
	require.InDelta(t, 0.75, Share([]TableProgress{{EstimatedRows: 2, Rows: 1, DiskBytes: 1 << 30}, {Finished: now, DiskBytes: 1 << 30}}), 1e-9)
}
