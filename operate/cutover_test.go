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
	for _, test := range []struct {
		name    string
		breaks  func(*bed, *state.Store)
		options func(*CutoverOptions)
		says    string
	}{
		{"no runner", func(b *bed, s *state.Store) { require.NoError(b.t, s.Unlock(b.t.Context())) }, nil, "no runner lives"},
		{"runner retries", func(b *bed, s *state.Store) {
			require.NoError(b.t, s.WriteStatus(b.t.Context(), &state.Status{Phase: state.Retrying, LastError: "it fails"}))
		}, nil, "it fails"},
		{"runner starts", func(b *bed, s *state.Store) {
			require.NoError(b.t, s.WriteStatus(b.t.Context(), &state.Status{Phase: state.Starting}))
		}, nil, "does not stream yet"},
		{"paused", func(b *bed, s *state.Store) { _, err := s.Pause(b.t.Context(), "lunch"); require.NoError(b.t, err) }, nil, "paused since"},
		{"lag", func(b *bed, s *state.Store) {
			require.NoError(b.t, s.WriteStatus(b.t.Context(), &state.Status{Phase: state.Streaming}))
			pgtest.Exec(b.t, b.source, `create table filler as select generate_series(1, 100)`)
		}, func(o *CutoverOptions) { o.MaxLag = 1 }, "more than --max-lag 1 B"},
		{"table not ready", func(b *bed, s *state.Store) {
			require.NoError(b.t, s.RegisterTables(b.t.Context(), []state.Table{{Member: state.Member{Schema: "public", Name: "u"}, State: state.TableInit}}))
		}, nil, "it is initializing"},
		{"table not taken in", func(b *bed, _ *state.Store) {
			pgtest.Exec(b.t, b.source, `create table late (id int)`, `alter publication p add table late`)
		}, nil, "not part of the subscription"},
		{"no statistics", func(b *bed, _ *state.Store) {
			pgtest.Exec(b.t, b.target, `drop table t`, `create table t (id int primary key)`, `insert into t values (1)`)
		}, nil, "1 table without statistics on the target: public.t"},
		{"sequence", func(b *bed, _ *state.Store) { pgtest.Exec(b.t, b.source, `create sequence lone`) }, nil, "the target has no such sequence"},
		{"target is read-only", func(b *bed, _ *state.Store) {
			pgtest.Exec(b.t, b.target, `do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$`)
		}, nil, "its database is read-only"},
		{"no identity", func(b *bed, _ *state.Store) { pgtest.Exec(b.t, b.target, `alter table t drop constraint t_pkey`) }, nil, "without a replica identity on the target"},
		{"a slot of another kind", func(b *bed, _ *state.Store) {
			pgtest.Exec(b.t, b.target, `select pg_create_physical_replication_slot('`+b.slot+`_reverse')`)
			b.t.Cleanup(func() { pgtest.Exec(b.t, b.target, `select pg_drop_replication_slot('`+b.slot+`_reverse')`) })
		}, nil, "the target has another slot"},
		{"rights", func(b *bed, _ *state.Store) {
			pgtest.Exec(b.t, b.source, `create role `+b.slot+` login replication`)
			b.t.Cleanup(func() { pgtest.Exec(b.t, b.source, `drop role `+b.slot) })
			b.ends.Source = as(b.t, b.source, b.slot)
		}, func(o *CutoverOptions) { o.Sequences = Nothing }, "may not make database"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := sharedBed(t)
			test.breaks(b, b.streams())
			report := b.safe(test.options)
			require.False(t, report.Safe)
			require.Contains(t, strings.Join(report.Reasons, "\n"), test.says)
			require.Contains(t, report.Text(), "safe now: no\n  because ")
		})
	}
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
