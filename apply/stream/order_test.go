package stream

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
)

func TestOrderOfPositions(t *testing.T) {
	commit := func(final, end lsn.LSN) *txn.Transaction {
		return &txn.Transaction{XID: 7, Kind: txn.Commit, FinalLSN: final, EndLSN: end}
	}
	o := order{}
	require.NoError(t, o.transaction(commit(10, 12), 12))
	require.NoError(t, o.transaction(commit(12, 14), 14), "right behind")
	for name, test := range map[string]struct {
		transaction *txn.Transaction
		frame       lsn.LSN
	}{
		"the same again":             {commit(12, 14), 14},
		"an earlier one":             {commit(10, 12), 12},
		"an end that was made up":    {commit(20, 0xFFFFFFFFFFFFFFFF), 22},
		"a frame from somewhere":     {commit(20, 22), 0},
		"an end before its commit":   {commit(20, 19), 19},
		"a decision that came twice": {&txn.Transaction{Kind: txn.RollbackPrepared, EndLSN: 14}, 14},
	} {
		var violation *PositionError
		require.ErrorAs(t, o.transaction(test.transaction, test.frame), &violation, name)
	}
	long := &txn.Transaction{Kind: txn.Prepare, FinalLSN: 5, EndLSN: 6}
	require.NoError(t, o.transaction(long, 6), "prepared long ago")
	require.Error(t, o.transaction(long, 6))
	require.NoError(t, o.transaction(&txn.Transaction{Kind: txn.CommitPrepared, FinalLSN: 14, EndLSN: 16}, 16))

	require.NoError(t, o.keepalive(1000, 0), "between transactions")
	require.NoError(t, o.keepalive(20, 20), "the record of the commit begins where the one before it ends")
	require.Error(t, o.keepalive(21, 20))
}
