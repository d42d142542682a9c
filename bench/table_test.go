package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	drains := func(times ...float64) (measures []measure) {
		for _, time := range times {
			measures = append(measures, measure{Start: 0.01, Drain: time, PublisherCPU: 0.5, TargetCPU: time / 2, OwnCPU: 0.1, PeakMemory: 50 << 20})
		}
		return measures
	}
	copies := func(copy, publisher, target float64) measure {
		return measure{Copy: copy, PublisherCPU: publisher, TargetCPU: target, OwnCPU: 0.5, PeakMemory: 40 << 20}
	}
	r := &report{Scale: 1, Load: "0.10 0.20 0.30", Server: "PostgreSQL 18.4", Commit: "abc", Go: "go1.26", CPUs: 2, Rounds: 3, Settings: "cold target", Results: []*result{
		{Workload: "W2", Contender: "decode", Measures: drains(1, 1.1, 0.9)},
		{Workload: "W2", Contender: "native", Measures: drains(3, 3, 3)},
		{Workload: "W2", Contender: "native+binary", Measures: drains(2, 2.5, 2)},
		{Workload: "W2", Contender: "pgapply", Measures: drains(1.25, 1, 1.5)},
		{Workload: "W2", Contender: "pgapply+rtt=30ms", Measures: drains(1.5625, 1.5625, 1.5625)},
		{Workload: "W9", Contender: "native", Measures: []measure{{Latencies: []float64{0.001, 0.002, 0.003}, PublisherCPU: 0.1, TargetCPU: 0.2}}},
		{Workload: "L3", Contender: "pgapply", Measures: []measure{{Lag: 2, Writing: 3, PublisherCPU: 1, TargetCPU: 2, OwnCPU: 3, PeakMemory: 1 << 20}}},
		{Workload: "C1", Contender: "native", Measures: []measure{copies(6, 2, 4)}},
		{Workload: "C1", Contender: "native+binary", Measures: []measure{copies(5, 1.5, 3.5)}},
		{Workload: "C1", Contender: "pipe+binary", Measures: []measure{copies(4, 1.5, 3)}},
		{Workload: "C1", Contender: "pgapply", Measures: []measure{copies(2.5, 1.5, 3), copies(2, 1.5, 3), copies(3, 1.5, 3)}},
	}}
	want := strings.TrimPrefix(`
PostgreSQL 18.4, fsync off, 2 CPUs, go1.26, commit abc, 3 rounds, 0001-01-01, load at the start 0.10 0.20 0.30, cold target

W2: 100,000 one-row inserts

|                  |                   s | / decode | native / |     publisher CPU s |        target CPU s | / native |           own CPU s | peak MiB | start s |
| ---------------- | ------------------: | -------: | -------: | ------------------: | ------------------: | -------: | ------------------: | -------: | ------: |
| decode           | 1.00 (0.90 to 1.10) |     1.00 |          | 0.50 (0.50 to 0.50) |                     |          | 0.10 (0.10 to 0.10) |       50 |    0.01 |
| native           | 3.00 (3.00 to 3.00) |     3.00 |     0.67 | 0.50 (0.50 to 0.50) | 1.50 (1.50 to 1.50) |     1.50 |                     |          |    0.01 |
| native+binary    | 2.00 (2.00 to 2.50) |     2.00 |     1.00 | 0.50 (0.50 to 0.50) | 1.00 (1.00 to 1.25) |     1.00 |                     |          |    0.01 |
| pgapply          | 1.25 (1.00 to 1.50) |     1.25 |     1.60 | 0.50 (0.50 to 0.50) | 0.62 (0.50 to 0.75) |     0.62 | 0.10 (0.10 to 0.10) |       50 |    0.01 |
| pgapply+rtt=30ms | 1.56 (1.56 to 1.56) |     1.56 |     1.28 | 0.50 (0.50 to 0.50) | 0.78 (0.78 to 0.78) |     0.78 | 0.10 (0.10 to 0.10) |       50 |    0.01 |

pgapply+rtt=30ms has 80 % of the local speed.

W9: idle latency: 200 transactions, 50 ms apart

|        |              p50 ms |              p95 ms |              p99 ms | p50 / native |     publisher CPU s |        target CPU s | own CPU s |
| ------ | ------------------: | ------------------: | ------------------: | -----------: | ------------------: | ------------------: | --------: |
| native | 2.00 (2.00 to 2.00) | 2.90 (2.90 to 2.90) | 2.98 (2.98 to 2.98) |         1.00 | 0.10 (0.10 to 0.10) | 0.20 (0.20 to 0.20) |           |

L3: lag after the commit of one 1,000,000-row insert

|         |               lag s | / native |     publisher CPU s |        target CPU s |           own CPU s | peak MiB | writing s |
| ------- | ------------------: | -------: | ------------------: | ------------------: | ------------------: | -------: | --------: |
| pgapply | 2.00 (2.00 to 2.00) |          | 1.00 (1.00 to 1.00) | 2.00 (2.00 to 2.00) | 3.00 (3.00 to 3.00) |        1 |      3.00 |

C1: copy of one table of pgbench with 3,000,000 rows and a primary key

|               |                   s | native / | pipe / |     publisher CPU s |        target CPU s | / native |           own CPU s | peak MiB |
| ------------- | ------------------: | -------: | -----: | ------------------: | ------------------: | -------: | ------------------: | -------: |
| native        | 6.00 (6.00 to 6.00) |     0.83 |   0.67 | 2.00 (2.00 to 2.00) | 4.00 (4.00 to 4.00) |     1.14 |                     |          |
| native+binary | 5.00 (5.00 to 5.00) |     1.00 |   0.80 | 1.50 (1.50 to 1.50) | 3.50 (3.50 to 3.50) |     1.00 |                     |          |
| pipe+binary   | 4.00 (4.00 to 4.00) |     1.25 |   1.00 | 1.50 (1.50 to 1.50) | 3.00 (3.00 to 3.00) |     0.86 | 0.50 (0.50 to 0.50) |       40 |
| pgapply       | 2.50 (2.00 to 3.00) |     2.00 |   1.60 | 1.50 (1.50 to 1.50) | 3.00 (3.00 to 3.00) |     0.86 | 0.50 (0.50 to 0.50) |       40 |
`, "\n")
	if difference := cmp.Diff(want, r.markdown()); difference != "" {
		t.Error(difference)
	}
}
