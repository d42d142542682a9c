package operate

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/pgtest"
)

func (b *bed) cutoverOptions() CutoverOptions {
	options := DefaultCutoverOptions()
	options.Endpoints = b.ends
	// Names of slots are the cluster's, which tests share.
	options.ReverseName = b.slot + "_reverse"
	return options
}

// streams makes the subscription of table t look as if a runner applied all there is.
func (b *bed) streams() *state.Store {
	b.both(`create table t (id int primary key)`, `insert into t values (1)`)
	pgtest.Exec(b.t, b.source, `create publication p for table t`)
	pgtest.Exec(b.t, b.target, `analyze t`)
	store := b.complete()
	_, err := store.TryLock(b.t.Context())
	require.NoError(b.t, err)
	require.NoError(b.t, store.WriteStatus(b.t.Context(), &state.Status{Subscription: "orders", Phase: state.Streaming, Applied: 1 << 62}))
	return store
}

func (b *bed) safe(change func(*CutoverOptions)) *CutoverReport {
	b.t.Helper()
	options := b.cutoverOptions()
	options.DryRun, options.SetReadOnly, options.Reverse = true, true, true
	if change != nil {
		change(&options)
	}
	report, err := Cutover(b.t.Context(), options)
	require.NotNil(b.t, report, "%v", err)
	if report.Safe {
		require.NoError(b.t, err)
	} else {
		requireClass(b.t, err, apply.Refused, "is not safe now")
	}
	return report
}

func TestCutoverIsSafe(t *testing.T) {
	b := sharedBed(t)
	b.streams()
	report := b.safe(nil)
	require.True(t, report.Safe, report.Reasons)
	require.Contains(t, report.Text(), "0 errors, 0 warnings, ")
	require.True(t, strings.HasSuffix(report.Text(), "safe now: yes\n"))
	require.Empty(t, report.Steps)
	require.Equal(t, "f|0", pgtest.Query(t, b.target, `select exists (select from pg_publication), count(*) from pg_replication_slots where database = current_database()`), "a dry run changes nothing")
}

func TestCutoverIsNotSafe(t *testing.T) {
	b := sharedBed(t)
	store := b.streams()
	ctx := t.Context()
	require.NoError(t, store.WriteStatus(ctx, &state.Status{Phase: state.Streaming}))
	require.NoError(t, store.RegisterTables(ctx, []state.Table{{Member: state.Member{Schema: "public", Name: "u"}, State: state.TableInit}}))
	pgtest.Exec(t, b.source, `create table filler as select generate_series(1, 100)`, `create table late (id int)`, `alter publication p add table late`, `create sequence lone`)
	pgtest.Exec(t, b.target, `drop table t`, `create table t (id int)`, `insert into t values (1)`, `select pg_create_physical_replication_slot('`+b.slot+`_reverse')`,
		`do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$`)
	t.Cleanup(func() { pgtest.Exec(t, b.target, `select pg_drop_replication_slot('`+b.slot+`_reverse')`) })
	report := b.safe(func(o *CutoverOptions) { o.MaxLag = 1 })
	reasons := strings.Join(report.Reasons, "\n")
	for _, says := range []string{
		"more than --max-lag 1 B", "it is initializing", "not part of the subscription", "1 table without statistics on the target: public.t", "the target has no such sequence",
		"its database is read-only", "1 table without a replica identity on the target", "the target has another slot",
	} {
		require.Contains(t, reasons, says)
	}
	require.Len(t, report.Reasons, 8, reasons)
	require.Contains(t, report.Text(), "safe now: no\n  because ")
	require.Contains(t, report.Text(), "  because public.late: it is published, and not part of the subscription\n")
}

func TestCutoverNeedsARunnerAndRights(t *testing.T) {
	b := sharedBed(t)
	store := b.streams()
	ctx := t.Context()
	because := func(says string) {
		t.Helper()
		require.Contains(t, strings.Join(b.safe(nil).Reasons, "\n"), says)
	}
	require.NoError(t, store.WriteStatus(ctx, &state.Status{Phase: state.Retrying, LastError: "it fails"}))
	because("it fails")
	require.NoError(t, store.WriteStatus(ctx, &state.Status{Phase: state.Starting}))
	because("does not stream yet")
	_, err := store.Pause(ctx, "lunch")
	require.NoError(t, err)
	because("paused since")
	require.NoError(t, store.Unlock(ctx))
	because("no runner lives")
	pgtest.Exec(t, b.source, `create role `+b.slot+` login replication`)
	t.Cleanup(func() { pgtest.Exec(t, b.source, `drop role `+b.slot) })
	b.ends.Source = as(t, b.source, b.slot)
	because("may not make database")
}

func TestCutoverWarns(t *testing.T) {
	b := sharedBed(t)
	b.streams()
	pgtest.Exec(t, b.source, `create table alone (id int)`, `select lo_create(0)`)
	text := b.safe(func(o *CutoverOptions) { o.SetReadOnly, o.Sequences = false, Nothing }).Text()
	for _, says := range []string{"not replicated are 1 table of the database: public.alone", "large objects", "whoever confirms", "by --sequences none"} {
		require.Contains(t, text, says)
	}
}

func TestCutoverNamesMaterializedViews(t *testing.T) {
	b := sharedBed(t)
	b.streams()
	pgtest.Exec(t, b.target, `create materialized view "M" as select 1 with no data`, `create materialized view n as select 1`)
	text := b.safe(nil).Text()
	require.Contains(t, text, `2 materialized views on the target, which replication does not refresh: public."M", public.n`)
	require.Contains(t, text, "REFRESH MATERIALIZED VIEW")
}

// The way back meets the publisher's own publications, in which partitions are by their
// root and each has an identity of its own.
func TestCutoverFindsTablesThatThePublisherWouldNotUpdate(t *testing.T) {
	b := sharedBed(t)
	store := b.streams()
	b.both(`create table nokey (a int)`, `create table root (a int) partition by list (a)`, `create table leaf partition of root for values in (1)`)
	b.both(`create table other (a int)`, `create table mended (a int)`, `create table inserted (a int)`)
	pgtest.Exec(t, b.source, `alter table mended replica identity full`, `create publication all_of_it for table nokey, root, other, mended with (publish_via_partition_root = true)`,
		`create publication i for table inserted with (publish = 'insert')`)
	pgtest.Exec(t, b.target, `alter table nokey replica identity full`, `alter table mended replica identity full`, `alter table root replica identity full`,
		`alter table leaf replica identity full`, `alter table inserted replica identity full`, `analyze`)
	var tables []state.Table
	for _, name := range []string{"nokey", "root", "mended", "inserted"} {
		tables = append(tables, state.Table{Member: state.Member{Schema: "public", Name: name}, State: state.TableReady})
	}
	require.NoError(t, store.RegisterTables(t.Context(), tables))
	report := b.safe(nil)
	require.Len(t, report.Reasons, 1, report.Reasons)
	require.Contains(t, report.Reasons[0], "2 tables without a replica identity on the publisher")
	require.Contains(t, report.Reasons[0], ": public.leaf, public.nokey")
	require.Contains(t, report.Text(), "on the publisher and on the target alike: ALTER TABLE")

	pgtest.Exec(t, b.source, `alter table nokey replica identity full`, `alter table leaf replica identity full`)
	pgtest.Exec(t, b.target, `alter table leaf replica identity default`)
	report = b.safe(nil)
	require.Len(t, report.Reasons, 1, report.Reasons)
	require.Contains(t, report.Reasons[0], "1 table without a replica identity on the target, whose updates and deletes would fail once they are published: public.leaf")
}

func TestCutoverAsks(t *testing.T) {
	b := sharedBed(t)
	b.streams()
	var asked []string
	options := b.cutoverOptions()
	options.Confirm = func(q Question) bool { asked = append(asked, q.Word); return q.Word == "orders" }
	report, err := Cutover(t.Context(), options)
	requireClass(t, err, apply.Refused, "that writes have stopped is not confirmed")
	require.Equal(t, []string{"orders", "stopped"}, asked)
	require.False(t, report.Done)
	options.Confirm = nil
	_, err = Cutover(t.Context(), options)
	requireClass(t, err, apply.Refused, "is not confirmed", "--yes")
}

func TestCutoverOptionsThatCannotBe(t *testing.T) {
	options := CutoverOptions{Endpoints: Endpoints{Name: "x"}, MaxLag: -1, Sequences: "some", Verify: "most", Reverse: true, ReverseName: "A"}
	_, err := Cutover(t.Context(), options)
	requireClass(t, err, apply.Configuration, "--max-lag", "--jobs", `"some"`, `"most"`, `"A"`)
}

func TestStepIsALine(t *testing.T) {
	require.Equal(t, "2026-01-02T03:04:05.678Z  drained    a b", Step{At: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC), Step: "drained", Text: "a\nb"}.String())
}

// What is applied after the last change was applied comes from somebody who still writes.
func TestCutoverRefusesWhereWritesWentOn(t *testing.T) {
	b := sharedBed(t)
	b.streams()
	options := b.cutoverOptions()
	options.Sequences, options.Verify = Nothing, Nothing
	options.Confirm = func(Question) bool { return true }
	options.Tell = func(s Step) {
		if s.Step == "drained" {
			pgtest.Exec(t, b.target, `insert into pgapply.progress (subscription, position) values ('orders', '0/20')`)
		}
	}
	report, err := Cutover(t.Context(), options)
	requireClass(t, err, apply.Refused, "writes went on on the publisher: a transaction that ended at 0/20", "--set-read-only")
	require.False(t, report.Done)
	require.Equal(t, []string{"the subscription goes on; to try again: pgapply cutover"}, report.Undo)
	require.Equal(t, "t", pgtest.Query(t, b.target, `select enabled from pgapply.subscription`))
}

// A subscription that was cut over has nothing left to do, however often one asks.
func TestCutoverThatIsDone(t *testing.T) {
	b := sharedBed(t)
	store := b.streams()
	_, err := store.Pause(t.Context(), "cut over at 0/10 of the publisher")
	require.NoError(t, err)
	report, err := Cutover(t.Context(), b.cutoverOptions())
	require.NoError(t, err)
	require.True(t, report.Done)
	require.Contains(t, report.Steps[0].Text, "cut over at 0/10 of the publisher at 2")
	require.Contains(t, report.Text(), "next: point the applications to the target\n")
}
