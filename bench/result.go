package main

import (
	"fmt"
	"strings"
)

// result is all that was measured of one contender with one workload.
type result struct {
	Workload  string    `json:"workload"`
	Contender string    `json:"contender"`
	Measures  []measure `json:"measures"`
}

// measure is what one turn took. Times are in seconds.
type measure struct {
	// Start: from the start of the contender until the publisher decodes for it.
	// Drain: from then until the last row of the backlog is visible.
	Start float64 `json:"start"`
	Drain float64 `json:"drain"`
	// CPU of the walsender, of the backends that apply, and of the process that
	// decode and pgapply have.
	PublisherCPU float64 `json:"publisher_cpu"`
	TargetCPU    float64 `json:"target_cpu"`
	OwnCPU       float64 `json:"own_cpu"`
	PeakMemory   int64   `json:"peak_memory,omitempty"` // bytes, of that process
	tally

	// Of L3 and L4: from the end of COMMIT until it is visible, and how long the
	// transaction took to write.
	Lag     float64 `json:"lag,omitempty"`
	Writing float64 `json:"writing,omitempty"`
	// Of C1 to C3: from the start of the contender until changes stream and every table
	// is ready. The CPU time is that of all processes of either server then.
	Copy float64 `json:"copy,omitempty"`
	// Of W9: from each commit until the target's.
	Latencies []float64 `json:"latencies,omitempty"`
}

// String is what one turn prints.
func (m measure) String() string {
	var text strings.Builder
	switch {
	case m.Latencies != nil:
		s := spreadOf(m.Latencies)
		fmt.Fprintf(&text, "p50 %.2f ms, at most %.2f ms", 1000*s.median, 1000*s.max)
	case m.Lag != 0:
		fmt.Fprintf(&text, "%6.2f s behind a transaction of %.2f s", m.Lag, m.Writing)
	case m.Copy != 0:
		fmt.Fprintf(&text, "%6.2f s", m.Copy)
	default:
		fmt.Fprintf(&text, "%6.2f s", m.Drain)
	}
	fmt.Fprintf(&text, "  CPU s: publisher %.2f target %.2f own %.2f", m.PublisherCPU, m.TargetCPU, m.OwnCPU)
	if m.PeakMemory > 0 {
		fmt.Fprintf(&text, "  %d MiB", m.PeakMemory>>20)
	}
	if m.Start > 0 {
		fmt.Fprintf(&text, "  start %.2f s", m.Start)
	}
	if m.Groups > 0 {
		fmt.Fprintf(&text, "  groups %d replays %d", m.Groups, m.Replays)
	}
	return text.String()
}

// of is one figure of all rounds.
func (r *result) of(figure func(measure) float64) spread {
	var figures []float64
	for _, m := range r.Measures {
		figures = append(figures, figure(m))
	}
	return spreadOf(figures)
}
