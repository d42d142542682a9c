package operate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/apply/target"
	"pgapply/decoder"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

func TestSkip(t *testing.T) {
	ctx := t.Context()
	b := sharedBed(t)
	store := b.complete()
	skip := func(position lsn.LSN) string {
		t.Helper()
		s, err := Skip(ctx, b.ends, position)
		require.NoError(t, err)
		return s.Text()
	}
	recorded := func() string {
		return pgtest.Query(t, b.target, `select skip_lsn from pgapply.subscription`)
	}
	failing := &target.TransactionError{XID: 7, EndLSN: 0x16_B374D848, Operation: 'I', Relation: "public.t", Err: fmt.Errorf("duplicate\nkey")}
	require.NoError(t, store.SetError(ctx, failing.Error(), "mend it"))

	require.Equal(t, "subscription \"orders\" had no transaction to skip\n", skip(0))
	require.Equal(t, "subscription \"orders\" will skip the transaction that finishes at 16/B374D848; what changes it has go to `pgapply conflicts --name orders`\n"+
		"it is the one that fails: apply INSERT on public.t in transaction 7, finished at 16/B374D848: duplicate key\n"+
		"no runner lives: start one with `pgapply run --name orders`\n", skip(failing.EndLSN))
	require.Equal(t, "16/B374D848", recorded())
	require.Contains(t, skip(failing.EndLSN+8), "finishes at 16/B374D850, and no longer the one at 16/B374D848; what changes")
	require.Contains(t, skip(failing.EndLSN+8), "attention: the one that fails finishes at 16/B374D848: apply INSERT")
	require.Equal(t, "16/B374D850", recorded())
	require.Equal(t, "the transaction that finishes at 16/B374D850 will not be skipped\n", skip(0))
	require.Empty(t, recorded())

	require.NoError(t, store.SetError(ctx, "", ""))
	_, err := store.Pause(ctx, "maintenance")
	require.NoError(t, err)
	require.Contains(t, skip(9), "no failing transaction is known")
	require.Regexp(t, "the subscription is paused since .*: maintenance: `pgapply resume --name orders` lets it go on\n$", skip(9))
}

// The position is taken from an error's text.
func TestFinishOfAnApplyError(t *testing.T) {
	failing := &target.TransactionError{XID: 7, EndLSN: 0xFFFFFFFF_0000000A, Operation: decoder.Type('U'), Relation: "a.b", Err: fmt.Errorf("finished at 1/1")}
	require.Equal(t, failing.EndLSN, finishOf(failing.Error()))
	for _, text := range []string{"", "broken", "finished at noon", "finished at 123456789/1"} {
		require.Zero(t, finishOf(text), text)
	}
}

func TestSkipRefusesWhatIsApplied(t *testing.T) {
	ctx := t.Context()
	b := sharedBed(t)
	store := b.complete()
	refuses := func(position lsn.LSN, upTo string) {
		t.Helper()
		_, err := Skip(ctx, b.ends, position)
		requireClass(t, err, apply.Refused, "finishes at "+position.String(), "everything up to "+upTo+" is applied", "finished at")
		require.Empty(t, pgtest.Query(t, b.target, `select skip_lsn from pgapply.subscription`))
	}
	accepts := func(position lsn.LSN) {
		t.Helper()
		for _, set := range []lsn.LSN{position, 0} {
			_, err := Skip(ctx, b.ends, set)
			require.NoError(t, err)
		}
	}
	refuses(1, "0/1") // the consistent point
	accepts(2)
	require.NoError(t, store.Acknowledge(ctx, 0x20))
	refuses(0x20, "0/20")
	accepts(0x21)
	pgtest.Exec(t, b.target, `insert into pgapply.progress select 'orders', p from unnest('{0/40,0/50}'::pg_lsn[]) p`, `insert into pgapply.progress values ('other', '0/60')`)
	refuses(0x50, "0/50")
	accepts(0x51)
}

func TestSkipOfTheUnknown(t *testing.T) {
	b := sharedBed(t)
	require.NoError(t, b.store("other").AdoptSlot(t.Context(), b.subscription(), 1))
	_, err := Skip(t.Context(), b.ends, 5)
	requireClass(t, err, apply.Refused, `knows no subscription "orders", only "other"`)
	b.startRunner(b.store("orders"))
	_, err = Skip(t.Context(), b.ends, 5)
	requireClass(t, err, apply.Refused, `knows no subscription "orders"`)
}

func TestSkipWhileARunnerLives(t *testing.T) {
	b := sharedBed(t)
	store := b.live(state.Retrying)
	failing := &target.TransactionError{XID: 7, EndLSN: 99, Err: fmt.Errorf("broken")}
	require.NoError(t, store.WriteStatus(t.Context(), &state.Status{Phase: state.Retrying, LastError: failing.Error()}))
	s, err := Skip(t.Context(), b.ends, 99)
	require.NoError(t, err)
	require.Equal(t, "subscription \"orders\" will skip the transaction that finishes at 0/63; what changes it has go to `pgapply conflicts --name orders`\n"+
		"it is the one that fails: apply transaction 7, finished at 0/63: broken\n", s.Text())
}
