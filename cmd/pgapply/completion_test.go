package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCompletion(t *testing.T) {
	for _, test := range []struct {
		typed []string
		want  string
	}{
		{[]string{"conf"}, "config conflicts :4"},
		{[]string{"run", "--streaming", ""}, "off on parallel :4"},
		{[]string{"wait", "--for", ""}, "ready current :4"},
		{[]string{"run", "--spool-dir", ""}, ":16"}, // directories
		{[]string{"run", "--config", ""}, "yaml yml :8"},
		{[]string{"run", "--source-passfile", ""}, ":0"}, // files
		{[]string{"run", "--workers", ""}, ":4"},
		{[]string{"run", ""}, ":4"},
		{[]string{"cutover", "--verify", ""}, "full sample none :4"},
	} {
		c := call(t, nil, append([]string{"__complete"}, test.typed...)...)
		require.NoError(t, c.err)
		var words []string
		for line := range strings.Lines(c.out) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			words = append(words, word)
		}
		require.Equal(t, test.want, strings.Join(words, " "), "%q", test.typed)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		c := call(t, nil, "completion", shell)
		require.NoError(t, c.err)
		require.Contains(t, c.out, "pgapply")
	}
}

// What is completed is taken.
func TestChoicesAreTaken(t *testing.T) {
	taken := make(map[string]bool)
	flags := runVerb(nil).Flags()
	for name, words := range choices() {
		if flags.Lookup(name) == nil {
			continue
		}
		for _, word := range words {
			c := call(t, nil, run("--yes", "--"+name, word)...)
			require.NoError(t, c.err, "--%s %s", name, word)
			taken[name] = true
		}
	}
	require.Greater(t, len(taken), 8)
}
