package apply

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A table goes by the name that it has, and by that which status shows.
func TestTableFilterTakesQuotedNames(t *testing.T) {
	for _, pattern := range []string{
		`My Schema.Odd "Table`, `"My Schema"."Odd ""Table"`, `My Schema."Odd ""Table"`, `"My Schema".Odd "Table`, `"Odd ""Table"`, `My *.Odd*`,
	} {
		require.True(t, (&TableFilter{Include: []string{pattern}}).Has("My Schema", `Odd "Table`), pattern)
		require.False(t, (&TableFilter{Exclude: []string{pattern}}).Has("My Schema", `Odd "Table`), pattern)
	}
	for _, pattern := range []string{`"My Schema"."Odd "Table"`, `"My Schema"."Odd*"`, `"other"."Odd ""Table"`, `"My Schema.Odd ""Table"`} {
		require.False(t, (&TableFilter{Include: []string{pattern}}).Has("My Schema", `Odd "Table`), pattern)
	}
	require.True(t, (&TableFilter{Include: []string{`public."user"`}}).Has("public", "user"))
}
