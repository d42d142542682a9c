package operate

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
	"pgapply/operate/verify"
)

func (b *bed) verifyOptions() VerifyOptions {
	options := DefaultVerifyOptions()
	options.Endpoints = b.ends
	return options
}

// published is a subscription without a runner, of table t, and u which is not ready.
func (b *bed) published() *state.Store {
	b.both(`create table t (id int primary key, a text)`, `create table u (id int primary key)`, `insert into t select i, 'row ' || i from generate_series(1, 1000) i`)
	pgtest.Exec(b.t, b.source, `create publication p for table t, u`)
	store := b.complete()
	require.NoError(b.t, store.RegisterTables(b.t.Context(), []state.Table{{Member: state.Member{Schema: "public", Name: "u"}, State: state.TableDataSync}}))
	return store
}

func TestVerifyTellsWhatDiffers(t *testing.T) {
	b := sharedBed(t)
	b.published()
	v, err := Verify(t.Context(), b.verifyOptions())
	require.NoError(t, err)
	require.NoError(t, v.Err())
	require.Contains(t, v.Text(), "not ready, and not compared: public.u (copying)\n1 of 1 table equal; 1,000 rows compared in ")

	pgtest.Exec(t, b.target, `delete from t where id in (3, 4)`, `insert into t values (-1)`, `update t set a = 'it''s' where id = 9`)
	options := b.verifyOptions()
	options.Limit, options.Repair = 3, RepairPrint
	v, err = Verify(t.Context(), options)
	require.NoError(t, err)
	require.True(t, Different(v.Err()))
	require.EqualError(t, v.Err(), "publisher and target differ: 4 rows in 1 table")
	v.Seconds, v.Tables[0].Seconds = 2, 1
	golden(t, "verify.txt", v.Text())
	golden(t, "verify.sql", v.Script())
	text, err := json.MarshalIndent(v, "", "  ")
	require.NoError(t, err)
	golden(t, "verify.json", string(text)+"\n")
}

func TestVerifyRefuses(t *testing.T) {
	b := sharedBed(t)
	_, err := Verify(t.Context(), b.verifyOptions())
	requireClass(t, err, apply.Refused, `knows no subscription "orders"`)
	b.published()
	refuses := func(class apply.Class, change func(*VerifyOptions), parts ...string) {
		t.Helper()
		options := b.verifyOptions()
		change(&options)
		_, err := Verify(t.Context(), options)
		requireClass(t, err, class, parts...)
	}
	refuses(apply.Refused, func(o *VerifyOptions) { o.Tables.Include = []string{"*", "nowhere"} }, `no such table: "nowhere"`, "--table")
	refuses(apply.Refused, func(o *VerifyOptions) { o.Tables.Exclude = []string{"*"} }, "--exclude-table")
	refuses(apply.Refused, func(o *VerifyOptions) { o.Tables.Include = []string{"u"} }, "none of them is ready")
	refuses(apply.Refused, func(o *VerifyOptions) { o.Source = pgtest.Database(t, b.publisher) }, "--source is database")
	refuses(apply.Refused, func(o *VerifyOptions) { o.Repair = RepairApply }, "not confirmed", "--yes")
	refuses(apply.Refused, func(o *VerifyOptions) { o.Repair, o.Confirmed = RepairApply, true }, "no runner applies", "`pgapply run`")
	refuses(apply.Configuration, func(o *VerifyOptions) { o.Jobs, o.Sample, o.Limit, o.Repair = 0, 3, -1, "often" }, "--jobs", "--sample", "--limit", `"often"`)
	refuses(apply.Source, func(o *VerifyOptions) { o.Source = nowhere(t) })
	pgtest.Exec(t, b.source, `drop publication p`)
	refuses(apply.Refused, func(*VerifyOptions) {}, `no publication "p"`)
}

func TestVerificationSaysWhatItDoesNotKnow(t *testing.T) {
	report := func(table verify.TableReport) *Verification {
		return &Verification{Report: &verify.Report{
			Tables: []verify.TableReport{table}, Sample: 1, Differing: table.Missing + table.Different, Unsettled: table.Unsettled,
			Unexamined: table.Unexamined, Repaired: table.Repaired, Spared: table.Spared,
		}}
	}
	v := report(verify.TableReport{Table: "t", Unsettled: 2, Behind: "it is behind"})
	requireClass(t, v.Err(), apply.Other, "whether 2 rows are equal is not known", "pgapply status")
	require.Contains(t, v.Text(), "    2 rows: it is behind\n0 of 1 table equal")
	v = report(verify.TableReport{Table: "t", Unexamined: 5000, Missing: 2, Repaired: 1, Spared: 1})
	require.EqualError(t, v.Err(), "publisher and target differ: 2 rows (1 repaired, 1 equal by then), and chunks with 5,000 rows more in 1 table")
	require.NoError(t, report(verify.TableReport{Table: "t", Different: 3, Repaired: 2, Spared: 1}).Err())
	v = report(verify.TableReport{Table: "t", Error: "it is none"})
	v.NotCompared = 1
	requireClass(t, v.Err(), apply.Refused, "1 table could not be compared")
	require.Contains(t, v.Text(), "    not compared: it is none\n")
}

func TestFollowerTakesTheBestOfWhatIsKnown(t *testing.T) {
	b := sharedBed(t)
	store := b.complete()
	f := &follower{store: store}
	_, follows, err := f.Applied(t.Context())
	require.NoError(t, err)
	require.False(t, follows)
	runner := b.store("orders")
	_, err = runner.TryLock(t.Context())
	require.NoError(t, err)
	applied := func() lsn.LSN {
		position, follows, err := f.Applied(t.Context())
		require.NoError(t, err)
		require.True(t, follows)
		return position
	}
	require.Zero(t, applied())
	pgtest.Exec(t, b.target, `insert into pgapply.progress (subscription, position) values ('orders', '0/20'), ('other', '0/99')`)
	require.Equal(t, lsn.LSN(0x20), applied())
	require.NoError(t, runner.StartRunner(t.Context(), state.Runner{PID: 1, Host: "here"}))
	require.NoError(t, runner.WriteStatus(t.Context(), &state.Status{Applied: 0x30}))
	require.Equal(t, lsn.LSN(0x30), applied())
}

func TestVerifyLine(t *testing.T) {
	require.Equal(t, "looks at the tables", VerifyLine(verify.State{}))
	require.Equal(t, "25% in 4.0s; 1 of 2 tables; 2,000 rows read, 500/s; public.t",
		VerifyLine(verify.State{Tables: 2, Done: 1, Rows: 2000, Elapsed: 4 * time.Second, Share: 0.25, Running: "public.t"}))
}
