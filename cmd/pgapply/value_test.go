package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "512": 512, "7B": 7, "1kB": 1024, "1KiB": 1024, "128MiB": 128 << 20, "128MB": 128 << 20,
		"3 GiB": 3 << 30, "2TB": 2 << 40, "9223372036854775807": math.MaxInt64,
	} {
		var got int64
		require.NoError(t, size{&got}.Set(text), text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "x", "-1", "1.5MiB", "MiB", "1 M", "1mb", "9223372036854775808", "8388608TiB"} {
		got := int64(42)
		require.Error(t, size{&got}.Set(text), text)
		require.Equal(t, int64(42), got, text)
	}
}

// What a size is shown as can be given back.
func FuzzSize(f *testing.F) {
	for _, n := range []int64{0, 1, 1023, 1024, 128 << 20, 3 << 30, math.MaxInt64} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, n int64) {
		if n < 0 {
			return
		}
		var got int64
		require.NoError(t, size{&got}.Set(size{&n}.String()))
		require.Equal(t, n, got)
	})
}
