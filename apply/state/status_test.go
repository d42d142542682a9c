package state

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"pgapply/conflict"
)

// full is a status without a zero field.
func full() *Status {
	at := time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC)
	return &Status{
		Subscription: "orders", Phase: Streaming, Since: at, UpdatedAt: at.Add(time.Minute), WaitingFor: "slot",
		Publisher: Publisher{Version: 180004, SystemID: "7713713780499195838", Timeline: 2, Database: "shop"},
		Stream: StreamOptions{
			Slot: "orders", Publications: []string{"p1", "p2"}, Protocol: 4, Streaming: "parallel", TwoPhase: true, Binary: true, Origin: "any",
			Progress: InTable, Fires: true,
		},
		Received: 0x16B374D8, Applied: 0x16B374D7, Flushed: 0x16B374D6, Acknowledged: 0x16B374D5,
		LagBytes: 1, LagSeconds: 2.5, LastCommitTime: &at, OldestCommitTime: &at,
		Transactions: 3, Groups: 4, Rows: Rows{Inserted: 5, Updated: 6, Deleted: 7, Truncated: 8}, Misses: Misses{Update: 9, Delete: 10},
		Conflicts: map[conflict.Type]int64{conflict.InsertExists: 18}, Messages: 19, Retries: 11,
		MemoryBytes: 12, MemoryLimit: 13, SpoolBytes: 14, SpoolLimit: 15, OpenStreams: 16, TargetSilentSince: &at,
		LastError: "broken", LastErrorHint: "mend it", LastErrorAt: &at,
		Tables: map[string]int{"r": 17},
	}
}

// The names are read by scripts and by other versions of this program.
func TestStatusJSONIsStable(t *testing.T) {
	got, err := json.MarshalIndent(full(), "", "\t")
	require.NoError(t, err)
	want, err := os.ReadFile("testdata/status.json")
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(string(want), string(got)+"\n"))
	var back Status
	require.NoError(t, json.Unmarshal(want, &back))
	require.Empty(t, cmp.Diff(full(), &back))
}

func TestLag(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	commit, future := now.Add(-90*time.Second), now.Add(time.Second)
	for name, test := range map[string]struct {
		received, applied Position
		commit            *time.Time
		bytes             int64
		seconds           float64
	}{
		"level":             {100, 100, &commit, 0, 0},
		"behind":            {300, 100, &commit, 200, 90},
		"nothing committed": {300, 0, nil, 300, 0},
		"clocks differ":     {300, 100, &future, 200, 0},
		"filtered to here":  {100, 300, &commit, 0, 0},
	} {
		status := Status{Received: test.received, Applied: test.applied, OldestCommitTime: test.commit, LagBytes: 7, LagSeconds: 7}
		status.SetLag(now)
		require.Equal(t, test.bytes, status.LagBytes, name)
		require.InDelta(t, test.seconds, status.LagSeconds, 0.001, name)
	}
}

func TestPositionSurvivesJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		position := Position(rapid.Uint64().Draw(t, "position"))
		text, err := json.Marshal(position)
		require.NoError(t, err)
		var back Position
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, position, back)
	})
	var position Position
	require.Error(t, json.Unmarshal([]byte(`"16/B374D848junk"`), &position))
}
