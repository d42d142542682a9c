//go:build page

package httpd_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/conflict"
	"pgapply/internal/httpd"
	"pgapply/internal/lsn"
	"pgapply/operate"
	"pgapply/operate/monitor"
)

// scene is an engine that says what it is told to say, with a past.
type scene struct {
	status    state.Status
	records   *apply.Records
	publisher *operate.PublisherView
	history   []httpd.Sample
	// rowRate and transactionRate are what it goes on to apply, a second.
	rowRate, transactionRate float64
}

func (s *scene) Status() state.Status {
	status := s.status
	seconds := time.Since(now).Seconds()
	status.Rows.Inserted += int64(seconds * s.rowRate)
	status.Transactions += int64(seconds * s.transactionRate)
	return status
}
func (s *scene) Records() *apply.Records { return s.records }
func (s *scene) Pulse() time.Time        { return time.Now() }

// monitor has asked the publisher, where there is one.
func (s *scene) monitor(t *testing.T) *monitor.Monitor {
	t.Helper()
	m := monitor.New(s, monitor.Options{
		Name: s.status.Subscription, Version: "v1.2.3", ReadyLag: time.Minute,
		AskPublisher: func(context.Context) *operate.PublisherView { return s.publisher },
	})
	if s.publisher == nil {
		return m
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	require.Eventually(t, func() bool {
		report, ok := m.Status().(*operate.Report)
		return ok && report.Publisher != nil
	}, time.Minute, time.Millisecond)
	cancel()
	<-ended
	return m
}

// now is when all scenes play.
var now = time.Now()

func emptyScene() *scene {
	return &scene{status: state.Status{Subscription: "pgapply", Phase: state.Starting, Since: now}}
}

// halfAnHour is a past with waves, a peak and a gap.
func halfAnHour(status state.Status) (history []httpd.Sample) {
	const points = 880
	var rows, transactions float64
	values := make([]httpd.Sample, points)
	for i := range values {
		wave := 1 + 0.35*math.Sin(float64(i)/47) + 0.12*math.Sin(float64(i)/5)
		lag := 0.25 * wave
		if i > 500 && i < 580 {
			lag += 18 * math.Sin(math.Pi*float64(i-500)/80)
		}
		values[i] = httpd.Sample{
			At: now.Add(time.Duration(i-points) * 2 * time.Second), LagSeconds: lag, LagBytes: int64(lag * 3e6),
			Rows: int64(rows), Transactions: int64(transactions),
		}
		if i >= 300 && i < 325 {
			values[i].LagSeconds, values[i].LagBytes = -1, -1
		} else {
			rows += 2 * 21_000 * wave
			transactions += 2 * 700 * wave
		}
	}
	// It ends where the status is.
	moreRows := status.Rows.Inserted + status.Rows.Updated + status.Rows.Deleted - int64(rows)
	moreTransactions := status.Transactions - int64(transactions)
	for i := range values {
		values[i].Rows += moreRows
		values[i].Transactions += moreTransactions
	}
	return values
}

func tablesOf(count int) (tables []state.Table) {
	for i := range count {
		tables = append(tables, state.Table{Text: fmt.Sprintf("public.t%d", i), State: state.TableReady})
	}
	return tables
}

func busyScene() *scene {
	committed := now.Add(-400 * time.Millisecond)
	status := state.Status{
		Subscription: "orders", Phase: state.Streaming, Since: now.Add(-3 * time.Hour),
		Publisher: state.Publisher{Version: 14_00_22, Database: "shop"},
		Received:  0x16_B374D848, Applied: 0x16_B3601000, Flushed: 0x16_B34F0000, Acknowledged: 0x16_B34F0000,
		LagBytes: 0x14C848, LagSeconds: 0.4, LastCommitTime: &committed,
		Transactions: 7_482_113, Groups: 80_211, Rows: state.Rows{Inserted: 190_482_113, Updated: 44_120_998, Deleted: 3_120_551},
		MemoryLimit: 128 << 20, SpoolLimit: 16 << 30, MemoryBytes: 21 << 20,
		Workers: []state.Worker{
			{Number: 0, PID: 41, State: "applying", Since: now},
			{Number: 1, PID: 42, State: "applying", Since: now.Add(-time.Second), Transactions: 41, Changes: 1_892},
			{Number: 2, PID: 43, State: "waiting", Since: now.Add(-4 * time.Second), XID: 48_119_233, Changes: 250_118, WaitingFor: "more to arrive"},
			{Number: 3, PID: 44, State: "idle", Since: now},
		},
		RowByRow: []state.RowByRow{{Table: "public.audit", Reason: "trigger \"stamp\" is ENABLE ALWAYS"}},
	}
	return &scene{
		status: status, history: halfAnHour(status), rowRate: 18_400, transactionRate: 610,
		records: &apply.Records{
			At: now, Target: state.Target{Version: 18_00_04, Database: "shop"}, Tables: tablesOf(42),
			Subscription: &state.Subscription{Enabled: true, SlotName: "orders", SlotState: state.SlotCreated, Source: state.Source{Database: "shop"}},
		},
		publisher: &operate.PublisherView{
			Reachable: true, Version: 14_00_22, Database: "shop", Current: 0x16_B374D900,
			Slot: &operate.SlotView{Active: true, WALStatus: "reserved", ConfirmedFlush: 0x16_B34F0000, Restart: 0x16_A0000000, RetainedBytes: 326 << 20, SafeBytes: new(int64(9 << 30))},
		},
	}
}

func copyingScene() *scene {
	s := busyScene()
	s.status.Phase, s.status.Workers, s.status.RowByRow = state.Copying, nil, nil
	s.rowRate, s.transactionRate = 0, 0
	s.status.LagBytes, s.status.LagSeconds, s.status.LastCommitTime = 0, 0, nil
	s.status.Received, s.status.Applied, s.status.Flushed, s.status.Acknowledged = 0, 0, 0, 0
	s.status.Transactions, s.status.Rows = 0, state.Rows{}
	s.status.Copy = &state.Copy{
		Since: now.Add(-8 * time.Minute), Tables: 42, Done: 17, Failed: 1, Rows: 81_234_567, Bytes: 9 << 30, EstimatedRows: 190_000_000, Share: 0.43,
		Running: []state.CopyTable{
			{Table: "public.order_lines", Rows: 61_000_000, EstimatedRows: 120_000_000, Share: 0.51, Parts: 48, PartsDone: 24},
			{Table: "public.events", Rows: 1_200_000, EstimatedRows: 44_000_000, Share: 0.03},
		},
	}
	for i := 17; i < 42; i++ {
		s.records.Tables[i].State = state.TableInit
	}
	s.records.Tables[17].State, s.records.Tables[17].Text = state.TableDataSync, "public.order_lines"
	s.records.Tables[18].State, s.records.Tables[18].Text = state.TableDataSync, "public.events"
	s.records.Tables[19].LastError = `column "discount" of public.t19 on the publisher is missing on the target`
	for i := range s.history {
		s.history[i] = httpd.Sample{At: s.history[i].At, LagBytes: -1, LagSeconds: -1, CopiedRows: int64(max(0, i-640)) * 338_000}
	}
	return s
}

func conflictScene() *scene {
	s := busyScene()
	at := now.Add(-90 * time.Second)
	s.status.Phase, s.rowRate, s.transactionRate = state.Retrying, 0, 0
	s.status.LastError = "insert into public.customers (transaction 48119233, finished at 16/B3601000): duplicate key value violates unique constraint \"customers_email_key\""
	s.status.LastErrorHint = "see `pgapply conflicts show 118`, then remove one of the rows, or `pgapply skip --lsn 16/B3601000`"
	s.status.LastErrorAt, s.status.Retries = &at, 12
	s.status.Conflicts = map[conflict.Type]int64{conflict.InsertExists: 1, conflict.UpdateOriginDiffers: 1, conflict.DeleteMissing: 9}
	s.status.Workers = nil
	s.records.Conflicts = state.ConflictStats{Total: 11, Types: map[string]int64{"delete_missing": 9}}
	s.records.Recent = []state.RecordedConflict{
		{ID: 118, At: at, Conflict: conflict.Conflict{
			Type: conflict.InsertExists, Schema: "public", Table: "customers", RemoteXID: 48_119_233, FinishLSN: 0x16_B3601000, RemoteTime: at.Add(-time.Second),
			RemoteTuple: []byte(`{"id": "90211", "name": "Jörg Müller", "email": "joerg@example.com", "notes": null, "created_at": "2026-11-30 09:12:44.120931+00"}`),
			Local:       []conflict.Local{{XID: "77120", Index: "customers_email_key", Tuple: []byte(`{"id": "90177", "name": "Joerg Mueller", "email": "joerg@example.com", "notes": "called twice\nwants an invoice", "created_at": "2026-11-30 09:01:02.5+00"}`)}},
			Policy:      "error", Resolution: conflict.Failed,
		}},
		{ID: 117, At: at.Add(-time.Hour), Conflict: conflict.Conflict{
			Type: conflict.UpdateOriginDiffers, Schema: "public", Table: "stock", RemoteXID: 48_100_002, FinishLSN: 0x16_A3601000, Policy: "last_update_wins", Resolution: conflict.Kept,
			ReplicaIdentity: []byte(`{"sku": "A-17"}`), RemoteTuple: []byte(`{"sku": "A-17", "pieces": "40"}`),
			Local: []conflict.Local{{XID: "76001", Origin: "warehouse", Tuple: []byte(`{"sku": "A-17", "pieces": "38"}`)}},
		}},
		{ID: 116, At: at.Add(-30 * time.Hour), Conflict: conflict.Conflict{
			Type: conflict.DeleteMissing, Schema: "public", Table: "sessions", RemoteXID: 47_000_000, FinishLSN: 0x15_A3601000, Policy: "apply_remote", Resolution: conflict.Skipped,
			ReplicaIdentity: []byte(`{"id": "8f14e45f-ceea-467f-a0e6-0b1f1c5a8d11"}`),
		}},
		{ID: 115, At: at.Add(-31 * time.Hour), Conflict: conflict.Conflict{
			Type: conflict.DeleteMissing, Schema: "public", Table: "documents", RemoteXID: 46_999_999, FinishLSN: lsn.LSN(0x15_A3600000), Policy: "apply_remote", Resolution: conflict.Skipped,
		}},
	}
	return s
}

// hostileScene has a script wherever a server or a table can have a name.
func hostileScene() *scene {
	const script = `<img src=x onerror="window.hit=1"><script>window.hit=1</script>"'` + "`</code>"
	s := conflictScene()
	s.status.LastError, s.status.LastErrorHint = script, "see `"+script
	s.status.WaitingFor = script
	s.status.Workers = []state.Worker{{State: script, WaitingFor: script}}
	s.status.RowByRow = []state.RowByRow{{Table: script, Reason: script}}
	s.status.Copy = &state.Copy{Tables: 1, Running: []state.CopyTable{{Table: script, Parts: 2}}}
	s.records.Tables[0] = state.Table{Text: script, State: state.TableInit, LastError: script}
	s.publisher.Slot.Lost = script
	recent := &s.records.Recent[0]
	recent.Schema, recent.Table, recent.Policy, recent.Type = script, script, script, script
	recent.RemoteTuple = []byte(`{"<img src=x onerror=\"window.hit=1\">": "<img src=x onerror=\"window.hit=1\">", "__proto__": "<b>", "constructor": "x"}`)
	recent.Local[0].Tuple, recent.Local[0].Index = recent.RemoteTuple, script
	return s
}
