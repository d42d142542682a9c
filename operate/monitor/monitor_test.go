package monitor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/conflict"
	"pgapply/internal/httpd"
	"pgapply/operate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The real ones fit.
var (
	_ Engine       = (*apply.Engine)(nil)
	_ httpd.Source = (*Monitor)(nil)
)

// fake is an engine that says what it is told to say.
type fake struct {
	status  state.Status
	records *apply.Records
	pulse   time.Time
}

func (f *fake) Status() state.Status    { return f.status }
func (f *fake) Records() *apply.Records { return f.records }
func (f *fake) Pulse() time.Time        { return f.pulse }

// streaming is an engine to which nothing is wrong.
func streaming() *fake {
	now := time.Now()
	return &fake{
		pulse: now,
		status: state.Status{
			Subscription: "orders", Phase: state.Streaming, Since: now, UpdatedAt: now,
			Received: 0x2000, Applied: 0x1f00, Flushed: 0x1e00, Acknowledged: 0x1d00, LagBytes: 0x100, LagSeconds: 1.5,
			Transactions: 7, Rows: state.Rows{Inserted: 1, Updated: 2, Deleted: 3, Truncated: 4},
			Conflicts: map[conflict.Type]int64{conflict.UpdateMissing: 5},
			Workers:   []state.Worker{{State: "applying"}, {Number: 1, State: "idle"}, {Number: 2, State: "idle"}},
		},
		records: &apply.Records{
			At: now, Subscription: &state.Subscription{Enabled: true, SlotName: "orders", SlotState: state.SlotCreated},
			Tables: []state.Table{{Text: "public.a", State: state.TableReady}, {Text: "public.b", State: state.TableReady}},
		},
	}
}

func monitorOf(f *fake) *Monitor {
	return New(f, Options{Name: "orders", Version: "v9", Commit: "c0ffee", ReadyLag: time.Minute})
}

func TestReady(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*fake)
		want   []string
	}{
		{"streaming", func(*fake) {}, nil},
		{"lag at the limit", func(f *fake) { f.status.LagSeconds = 60 }, nil},
		{"lag", func(f *fake) { f.status.LagSeconds = 61 }, []string{"1m1s behind, more than --ready-lag 1m0s"}},
		{"starting", func(f *fake) { f.status.Phase = state.Starting }, []string{"starting"}},
		{"waiting", func(f *fake) { f.status.Phase, f.status.WaitingFor = state.Waiting, "somebody" }, []string{"waiting: somebody"}},
		{"retrying", func(f *fake) { f.status.Phase, f.status.LastError = state.Retrying, "no route" }, []string{"retrying after an error: no route"}},
		{"stale lag", func(f *fake) { f.status.Phase, f.status.LagSeconds = state.Paused, 1000 }, []string{"paused"}},
		{"silent target", func(f *fake) {
			since := time.Now().Add(-20 * time.Second)
			f.status.TargetSilentSince = &since
		}, []string{"the target has not answered for 20s"}},
		{"table", func(f *fake) { f.records.Tables[1].State = state.TableDataSync }, []string{"1 of 2 tables are ready"}},
		{"no tables", func(f *fake) { f.records.Tables = nil }, nil},
		{"no records", func(f *fake) { f.records = nil }, []string{"the tables are not known yet"}},
		{"stuck", func(f *fake) { f.pulse = time.Now().Add(-4 * time.Minute) }, []string{"the engine gave no sign of life for 4m0s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := streaming()
			test.change(f)
			require.Equal(t, test.want, monitorOf(f).WhyNotReady(true))
		})
	}
	f := streaming()
	f.status.Phase, f.status.LastError = state.Retrying, "no route to host db.internal"
	require.Equal(t, []string{"retrying"}, monitorOf(f).WhyNotReady(false), "names are for those who may see the status")
	f.status.LagSeconds, f.status.Phase = 1e6, state.Streaming
	require.Empty(t, New(f, Options{}).WhyNotReady(true), "no limit was set")
}

func TestStuck(t *testing.T) {
	f := streaming()
	f.status.Phase = state.Retrying
	require.NoError(t, monitorOf(f).Stuck(), "trouble is not for another process to mend")
	f.pulse = time.Now().Add(-stuckAfter)
	require.Error(t, monitorOf(f).Stuck())
}

// The report is that of `status`, but for what only another process can see.
func TestStatusIsTheReport(t *testing.T) {
	f := streaming()
	f.status.LastError, f.status.LastErrorHint = "no route", "mend it"
	report, ok := monitorOf(f).Status().(*operate.Report)
	require.True(t, ok)
	require.True(t, report.Runner.Alive)
	require.Equal(t, "no route", report.LastError)
	require.Equal(t, map[string]int{"r": 2}, report.Tables)
	require.Equal(t, operate.Lag{Known: true, Streaming: true, Bytes: 0x100, Seconds: 1.5}, report.Lag)
	require.Equal(t, []string{"the runner tries again after an error: no route"}, report.Problems)

	f.records = nil
	report, _ = monitorOf(f).Status().(*operate.Report)
	require.True(t, report.Enabled)
	require.Empty(t, report.Tables)
}

func TestPublisherIsAsked(t *testing.T) {
	f := streaming()
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	view := &operate.PublisherView{Reachable: true, Current: 0x3000, Slot: &operate.SlotView{Restart: 0x1000, RetainedBytes: 0x2000, Active: true, SafeBytes: new(int64(-7))}}
	m := New(f, Options{Name: "orders", AskPublisher: func(context.Context) *operate.PublisherView {
		asked <- struct{}{}
		return view
	}})
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	<-asked
	require.Eventually(t, func() bool { return m.publisher.Load() != nil }, 10*time.Second, time.Millisecond)
	cancel()
	<-ended
	report, _ := m.Status().(*operate.Report)
	require.Equal(t, view, report.Publisher)
	text := scrape(t, m)
	require.Contains(t, text, "pgapply_slot_retained_bytes{subscription=\"orders\"} 8192\n")
	require.Contains(t, text, "pgapply_slot_safe_bytes{subscription=\"orders\"} -7\n")

	view.Reachable, view.Error = false, "no route"
	report, _ = m.Status().(*operate.Report)
	require.Contains(t, report.Problems, "the publisher cannot be asked: no route")
	require.NotContains(t, scrape(t, m), "pgapply_slot_retained_bytes{", "what it was is not what it is")
}

func TestConflictsWithAndWithoutValues(t *testing.T) {
	f := streaming()
	f.records.Recent = []state.RecordedConflict{{ID: 3, Conflict: conflict.Conflict{
		Type: conflict.InsertExists, Schema: "public", Table: "a", ReplicaIdentity: []byte(`{"id":"1"}`), RemoteTuple: []byte(`{"id":"1"}`), Local: []conflict.Local{{XID: "7"}},
	}}}
	all, ok := monitorOf(f).Conflicts(true).([]operate.ConflictView)
	require.True(t, ok)
	require.Equal(t, `{"id":"1"}`, string(all[0].RemoteTuple))
	require.Len(t, all[0].Local, 1)
	bare, _ := monitorOf(f).Conflicts(false).([]operate.ConflictView)
	require.EqualValues(t, 3, bare[0].ID)
	require.Nil(t, bare[0].RemoteTuple)
	require.Nil(t, bare[0].ReplicaIdentity)
	require.Nil(t, bare[0].Local)
}

func TestSample(t *testing.T) {
	f := streaming()
	f.status.Copy = &state.Copy{Rows: 9}
	sample := monitorOf(f).Sample()
	sample.At = time.Time{}
	require.Equal(t, httpd.Sample{LagBytes: 0x100, LagSeconds: 1.5, Transactions: 7, Rows: 6, CopiedRows: 9}, sample)
	f.status.Phase = state.Retrying
	require.EqualValues(t, -1, monitorOf(f).Sample().LagBytes, "what it was is not what it is")
}

func scrape(t *testing.T, m *Monitor) string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Metrics().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, answer.Code, answer.Body.String())
	return answer.Body.String()
}

func TestMetrics(t *testing.T) {
	f := streaming()
	text := scrape(t, monitorOf(f))
	for _, line := range []string{
		`pgapply_build_info{commit="c0ffee",goversion="go`,
		`pgapply_ready{subscription="orders"} 1`,
		`pgapply_state{state="streaming",subscription="orders"} 1`,
		`pgapply_state{state="paused",subscription="orders"} 0`,
		`pgapply_lag_bytes{subscription="orders"} 256`,
		`pgapply_lag_seconds{subscription="orders"} 1.5`,
		`pgapply_position_bytes{position="acknowledged",subscription="orders"} 7424`,
		`pgapply_transactions_total{subscription="orders"} 7`,
		`pgapply_rows_total{operation="delete",subscription="orders"} 3`,
		`pgapply_rows_total{operation="truncate",subscription="orders"} 4`,
		`pgapply_conflicts_total{subscription="orders",type="update_missing"} 5`,
		`pgapply_conflicts_total{subscription="orders",type="insert_exists"} 0`,
		`pgapply_tables{state="ready",subscription="orders"} 2`,
		`pgapply_tables{state="copying",subscription="orders"} 0`,
		`pgapply_workers{state="idle",subscription="orders"} 2`,
		`go_goroutines `, `process_start_time_seconds `,
	} {
		require.Contains(t, text, line)
	}
	for _, absent := range []string{"pgapply_copy_rows{", "pgapply_slot_retained_bytes{", "pgapply_last_commit_timestamp_seconds{"} {
		require.NotContains(t, text, absent, "nobody knows")
	}

	f.records, f.status.Phase = nil, state.Starting
	text = scrape(t, monitorOf(f))
	for _, absent := range []string{"pgapply_tables{", "pgapply_lag_bytes{", "pgapply_prepared_transactions{"} {
		require.NotContains(t, text, absent, "nobody knows")
	}
	require.Contains(t, text, `pgapply_ready{subscription="orders"} 0`)
}

// What a metric is called is what dashboards know: it follows Prometheus's own rules,
// and its labels have only the values that the reference lists.
func TestNamesOfMetrics(t *testing.T) {
	f := streaming()
	f.status.Copy, f.status.LastCommitTime, f.status.LastErrorAt = &state.Copy{}, &f.pulse, &f.pulse
	f.status.LastError = "x"
	m := monitorOf(f)
	m.publisher.Store(&look{at: f.pulse, view: &operate.PublisherView{Reachable: true, Slot: &operate.SlotView{SafeBytes: new(int64)}}})
	text := scrape(t, m)
	faults, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	require.Empty(t, faults)
	for _, metric := range list() {
		if metric.name != "pgapply_oldest_prepared_timestamp_seconds" {
			require.Contains(t, text, "\n"+metric.name+"{")
		}
		require.Equal(t, metric.label != "", len(metric.values) > 0, metric.name)
		s := &seen{report: &operate.Report{Status: &f.status}, status: &f.status, read: f.pulse}
		var values []string
		metric.read(s, func(label string, _ float64) { values = append(values, label) })
		if metric.label != "" {
			require.Equal(t, metric.values, values, metric.name)
		}
	}
}

var update = flag.Bool("update", false, "write docs/metrics.md")

const reference = "../../docs/metrics.md"

// Run it with -update to write the reference.
func TestReferenceIsThatOfTheCode(t *testing.T) {
	text := markdown()
	if *update {
		require.NoError(t, os.WriteFile(reference, []byte(text), 0o644)) //nolint:gosec // it is for everyone to read
	}
	written, err := os.ReadFile(reference)
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	require.Equal(t, string(written), text, "go test ./operate/monitor -run Reference -update")
}

func markdown() string {
	var text strings.Builder
	text.WriteString(`# Metrics

What ` + "`/metrics`" + ` of ` + "`pgapply run --http`" + ` serves. This page is made from the code, and a test holds it to that.

Each metric has the label ` + "`subscription`" + `, and at most one more, whose values are all listed here: no table, role or
host ever becomes a label. Counters count from the start of the process. A value that nobody knows at the moment is left
out, not 0: alert on ` + "`absent()`" + ` where that matters. Beside these there are the ` + "`go_`" + ` and ` + "`process_`" + ` metrics of the process.

Worth an alert: ` + "`pgapply_lag_seconds`" + `, ` + "`pgapply_ready == 0`" + ` for longer than a restart takes, ` + "`pgapply_last_error == 1`" + `,
` + "`pgapply_slot_retained_bytes`" + ` against the free disk of the publisher, ` + "`increase(pgapply_conflicts_total[1h]) > 0`" + `.
`)
	for _, section := range sections() {
		fmt.Fprintf(&text, "\n## %s\n\n| name | type | meaning |\n|---|---|---|\n", section.title)
		for _, metric := range section.metrics {
			name, kind := "`"+metric.name+"`", "gauge"
			if metric.kind == prometheus.CounterValue {
				kind = "counter"
			}
			if metric.label != "" {
				name += "<br>`" + metric.label + "`: " + strings.Join(metric.values, ", ")
			}
			fmt.Fprintf(&text, "| %s | %s | %s |\n", name, kind, metric.help)
		}
	}
	fmt.Fprintf(&text, "\n## The program\n\n| name | type | meaning |\n|---|---|---|\n| `%s`<br>`version`, `commit`, `goversion` | gauge | %s |\n", buildName, buildHelp)
	return text.String()
}
