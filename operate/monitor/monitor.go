// Package monitor says how a running engine is doing, to those who ask this process: as
// the report of `pgapply status`, as metrics, and as whether it is ready or stuck.
//
//	apply.Engine ── Status, Records, Pulse ──► Monitor ──► httpd
//	publisher ──── its view of the slot, twice a minute ──┘
//
// It asks the target nothing: the engine reads what is recorded there on its own control
// session. The publisher is asked over a connection that is closed again, since the
// stream's own cannot answer while it streams.
package monitor

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/httpd"
	"pgapply/operate"
)

// Engine is what is watched: an *apply.Engine.
type Engine interface {
	Status() state.Status
	Records() *apply.Records
	Pulse() time.Time
}

const (
	// publisherPause is how often the publisher is asked; when a stream has begun, which
	// changes what it would say, it is asked within streamPause.
	publisherPause = 30 * time.Second
	streamPause    = 2 * time.Second
	// stuckAfter is far above every limit that the engine has for a single step.
	stuckAfter = 3 * time.Minute
)

// Options of a monitor.
type Options struct {
	// Name is the subscription's, Version and Commit are this program's.
	Name, Version, Commit string
	// ReadyLag is how far behind the subscription may be and still count as ready; zero
	// for any lag.
	ReadyLag time.Duration
	// AskPublisher looks at the slot; nil does not.
	AskPublisher func(context.Context) *operate.PublisherView
}

// Monitor may be asked from several goroutines.
type Monitor struct {
	options   Options
	engine    Engine
	host      string
	started   time.Time
	publisher atomic.Pointer[look]
	metrics   http.Handler
}

// look is what the publisher said, and when.
type look struct {
	at   time.Time
	view *operate.PublisherView
}

// New returns a monitor of an engine, which need not run yet.
func New(engine Engine, options Options) *Monitor {
	m := &Monitor{options: options, engine: engine, started: time.Now()}
	m.host, _ = os.Hostname() // for people to read; empty will do
	m.metrics = newMetrics(m)
	return m
}

// Run asks the publisher from time to time, until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	if m.options.AskPublisher == nil {
		return
	}
	ticker := time.NewTicker(streamPause)
	defer ticker.Stop()
	var asked time.Time
	streamed := false
	for {
		streams := m.engine.Status().Phase == state.Streaming
		if streams && !streamed || time.Since(asked) >= publisherPause {
			asked = time.Now()
			if view := m.options.AskPublisher(ctx); ctx.Err() == nil {
				m.publisher.Store(&look{at: time.Now(), view: view})
			}
		}
		streamed = streams
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// live is what is known now.
func (m *Monitor) live() *operate.Live {
	status := m.engine.Status()
	l := &operate.Live{
		Name: m.options.Name,
		Runner: state.Runner{
			PID: os.Getpid(), Host: m.host, Version: m.options.Version, StartedAt: m.started, Heartbeat: m.engine.Pulse(),
			LastError: status.LastError, LastErrorHint: status.LastErrorHint, Status: &status,
		},
		Records: m.engine.Records(),
	}
	l.Runner.HeartbeatAge = max(0, time.Since(l.Runner.Heartbeat))
	if look := m.publisher.Load(); look != nil {
		l.Publisher = look.view
	}
	return l
}

// Status is the report, as `pgapply status --json` has it.
func (m *Monitor) Status() any { return m.live().Report() }

// Conflicts are the newest ones.
func (m *Monitor) Conflicts(values bool) any { return m.live().Conflicts(values) }

// Metrics serves them to Prometheus.
func (m *Monitor) Metrics() http.Handler { return m.metrics }

// Sample is one point of the plots.
func (m *Monitor) Sample() httpd.Sample {
	status := m.engine.Status()
	sample := httpd.Sample{
		At: time.Now(), LagBytes: status.LagBytes, LagSeconds: status.LagSeconds,
		Transactions: status.Transactions,
		Rows:         status.Rows.Inserted + status.Rows.Updated + status.Rows.Deleted,
	}
	if status.Phase != state.Streaming {
		sample.LagBytes, sample.LagSeconds = -1, -1
	}
	if status.Copy != nil {
		sample.CopiedRows = status.Copy.Rows
	}
	return sample
}

// Stuck says that the engine's own loops have not turned for too long: then only another
// process can help.
func (m *Monitor) Stuck() error { return Stuck(m.engine.Pulse()) }

// Stuck says the same of an engine's last sign of life.
func Stuck(pulse time.Time) error {
	silent := time.Since(pulse)
	if silent < stuckAfter {
		return nil
	}
	return fmt.Errorf("the engine gave no sign of life for %s", silent.Round(time.Second))
}

// WhyNotReady says why the subscription does not show what the publisher has.
func (m *Monitor) WhyNotReady(details bool) []string {
	report := m.live().Report()
	var reasons []string
	because := func(format string, arguments ...any) {
		reasons = append(reasons, fmt.Sprintf(format, arguments...))
	}
	if err := m.Stuck(); err != nil {
		because("%v", err)
	}
	status := report.Status
	switch {
	case status.Phase == state.Streaming:
	case status.Phase == state.Waiting && details && status.WaitingFor != "":
		because("waiting: %s", status.WaitingFor)
	case status.Phase == state.Retrying && details && report.LastError != "":
		because("retrying after an error: %s", report.LastError)
	default:
		because("%s", status.Phase)
	}
	if since := status.TargetSilentSince; since != nil {
		because("the target has not answered for %s", time.Since(*since).Round(time.Second))
	}
	ready, all := report.Tables[string(rune(state.TableReady))], 0
	for _, count := range report.Tables {
		all += count
	}
	switch {
	case m.engine.Records() == nil:
		because("the tables are not known yet")
	case ready < all:
		because("%d of %d tables are ready", ready, all)
	}
	lag := time.Duration(status.LagSeconds * float64(time.Second))
	if limit := m.options.ReadyLag; limit > 0 && status.Phase == state.Streaming && lag > limit {
		because("%s behind, more than --ready-lag %s", lag.Round(time.Second), limit)
	}
	return reasons
}
