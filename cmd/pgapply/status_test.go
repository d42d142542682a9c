package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFlagsOfStatusThatDoNotGoTogether(t *testing.T) {
	for flags, says := range map[[2]string]string{
		{"--all", "--tables"}:    "--all and --tables do not go together",
		{"--ready", "--watch"}:   "--ready and --watch do not go together",
		{"--watch=0s", "--json"}: `"0s" is not a time such as 2s`,
		{"--watch=x", "--json"}:  `"x" is not a time such as 2s`,
	} {
		c := call(t, nil, "status", "--target", "dbname=b", flags[0], flags[1])
		require.Equal(t, 2, exitCode(c.err))
		require.ErrorContains(t, c.err, says)
	}
}

func TestInterval(t *testing.T) {
	var i interval
	require.Empty(t, i.String())
	require.NoError(t, i.Set("2s"))
	require.Equal(t, interval(2*time.Second), i)
	require.Equal(t, "2s", i.String())
}

func TestRedrawElsewhereThanOnATerminal(t *testing.T) {
	var out bytes.Buffer
	pager(&out, false)("page\n")
	pager(&out, true)("{}\n")
	require.Equal(t, "page\n\n{}\n", out.String())
}

func TestNotReadyIsTheVerdict(t *testing.T) {
	require.ErrorIs(t, notReady(false, []string{"x"}), errShow)
	require.NoError(t, notReady(true, nil))
	err := notReady(true, []string{"paused", "1 of 2 tables are ready"})
	require.EqualError(t, err, "not ready: paused; 1 of 2 tables are ready")
	require.Equal(t, 1, exitCode(err))
}
