package main

import (
	"math"
	"testing"
	"time"

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

func TestAge(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0s": 0, "30d": 30 * day, "36h": 36 * time.Hour, "1d12h": 36 * time.Hour, "90m": 90 * time.Minute, "0d1s": time.Second, "106751d": 106751 * day,
	} {
		var got time.Duration
		require.NoError(t, age{&got}.Set(text), text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "30", "d", "-1d", "1d-1h", "-1h", "1.5d", "1h1d", "106752d", "106751d24h", "9223372036854775807d", "soon"} {
		got := time.Duration(42)
		require.Error(t, age{&got}.Set(text), text)
		require.Equal(t, time.Duration(42), got, text)
	}
	for span, want := range map[time.Duration]string{0: "0", 30 * day: "30d", 36 * time.Hour: "36h0m0s"} {
		require.Equal(t, want, age{&span}.String())
	}
}

// What an age is shown as can be given back.
func FuzzAge(f *testing.F) {
	for _, n := range []int64{1, int64(day), int64(36 * time.Hour), math.MaxInt64} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, n int64) {
		span := time.Duration(n)
		if n <= 0 {
			return
		}
		var got time.Duration
		require.NoError(t, age{&got}.Set(age{&span}.String()))
		require.Equal(t, span, got)
	})
}

func TestMoment(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"7d":                        now.Add(-7 * day),
		"90m":                       now.Add(-90 * time.Minute),
		"2026-02-01T12:00:00+02:00": time.Date(2026, 2, 1, 10, 0, 0, 0, time.UTC),
		"2026-02-01":                time.Date(2026, 2, 1, 0, 0, 0, 0, time.Local),
	} {
		var m moment
		require.NoError(t, m.Set(text), text)
		require.True(t, want.Equal(m.before(now)), text)
		require.Equal(t, text, m.String())
	}
	require.True(t, (&moment{}).before(now).IsZero())
	for _, text := range []string{"", "yesterday", "2026-02-30", "-7d", "12"} {
		require.ErrorContains(t, (&moment{}).Set(text), "neither", text)
	}
}
