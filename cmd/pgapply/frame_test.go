package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFold(t *testing.T) {
	page := "12:00:00\nsubscription  shop (enabled)\nslot          shop, in use by process 1; confirmed 0/1\n  copying     public.with_a_name_without_blanks: 5 rows\n"
	require.Equal(t, strings.Split(strings.TrimSuffix(page, "\n"), "\n"), fold(page, 200))
	require.Equal(t, []string{
		"12:00:00",
		"subscription  shop (enabled)",
		"slot          shop, in use by",
		"              process 1;",
		"              confirmed 0/1",
		"  copying     public.with_a_na",
		"              me_without_blank",
		"              s: 5 rows",
	}, fold(page, 30))
	require.Equal(t, []string{"slot", "  shop, in use by", "  process 1;", "  confirmed 0/1"}, fold("slot          shop, in use by process 1; confirmed 0/1\n", 18))
	require.Equal(t, fold(page, 30), frame(page, 30, 8))
	require.Equal(t, []string{"12:00:00", "subscription  shop (enabled)", "slot          shop, in use by…", "  copying     public.with_a_n…"}, frame(page, 30, 7))
	require.Equal(t, []string{"12:00:00", "subscription  shop (enabled)", "(2 more lines)"}, frame(page, 30, 3))
	require.Equal(t, []string{"(4 more…"}, frame(page, 8, 0))
}

// Nothing is wider than the terminal, and nothing but blanks is lost.
func TestFoldKeepsEverything(t *testing.T) {
	words := func(text string) string { return strings.Join(strings.Fields(text), "") }
	rapid.Check(t, func(t *rapid.T) {
		page := strings.Join(rapid.SliceOfN(rapid.StringOf(rapid.SampledFrom([]rune("ab  ü;"))), 1, 4).Draw(t, "lines"), "\n")
		width := rapid.IntRange(3, 30).Draw(t, "width")
		lines := fold(page, width)
		for _, line := range lines {
			require.LessOrEqual(t, len([]rune(line)), width)
		}
		require.Equal(t, words(page), words(strings.Join(lines, "\n")))
	})
}
