package monitor

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pgapply/apply/state"
	"pgapply/operate"
)

// metric is one name in /metrics. All have the label subscription, and at most one more,
// whose values are a closed list.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	label      string
	values     []string
	// read passes on the value for each of values, or a single one for "". What is not
	// known it leaves out.
	read func(*seen, func(label string, value float64))
}

// seen is what one scrape reads.
type seen struct {
	report *operate.Report
	status *state.Status
	pulse  time.Time
	asked  time.Time // zero for never
	read   time.Time // zero for never
	ready  bool
}

// collector serves the list to Prometheus.
type collector struct {
	monitor *Monitor
	metrics []metric
	descs   []*prometheus.Desc
}

func newMetrics(m *Monitor) http.Handler {
	c := &collector{monitor: m, metrics: list()}
	for _, metric := range c.metrics {
		var labels []string
		if metric.label != "" {
			labels = []string{metric.label}
		}
		c.descs = append(c.descs, prometheus.NewDesc(metric.name, metric.help, labels, prometheus.Labels{"subscription": m.options.Name}))
	}
	registry := prometheus.NewRegistry()
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: buildName, Help: buildHelp,
		ConstLabels: prometheus.Labels{"version": m.options.Version, "commit": m.options.Commit, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
	registry.MustRegister(c, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	report := c.monitor.live().Report()
	s := &seen{report: report, status: report.Status, pulse: c.monitor.engine.Pulse(), ready: len(c.monitor.WhyNotReady(false)) == 0}
	if look := c.monitor.publisher.Load(); look != nil {
		s.asked = look.at
	}
	if records := c.monitor.engine.Records(); records != nil {
		s.read = records.At
	}
	for i, metric := range c.metrics {
		metric.read(s, func(label string, value float64) {
			var labels []string
			if metric.label != "" {
				labels = []string{label}
			}
			metrics <- prometheus.MustNewConstMetric(c.descs[i], metric.kind, value, labels...)
		})
	}
}
