package main

import "slices"

// spread is the middle of some figures, and the least and the greatest of them.
type spread struct{ median, min, max float64 }

// spreadOf is the zero spread of no figures at all.
func spreadOf(figures []float64) spread {
	if len(figures) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(figures))
	return spread{median: quantile(sorted, 0.5), min: sorted[0], max: sorted[len(sorted)-1]}
}

// quantile is the figure below which the part q of the sorted figures lies,
// between two of them in proportion.
func quantile(sorted []float64, q float64) float64 {
	position := q * float64(len(sorted)-1)
	below := int(position)
	if below+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[below] + (position-float64(below))*(sorted[below+1]-sorted[below])
}

// quantileOf is the same of figures in any order.
func quantileOf(figures []float64, q float64) float64 {
	return quantile(slices.Sorted(slices.Values(figures)), q)
}
