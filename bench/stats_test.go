package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSpread(t *testing.T) {
	require.Equal(t, spread{}, spreadOf(nil))
	require.Equal(t, spread{median: 2, min: 2, max: 2}, spreadOf([]float64{2}))
	require.Equal(t, spread{median: 2, min: 1, max: 9}, spreadOf([]float64{9, 1, 2}))
	require.Equal(t, spread{median: 3, min: 1, max: 9}, spreadOf([]float64{9, 1, 2, 4}), "between the two in the middle")
}

func TestQuantile(t *testing.T) {
	var figures []float64
	for i := 200; i >= 0; i-- {
		figures = append(figures, float64(i))
	}
	for q, wanted := range map[float64]float64{0: 0, 0.5: 100, 0.95: 190, 0.99: 198, 0.9975: 199.5, 1: 200} {
		require.InDelta(t, wanted, quantileOf(figures, q), 1e-9, "quantile %v", q)
	}
	require.Equal(t, 200.0, figures[0], "the figures stay in their order")
}
