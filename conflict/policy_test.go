package conflict

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDefaultsAreNative(t *testing.T) {
	var p Policies
	for typ, policy := range map[Type]Policy{
		InsertExists: Error, UpdateExists: Error, MultipleUnique: Error,
		UpdateMissing: Skip, DeleteMissing: Skip, UpdateDeleted: Skip,
		UpdateOriginDiffers: ApplyRemote, DeleteOriginDiffers: ApplyRemote,
	} {
		require.Equal(t, policy, p.For("s", "t", typ), typ)
	}
	require.Len(t, Types(), 8)
	require.Empty(t, p.Strings())
	require.False(t, p.Uses(LastUpdateWins))
}

func TestSet(t *testing.T) {
	var p Policies
	require.NoError(t, p.Set("insert_exists=last_update_wins"))
	require.NoError(t, p.Set("public.t:x:insert_exists=keep_local"))
	require.Equal(t, LastUpdateWins, p.For("public", "other", InsertExists))
	require.Equal(t, KeepLocal, p.For("public", "t:x", InsertExists))
	require.Equal(t, Error, p.For("public", "t:x", UpdateExists))
	require.True(t, p.Uses(LastUpdateWins))
	require.True(t, p.Uses(KeepLocal))
	require.False(t, p.Uses(ApplyRemote))
	require.Equal(t, []string{"insert_exists=last_update_wins", "public.t:x:insert_exists=keep_local"}, p.Strings())
	for text, says := range map[string]string{
		"insert_exists":             "TYPE=POLICY",
		"nonsense=error":            "insert_exists, update_exists",
		"delete_missing=keep_local": "skip, error",
		"update_missing=nonsense":   "skip, error, apply_remote",
		"t:insert_exists=error":     "public.t",
	} {
		require.ErrorContains(t, p.Set(text), says)
	}
}

func TestDecide(t *testing.T) {
	at := func(second int, node string) Stamp { return Stamp{time.Unix(int64(second), 0), node} }
	for _, c := range []struct {
		policy Policy
		remote Stamp
		local  []Stamp
		want   Resolution
	}{
		{Error, at(2, "a"), []Stamp{at(1, "b")}, Failed},
		{ApplyRemote, at(1, "a"), []Stamp{at(2, "b")}, Applied},
		{KeepLocal, at(2, "a"), []Stamp{at(1, "b")}, Kept},
		{Skip, at(1, "a"), nil, Skipped},
		{LastUpdateWins, at(2, "a"), []Stamp{at(1, "b")}, Applied},
		{LastUpdateWins, at(1, "a"), []Stamp{at(2, "b")}, Kept},
		{LastUpdateWins, at(2, "a"), []Stamp{at(1, "b"), at(3, "b")}, Kept},
		{LastUpdateWins, at(1, "b"), []Stamp{at(1, "a")}, Applied},
		{LastUpdateWins, at(1, "a"), []Stamp{at(1, "b")}, Kept},
		{LastUpdateWins, at(1, "a"), nil, Applied},
	} {
		require.Equal(t, c.want, Decide(c.policy, c.remote, c.local), "%v", c)
	}
}

// TestNodesAgree: two nodes that get each other's change for one row keep the same one.
func TestNodesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label, node string) Stamp {
			return Stamp{time.Unix(rapid.Int64Range(0, 3).Draw(t, label), 0), node}
		}
		a, b := draw("a", "1"), draw("b", "2")
		onA, onB := Decide(LastUpdateWins, b, []Stamp{a}), Decide(LastUpdateWins, a, []Stamp{b})
		if (onA == Applied) == (onB == Applied) {
			t.Fatalf("node 1 %s the change of node 2, and node 2 %s that of node 1", onA, onB)
		}
	})
}
