package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// table is a workload's part of the report.
func (w workload) table(results []*result) string {
	switch {
	case results[0].Measures[0].Latencies != nil:
		return latencyTable(results)
	case w.copied:
		return copyTable(results)
	case w.live != nil:
		return lagTable(results)
	}
	return drainTable(results)
}

// drainTable compares each contender with decode-only and with the quickest native
// one.
func drainTable(results []*result) string {
	seconds := func(m measure) float64 { return m.Drain }
	target := func(m measure) float64 { return m.TargetCPU }
	decoding, best := find(results, decode, seconds), find(results, native, seconds)
	rows := [][]string{{"", "s", "/ decode", "native /", "publisher CPU s", "target CPU s", "/ native", "own CPU s", "peak MiB", "start s"}}
	for _, r := range results {
		row := []string{r.Contender, r.of(seconds).String(), "", "", r.of(func(m measure) float64 { return m.PublisherCPU }).String(), "", "", "", "", ""}
		if decoding != nil {
			row[2] = ratio(r.of(seconds), decoding.of(seconds))
		}
		if kindOf(r) != decode {
			row[5] = r.of(target).String()
			if best != nil {
				row[3], row[6] = ratio(best.of(seconds), r.of(seconds)), ratio(r.of(target), best.of(target))
			}
		}
		if kindOf(r) != native {
			row[7] = r.of(func(m measure) float64 { return m.OwnCPU }).String()
			row[8] = peakCell(r)
		}
		row[9] = fmt.Sprintf("%.2f", r.of(func(m measure) float64 { return m.Start }).median)
		rows = append(rows, row)
	}
	return grid(rows) + slowed(results) + replayed(results)
}

// replayed says which groups were applied again, a transaction at a time, which none
// of the workloads calls for.
func replayed(results []*result) string {
	var text strings.Builder
	for _, r := range results {
		if most := r.of(func(m measure) float64 { return float64(m.Replays) }).max; most > 0 {
			fmt.Fprintf(&text, "\n%s had to replay up to %.0f groups.\n", r.Contender, most)
		}
	}
	return text.String()
}

// slowed says what a slow link to the target costs.
func slowed(results []*result) string {
	seconds := func(m measure) float64 { return m.Drain }
	local := slices.IndexFunc(results, func(r *result) bool { return r.Contender == pgapply })
	var text strings.Builder
	for _, r := range results {
		if strings.HasPrefix(r.Contender, pgapply+"+rtt=") && local >= 0 {
			fmt.Fprintf(&text, "\n%s has %.0f %% of the local speed.\n", r.Contender, 100*results[local].of(seconds).median/r.of(seconds).median)
		}
	}
	return text.String()
}

// lagTable compares with the native subscription that is quickest to have it.
func lagTable(results []*result) string {
	lag := func(m measure) float64 { return m.Lag }
	best := find(results, native, lag)
	rows := [][]string{{"", "lag s", "/ native", "publisher CPU s", "target CPU s", "own CPU s", "peak MiB", "writing s"}}
	for _, r := range results {
		row := []string{
			r.Contender, r.of(lag).String(), "", r.of(func(m measure) float64 { return m.PublisherCPU }).String(),
			r.of(func(m measure) float64 { return m.TargetCPU }).String(), "", "", fmt.Sprintf("%.2f", r.of(func(m measure) float64 { return m.Writing }).median),
		}
		if best != nil {
			row[2] = ratio(r.of(lag), best.of(lag))
		}
		if kindOf(r) != native {
			row[5], row[6] = r.of(func(m measure) float64 { return m.OwnCPU }).String(), peakCell(r)
		}
		rows = append(rows, row)
	}
	return grid(rows)
}

// copyTable compares with the quickest native subscription and the quickest bare pipe.
func copyTable(results []*result) string {
	seconds := func(m measure) float64 { return m.Copy }
	target := func(m measure) float64 { return m.TargetCPU }
	best, bare := find(results, native, seconds), find(results, pipe, seconds)
	rows := [][]string{{"", "s", "native /", "pipe /", "publisher CPU s", "target CPU s", "/ native", "own CPU s", "peak MiB"}}
	for _, r := range results {
		row := []string{
			r.Contender, r.of(seconds).String(), "", "", r.of(func(m measure) float64 { return m.PublisherCPU }).String(),
			r.of(target).String(), "", "", "",
		}
		if best != nil {
			row[2], row[6] = ratio(best.of(seconds), r.of(seconds)), ratio(r.of(target), best.of(target))
		}
		if bare != nil {
			row[3] = ratio(bare.of(seconds), r.of(seconds))
		}
		if kindOf(r) != native {
			row[7], row[8] = r.of(func(m measure) float64 { return m.OwnCPU }).String(), peakCell(r)
		}
		rows = append(rows, row)
	}
	return grid(rows)
}

// latencyTable has the quantiles of each round, and their spread over the rounds.
func latencyTable(results []*result) string {
	quantiles := []float64{0.5, 0.95, 0.99}
	rows := [][]string{{"", "p50 ms", "p95 ms", "p99 ms", "p50 / native", "publisher CPU s", "target CPU s", "own CPU s"}}
	at := func(q float64) func(measure) float64 {
		return func(m measure) float64 { return 1000 * quantileOf(m.Latencies, q) }
	}
	best := find(results, native, at(0.5))
	for _, r := range results {
		row := []string{r.Contender}
		for _, q := range quantiles {
			row = append(row, r.of(at(q)).String())
		}
		row = append(row, "", r.of(func(m measure) float64 { return m.PublisherCPU }).String(),
			r.of(func(m measure) float64 { return m.TargetCPU }).String(), "")
		if kindOf(r) != native {
			row[7] = r.of(func(m measure) float64 { return m.OwnCPU }).String()
		}
		if best != nil {
			row[4] = ratio(r.of(at(0.5)), best.of(at(0.5)))
		}
		rows = append(rows, row)
	}
	return grid(rows)
}

// find is the result of one kind whose median is least, nil when there is none.
func find(results []*result, kind string, figure func(measure) float64) (best *result) {
	for _, r := range results {
		if kindOf(r) == kind && (best == nil || r.of(figure).median < best.of(figure).median) {
			best = r
		}
	}
	return best
}

func kindOf(r *result) string {
	kind, _, _ := strings.Cut(r.Contender, "+")
	return kind
}

// peakCell is the greatest peak of all rounds.
func peakCell(r *result) string {
	return fmt.Sprintf("%.0f", r.of(func(m measure) float64 { return float64(m.PeakMemory) / (1 << 20) }).max)
}

func (s spread) String() string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", s.median, s.min, s.max)
}

// ratio is that of two medians.
func ratio(a, b spread) string {
	if b.median == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", a.median/b.median)
}

// grid writes a Markdown table that can also be read as it is. The first row is its
// head, the first column to the left and all others to the right.
func grid(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 2)
		}
	}
	var text strings.Builder
	line := func(cell func(i int) string) {
		for i := range widths {
			text.WriteString("| " + cell(i) + " ")
		}
		text.WriteString("|\n")
	}
	for n, row := range rows {
		line(func(i int) string {
			if i == 0 {
				return fmt.Sprintf("%-*s", widths[i], row[i])
			}
			return fmt.Sprintf("%*s", widths[i], row[i])
		})
		if n == 0 {
			line(func(i int) string {
				if i == 0 {
					return strings.Repeat("-", widths[i])
				}
				return strings.Repeat("-", widths[i]-1) + ":"
			})
		}
	}
	return text.String()
}
