package apply

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/source"
)

// TestEndsOfFailover: which publishers keep slots elsewhere, and which slots can be used.
func TestEndsOfFailover(t *testing.T) {
	ends := func(version int, inRecovery bool) *Ends {
		options := DefaultOptions()
		options.Failover = true
		return &Ends{
			Options: &options, PublisherVersion: version,
			Publisher: source.Identity{SystemID: "1", Database: "d", InRecovery: inRecovery},
		}
	}
	require.NoError(t, ends(17_00_00, false).CheckPair())
	for text, refusing := range map[string]*Ends{"PostgreSQL 16": ends(16_00_09, false), "is a standby": ends(18_00_00, true)} {
		err := refusing.CheckPair()
		require.ErrorContains(t, err, text)
		require.Equal(t, Refused, ClassOf(err))
		require.Contains(t, HintOf(err), "without --failover")
		refusing.Options.Failover = false
		require.NoError(t, refusing.CheckPair())
	}

	// A copy is one for good on the server that was promoted.
	copied := &source.Slot{Name: "s", Type: "logical", Plugin: "pgoutput", Database: "d", Failover: true, Synced: true}
	require.NoError(t, ends(18_00_00, false).usable(copied))
	err := ends(18_00_00, true).usable(copied)
	require.ErrorContains(t, err, "the copy that a standby keeps")
	require.Equal(t, Refused, ClassOf(err))

	for _, reason := range []string{"rows_removed", "wal_level_insufficient", "wal_removed", "idle_timeout"} {
		copied.InvalidationReason = reason
		err := ends(18_00_00, false).usable(copied)
		require.Equal(t, SlotLost, ClassOf(err))
		require.ErrorContains(t, err, reason+": ")
	}
}
