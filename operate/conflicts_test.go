package operate

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/conflict"
	"pgapply/internal/pgtest"
)

func exampleConflict() *state.RecordedConflict {
	at := time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC)
	return &state.RecordedConflict{
		ID: 12, At: at, Operation: "UPDATE",
		Conflict: conflict.Conflict{
			Type: conflict.MultipleUnique, Schema: "public", Table: "orders", RemoteXID: 4242, FinishLSN: 0x16_B374D848,
			RemoteTime: at.Add(-time.Second), RemoteOrigin: "third",
			ReplicaIdentity: []byte(`{"id": "1"}`), RemoteTuple: []byte(`{"id": "1", "email": "a\\nb"}`),
			Local: []conflict.Local{
				{Table: "public.orders_1", XID: "5000000000", CommitTime: &at, Origin: "fourth", Index: "orders_email_key", Key: []byte(`{"email": "x"}`), Tuple: []byte(`{"id": "2"}`)},
				{XID: "77", CommitTime: &at, Index: "orders_pkey", Tuple: []byte(`{"id": "1"}`)},
				{XID: "78", Tuple: []byte(`{"id": "3"}`)},
			},
			Policy: conflict.LastUpdateWins, Resolution: conflict.Kept,
		},
	}
}

func exampleList() *ConflictList {
	example := exampleConflict()
	short := &state.RecordedConflict{ID: 3, At: example.At, Conflict: conflict.Conflict{
		Type: conflict.UpdateMissing, Schema: "s", Table: "t", RemoteXID: 7, FinishLSN: 0x20, Policy: conflict.Skip, Resolution: conflict.Skipped,
	}}
	example.ReplicaIdentity, example.RemoteTuple, example.Local = nil, nil, nil
	return &ConflictList{Conflicts: []ConflictView{newConflictView(example), newConflictView(short)}, More: true}
}

func TestConflictsAsText(t *testing.T) {
	view := newConflictView(exampleConflict())
	golden(t, "conflict.txt", view.Text())
	golden(t, "conflicts.txt", exampleList().Text())
	require.Equal(t, "no conflicts recorded\n", (&ConflictList{}).Text())
}

// The names are read by scripts.
func TestConflictsAsJSON(t *testing.T) {
	view := newConflictView(exampleConflict())
	for file, value := range map[string]any{"conflict.json": view, "conflicts.json": exampleList()} {
		text, err := json.MarshalIndent(value, "", "\t")
		require.NoError(t, err)
		golden(t, file, string(text)+"\n")
	}
}

func TestConflictsAreListedShownAndCleared(t *testing.T) {
	ctx := t.Context()
	b := sharedBed(t)
	store := b.complete()
	b.ends.Source = ""
	var ids []int64
	for _, table := range []string{"a", "b", "a"} {
		c := exampleConflict().Conflict
		c.Table = table
		id, _, err := store.RecordConflict(ctx, c)
		require.NoError(t, err)
		ids = append(ids, id)
	}
	list := func(filter state.ConflictFilter) (found []int64, more bool) {
		l, err := ListConflicts(ctx, b.ends, filter)
		require.NoError(t, err)
		for _, c := range l.Conflicts {
			require.Nil(t, c.RemoteTuple)
			found = append(found, c.ID)
		}
		return found, l.More
	}
	found, more := list(state.ConflictFilter{})
	require.Equal(t, []int64{ids[2], ids[1], ids[0]}, found)
	require.False(t, more)
	found, more = list(state.ConflictFilter{Limit: 2})
	require.Equal(t, []int64{ids[2], ids[1]}, found)
	require.True(t, more)
	found, more = list(state.ConflictFilter{Limit: 2, Table: "public.a"})
	require.Equal(t, []int64{ids[2], ids[0]}, found)
	require.False(t, more)

	none, err := ListConflicts(ctx, b.ends, state.ConflictFilter{Table: "c"})
	require.NoError(t, err)
	require.Equal(t, "no conflicts match\n", none.Text())
	require.Equal(t, "no conflicts recorded\n", (&ConflictList{}).Text())

	one, err := ShowConflict(ctx, b.ends, ids[1])
	require.NoError(t, err)
	require.Equal(t, "b", one.Table)
	require.JSONEq(t, `{"id": "1", "email": "a\\nb"}`, string(one.RemoteTuple))
	require.Len(t, one.Local, 3)
	_, err = ShowConflict(ctx, b.ends, 1<<40)
	requireClass(t, err, apply.Refused, "no recorded conflict 1099511627776", "conflicts list")

	report, err := ReadStatus(ctx, b.ends)
	require.NoError(t, err)
	require.EqualValues(t, 3, report.Conflicts.Total)

	options := ClearOptions{Endpoints: b.ends, Filter: state.ConflictFilter{Table: "a"}}
	number, err := ClearConflicts(ctx, options)
	requireClass(t, err, apply.Refused, "the deletion of 2 recorded conflicts is not confirmed", "--yes")
	require.EqualValues(t, 2, number)
	options.Confirmed = true
	number, err = ClearConflicts(ctx, options)
	require.NoError(t, err)
	require.EqualValues(t, 2, number)
	number, err = ClearConflicts(ctx, options)
	require.NoError(t, err)
	require.Zero(t, number)
	require.Equal(t, "b", pgtest.Query(t, b.target, `select relname from pgapply.conflict`))

	removal, err := b.cleanup(unconfirmed, keepSlot)
	require.Error(t, err)
	require.Contains(t, removal.Plan(), "(1 table, 1 recorded conflict)")
}

func TestConflictsOfTheUnknown(t *testing.T) {
	b := sharedBed(t)
	require.NoError(t, b.store("other").AdoptSlot(t.Context(), b.subscription(), 1))
	_, err := ListConflicts(t.Context(), b.ends, state.ConflictFilter{})
	requireClass(t, err, apply.Refused, `knows no subscription "orders", only "other"`)
	_, err = ClearConflicts(t.Context(), ClearOptions{Endpoints: b.ends})
	requireClass(t, err, apply.Refused, `knows no subscription "orders", only "other"`)
}
