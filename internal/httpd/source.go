package httpd

import (
	"net/http"
	"time"
)

// Source knows the subscription. Its methods are called from several goroutines, and
// answer at once.
type Source interface {
	// Status is served as JSON.
	Status() any
	// Conflicts are served as JSON, with the values of rows or without.
	Conflicts(values bool) any
	// Sample is one point of the plots.
	Sample() Sample
	// WhyNotReady says why the subscription is not ready, one reason a line; empty when it
	// is. Details are for those who may see the status.
	WhyNotReady(details bool) []string
	// Stuck says why the process should be killed, or returns nil.
	Stuck() error
	// Metrics serves them to Prometheus.
	Metrics() http.Handler
}

// Sample is the subscription at one moment, as far as the page plots it.
type Sample struct {
	At time.Time
	// LagBytes and LagSeconds are negative where the lag is not known.
	LagBytes   int64
	LagSeconds float64
	// Counters, of which the page plots the differences.
	Transactions, Rows, CopiedRows int64
}
