package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/operate"
)

func TestVerifyAndCutoverAskForWhatTheyNeed(t *testing.T) {
	ends := []string{"--source", "dbname=a", "--target", "dbname=b"}
	for _, test := range []struct {
		name      string
		arguments []string
		says      []string
	}{
		{"no target", []string{"verify"}, []string{"--target", "PGAPPLY_TARGET"}},
		{"no publisher", []string{"verify", "--target", "dbname=b"}, []string{"--source", "PGAPPLY_SOURCE"}},
		{"repair", append([]string{"verify", "--repair=some"}, ends...), []string{`--repair "some"`, "print, apply"}},
		{"sample", append([]string{"verify", "--sample", "3"}, ends...), []string{"--sample", "power of two"}},
		{"jobs", append([]string{"verify", "--jobs", "0"}, ends...), []string{"--jobs"}},
		{"timeout", append([]string{"verify", "--settle-timeout", "5"}, ends...), []string{`"5" is not a time`}},
		{"cutover: no target", []string{"cutover"}, []string{"--target", "PGAPPLY_TARGET"}},
		{"cutover: no publisher", []string{"cutover", "--target", "dbname=b"}, []string{"--source", "PGAPPLY_SOURCE"}},
		{"cutover: how to compare", append([]string{"cutover", "--verify", "some"}, ends...), []string{`--verify "some"`, "full, sample, none"}},
		{"cutover: which sequences", append([]string{"cutover", "--sequences", "some"}, ends...), []string{`--sequences "some"`}},
		{"cutover: lag", append([]string{"cutover", "--max-lag", "far"}, ends...), []string{`"far" is not a size`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := call(t, nil, test.arguments...)
			require.Equal(t, exitConfiguration, exitCode(c.err), "%v", c.err)
			var printed bytes.Buffer
			report(&printed, c.err, "")
			for _, text := range test.says {
				require.Contains(t, printed.String(), text)
			}
		})
	}
	require.Equal(t, 8, exitCode(&operate.DifferenceError{}))
	for _, command := range []string{"verify", "cutover"} {
		c := call(t, nil, command, "--help")
		require.NoError(t, c.err)
		require.Contains(t, c.out, "Usage:")
	}
}
