package operate

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/conflict"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
	"pgapply/internal/source"
)

// TestRunnerLiveness plays every combination of lock and row.
func TestRunnerLiveness(t *testing.T) {
	holder := &state.Holder{PID: 99, ApplicationName: "pgapply:orders:control"}
	row := func(age time.Duration) *state.Runner {
		return &state.Runner{PID: 4242, Host: "here", Version: "1.0", HeartbeatAge: age}
	}
	for name, test := range map[string]struct {
		holder  *state.Holder
		runner  *state.Runner
		alive   bool
		problem string
	}{
		"alive":    {holder, row(12 * time.Second), true, ""},
		"starting": {holder, nil, true, "a runner is starting"},
		"hangs": {
			holder, row(95 * time.Second), false,
			"the runner hangs: process 4242 on here gave no sign of life for 1m35s, and the runner lock is held by server process 99 (pgapply:orders:control)",
		},
		"killed":       {nil, row(time.Second), false, "no runner lives: process 4242 on here ended without order, its last sign of life was 1.0s ago"},
		"long dead":    {nil, row(50 * time.Hour), false, "its last sign of life was 2d2h ago"},
		"never or end": {nil, nil, false, "no runner lives: the last one ended in order, or none was started here"},
	} {
		t.Run(name, func(t *testing.T) {
			report := newReport("orders", state.Target{}, observation{holder: test.holder, runner: test.runner})
			require.Equal(t, test.alive, report.Runner.Alive)
			if test.problem == "" {
				require.Empty(t, report.Problems)
				return
			}
			require.Len(t, report.Problems, 1)
			require.Contains(t, report.Problems[0], test.problem)
		})
	}
}

func TestLastErrorIsTheRunnersOrTheRecordedOne(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	stopped := &state.Subscription{Enabled: false, LastError: "old", LastErrorHint: "old hint", LastErrorAt: &at}
	report := newReport("orders", state.Target{}, observation{subscription: stopped})
	require.Equal(t, "old", report.LastError)
	require.False(t, report.Enabled)
	require.Contains(t, report.Problems, "the subscription is paused: `pgapply resume --name orders` lets it go on")
	report = newReport("orders", state.Target{}, observation{subscription: stopped, runner: &state.Runner{LastError: "new"}})
	require.Equal(t, "new", report.LastError)
	require.Empty(t, report.LastErrorHint)
	require.Nil(t, report.LastErrorAt)
}

// What keeps a runner that lives from applying is said where people look for trouble.
func TestStandstillsAreProblems(t *testing.T) {
	for name, test := range map[string]struct {
		status  state.Status
		problem string
	}{
		"retrying":  {state.Status{Phase: state.Retrying, LastError: "no room"}, "the runner tries again after an error: no room"},
		"next try":  {state.Status{Phase: state.Starting, LastError: "no room"}, "the runner tries again after an error: no room"},
		"waiting":   {state.Status{Phase: state.Waiting, WaitingFor: "slot s is held", LastError: "old"}, "the runner waits: slot s is held"},
		"resuming":  {state.Status{Phase: state.Paused}, "the runner is still paused: the subscription was resumed, which it has not noticed yet"},
		"starting":  {state.Status{Phase: state.Starting}, ""},
		"streaming": {state.Status{Phase: state.Streaming}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			report := newReport("orders", state.Target{}, observation{
				holder: &state.Holder{PID: 99}, runner: &state.Runner{PID: 1, LastError: test.status.LastError, Status: &test.status},
			})
			if test.problem == "" {
				require.Empty(t, report.Problems)
				return
			}
			require.Equal(t, []string{test.problem}, report.Problems)
		})
	}
}

// The last word of a runner that does not stream says nothing about what is to come.
func TestLagOfARunnerThatDoesNotStream(t *testing.T) {
	holder, commit := &state.Holder{PID: 99}, &time.Time{}
	lag := func(holder *state.Holder, phase state.Phase, publisher *PublisherView) string {
		status := &state.Status{Phase: phase, Applied: 0x2000, LagBytes: 512, LagSeconds: 3, OldestCommitTime: commit}
		report := newReport("orders", state.Target{}, observation{
			subscription: &state.Subscription{Enabled: true, AckLSN: 0x1000}, holder: holder, runner: &state.Runner{PID: 1, Status: status},
		})
		report.Publisher = publisher
		report.measureLag()
		return report.lagText(0)
	}
	publisher := func(current state.Position) *PublisherView {
		view := &PublisherView{Reachable: true, Current: current}
		view.addSlot(&source.Slot{ConfirmedFlush: 0x1800})
		return view
	}
	for _, phase := range []state.Phase{state.Starting, state.Waiting, state.Retrying, state.Paused} {
		require.Contains(t, lag(holder, phase, nil), "unknown: ")
		require.Contains(t, lag(holder, phase, &PublisherView{}), "unknown: ", "not reachable")
		require.Equal(t, "the publisher is 4.0 KiB of WAL ahead, and no runner streams", lag(holder, phase, publisher(0x3000)))
		require.Equal(t, "none", lag(holder, phase, publisher(0x2000)))
	}
	require.Contains(t, lag(nil, state.Streaming, nil), "unknown: ", "it was killed")
	require.Contains(t, lag(nil, state.Streaming, publisher(0x3000)), "4.0 KiB of WAL ahead")
	require.Equal(t, "512 B not applied, the oldest commit in it is 3.0s old", lag(holder, state.Streaming, publisher(0x3000)))
	commit = nil
	require.Equal(t, "512 B received, of which nothing has committed yet", lag(holder, state.Streaming, publisher(0x3000)))
}

func TestExitWithAnErrorIsNotInOrder(t *testing.T) {
	sub := &state.Subscription{Enabled: true, LastError: "slot s is gone", LastErrorHint: "copy again"}
	report := newReport("orders", state.Target{}, observation{subscription: sub})
	require.Equal(t, []string{"no runner lives; the last error was: slot s is gone; remedy: copy again"}, report.Problems)
}

func TestPausedReportSaysSinceWhenAndWhy(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 89, time.UTC)
	report := newReport("orders", state.Target{}, observation{subscription: &state.Subscription{PausedAt: &at, PauseReason: "an apply error"}})
	require.Contains(t, report.Problems, "the subscription is paused since 2026-03-04T05:06:07Z: an apply error: `pgapply resume --name orders` lets it go on")
	require.Contains(t, report.Text(), "subscription  orders (paused since 2026-03-04T05:06:07Z: an apply error)\n")
}

func exampleReport() *Report {
	safe := int64(700 << 20)
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	status := &state.Status{
		Subscription: "orders", Phase: state.Streaming, Since: at, UpdatedAt: at.Add(3*time.Hour + 12*time.Minute),
		Publisher: state.Publisher{Version: 160009, SystemID: "7713713780499195838", Timeline: 1, Database: "shop"},
		Stream:    state.StreamOptions{Slot: "orders", Publications: []string{"p1", "p2"}, Protocol: 4, Streaming: "parallel", Origin: "any", Progress: state.InOrigins},
		Received:  0x16B374D848, Applied: 0x16B2000000, Flushed: 0x16B1000000, Acknowledged: 0x16B0000000,
		LagBytes: 0x1374D848, LagSeconds: 4.2, LastCommitTime: &at, OldestCommitTime: &at,
		Transactions: 1234567, Groups: 1, ParallelGroups: 12, ParallelReplays: 2, RowByRow: []state.RowByRow{{Table: "public.orders", Reason: `trigger "audit"`}}, Rows: state.Rows{Inserted: 10, Updated: 2000, Deleted: 3, Truncated: 1},
		Misses: state.Misses{Update: 1, Delete: 2}, Conflicts: map[conflict.Type]int64{conflict.UpdateMissing: 1, conflict.DeleteMissing: 2}, Messages: 4, Retries: 3,
		MemoryBytes: 3 << 20, MemoryLimit: 128 << 20, SpoolLimit: 16 << 30, OpenStreams: 1,
		Workers: []state.Worker{
			{Number: 0, PID: 100, State: "idle", Since: at},
			{Number: 1, PID: 101, State: "waiting", Since: at.Add(3*time.Hour + 11*time.Minute), XID: 4242, Changes: 1200, WaitingFor: "more of the transaction"},
			{Number: 2, PID: 102, State: "applying", Since: at.Add(3*time.Hour + 12*time.Minute), XID: 4243, Changes: 1},
			{Number: 3, PID: 103, State: "waiting", Since: at.Add(3*time.Hour + 12*time.Minute), Transactions: 17, WaitingFor: "its turn to commit"},
		},
		LastError: "apply INSERT on public.t in transaction 7, finished at 16/B2000000: duplicate key", LastErrorHint: "remove the row", LastErrorAt: &at,
		Tables: map[string]int{"r": 5},
	}
	report := newReport("orders", state.Target{Version: 180004, SystemID: "7713713780499195839", Database: "warehouse", DatabaseOID: 5},
		observation{
			subscription: &state.Subscription{
				Name: "orders", Enabled: true, SlotName: "orders", SlotState: state.SlotCreated, ConsistentPoint: 0x1500000028, AckLSN: 0x16B0000000,
				TargetSystemID: "7713713780499195839", TargetDatabaseOID: 5, SkipLSN: 0x16B2000000,
			},
			conflicts: state.ConflictStats{
				Types: map[string]int64{"update_missing": 1200, "insert_exists": 1, "of_a_later_version": 2}, Total: 1203, Last: &at, Bytes: 3 << 20,
			},
			runner: &state.Runner{
				PID: 4242, Host: "here", Version: "1.0", StartedAt: at, Heartbeat: at.Add(3*time.Hour + 12*time.Minute), HeartbeatAge: 1500 * time.Millisecond, LastError: status.LastError,
				LastErrorHint: status.LastErrorHint, Status: status,
			},
			holder: &state.Holder{PID: 99, ApplicationName: "pgapply:orders:control"},
			tables: []state.Table{{State: state.TableReady}, {State: state.TableReady}, {State: state.TableDataSync}},
		})
	report.Publisher = &PublisherView{Reachable: true, Version: 160009, SystemID: "7713713780499195838", Database: "shop", Current: 0x16B374E000}
	report.Publisher.addSlot(&source.Slot{
		Name: "orders", Active: true, ActivePID: 77, ConfirmedFlush: 0x16B0000000, Restart: 0x16A0000000, WALStatus: "extended", SafeWALSize: &safe,
	})
	report.problem("line one\nline two")
	return report
}

func TestReportAsText(t *testing.T) { golden(t, "report.txt", exampleReport().Text()) }

// The names are read by scripts.
func TestReportAsJSON(t *testing.T) {
	text, err := json.MarshalIndent(exampleReport(), "", "\t")
	require.NoError(t, err)
	golden(t, "report.json", string(text)+"\n")
}

func TestBareReportAsText(t *testing.T) {
	golden(t, "bare.txt", newReport("orders", state.Target{Version: 140023, Database: "warehouse"}, observation{}).Text())
}

func TestHumanNumbers(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 1 << 20: "1.0 MiB", 5 << 30: "5.0 GiB", 1<<63 - 1: "8.0 EiB",
	} {
		require.Equal(t, want, size(bytes))
	}
	for span, want := range map[time.Duration]string{
		0: "0.0s", 4200 * time.Millisecond: "4.2s", 12 * time.Second: "12s", 192 * time.Second: "3m12s",
		3*time.Hour + 12*time.Minute: "3h12m", 125 * time.Hour: "5d5h", 9_949 * time.Millisecond: "9.9s", 9_950 * time.Millisecond: "10s", 59_600 * time.Millisecond: "1m0s",
	} {
		require.Equal(t, want, duration(span))
	}
	for number, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		require.Equal(t, want, count(number))
	}
	require.Equal(t, "1 row", counted(1, "row"))
	require.Equal(t, "0 rows", counted(0, "row"))
}

func TestStatusOfALiveSubscription(t *testing.T) {
	b := sharedBed(t)
	store := b.store("orders")
	_, err := store.TryLock(t.Context())
	require.NoError(t, err)
	b.startRunner(store)
	b.beginSlot(store)
	b.createSlot(store)
	confirmed, err := lsn.Parse(pgtest.Query(t, b.source, `select confirmed_flush_lsn from pg_replication_slots where slot_name = $1`, b.slot))
	require.NoError(t, err)
	require.NoError(t, store.SlotCreated(t.Context(), confirmed))
	b.registerTables(store)
	require.NoError(t, store.WriteStatus(t.Context(), &state.Status{Phase: state.Streaming, Received: state.Position(confirmed)}))
	pgtest.Exec(t, b.source, `create table t (a text)`, `insert into t select repeat('x', 1000) from generate_series(1, 100)`)

	report, err := ReadStatus(t.Context(), b.ends)
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.True(t, report.Enabled)
	require.True(t, report.Runner.Alive)
	require.Contains(t, report.Runner.Lock, "(pgapply:orders:control)")
	require.Equal(t, 4242, report.Runner.PID)
	require.Equal(t, b.slot, report.Slot.Name)
	require.Equal(t, state.Position(confirmed), report.Status.Received)
	require.Equal(t, map[string]int{"r": 1}, report.Tables)
	require.Equal(t, b.where.Database, report.Target.Database)
	publisher := report.Publisher
	require.True(t, publisher.Reachable)
	require.Equal(t, b.identity.SystemID, publisher.SystemID)
	require.Equal(t, b.publisher.Major(), publisher.Version/10000)
	require.Equal(t, state.Position(confirmed), publisher.Slot.ConfirmedFlush)
	require.GreaterOrEqual(t, publisher.LagBytes, int64(100_000))
	require.GreaterOrEqual(t, publisher.Slot.RetainedBytes, publisher.LagBytes)
	require.Contains(t, report.Text(), "PostgreSQL "+version(publisher.Version))
}

func TestStatusNamesProblems(t *testing.T) {
	one := func(t *testing.T, b *bed, change func(*Endpoints)) *Report {
		t.Helper()
		ends := b.ends
		if change != nil {
			change(&ends)
		}
		report, err := ReadStatus(t.Context(), ends)
		require.NoError(t, err)
		return report
	}
	b := sharedBed(t)
	b.complete()
	dead := "no runner lives: process 4242 on here ended without order"

	report := one(t, b, nil)
	require.Len(t, report.Problems, 1)
	require.Contains(t, report.Problems[0], dead)
	require.True(t, report.Lag.Known)
	require.Equal(t, report.Publisher.LagBytes, report.Lag.Bytes)

	report = one(t, b, func(e *Endpoints) { e.Source = "" })
	require.Nil(t, report.Publisher)
	require.Len(t, report.Problems, 1)

	report = one(t, b, func(e *Endpoints) { e.Source = nowhere(t) })
	require.False(t, report.Publisher.Reachable)
	require.Contains(t, report.Publisher.Error, "connect to the publisher")
	require.Contains(t, report.Problems[1], "the publisher cannot be asked")
	require.Contains(t, report.Text(), "publisher     not reachable")

	report = one(t, b, func(e *Endpoints) { e.Source = pgtest.Database(t, b.publisher) })
	require.Contains(t, report.Problems[1], "--source is not the publisher of this subscription")

	pgtest.Query(t, b.source, `select pg_drop_replication_slot($1)`, b.slot)
	report = one(t, b, nil)
	require.Contains(t, report.Problems[1], fmt.Sprintf("slot %q is gone from the publisher", b.slot))
	require.Contains(t, report.Text(), "(created), not there")

	pgtest.Exec(t, b.target, `update pgapply.subscription set target_database_oid = target_database_oid::int8 + 1`)
	report = one(t, b, nil)
	require.Contains(t, report.Problems[1], "this is a copy of the target")
}

func TestStatusOfTheUnknown(t *testing.T) {
	b := sharedBed(t)
	_, err := ReadStatus(t.Context(), b.ends)
	requireClass(t, err, apply.Refused, `knows no subscription "orders"`, "pgapply run")
	require.ErrorIs(t, err, state.ErrNoSchema)
	other := b.subscription()
	require.NoError(t, b.store("other").AdoptSlot(t.Context(), other, lsn.LSN(1)))
	_, err = ReadStatus(t.Context(), b.ends)
	requireClass(t, err, apply.Refused, `knows no subscription "orders", only "other"`, "--name")
}

func TestStatusOfALostSlot(t *testing.T) {
	view := &PublisherView{Current: 100}
	view.addSlot(&source.Slot{WALStatus: "lost"})
	require.Equal(t, "wal_removed", view.Slot.Lost)
	require.Zero(t, view.Slot.RetainedBytes)
	report := &Report{Slot: SlotRecord{Name: "s", State: state.SlotCreated}, Publisher: &PublisherView{Reachable: true, Slot: view.Slot}}
	require.Equal(t, "s (created), lost: wal_removed", report.slotLine())
}
