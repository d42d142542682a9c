package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// Whatever a name holds, an entry is one line that a terminal only shows: its message, its
// fields, and those that a logger carries along.
func TestLogIsPlain(t *testing.T) {
	hostile := "a\x1b[31m\nERROR  all is lost\u202e\u0085"
	var out bytes.Buffer
	log, err := (&logOptions{format: "console", level: "info"}).logger(&out, "")
	require.NoError(t, err)
	log.With(zap.String("server", hostile)).Info(hostile, zap.Strings("created", []string{hostile}))
	line := out.String()
	require.Regexp(t, `^[ -~]+\n$`, line)
	require.Contains(t, line, `INFO  a\x1b[31m ERROR  all is lost\u202e\x85  {"server": `)
	require.Contains(t, line, `"created": ["a\u001b[31m\nERROR  all is lost\u202e\x85"]`)
}

// A hint can be typed as it stands; one that is empty is left out.
func TestLogHints(t *testing.T) {
	for _, format := range []string{"console", "json"} {
		var out bytes.Buffer
		log, err := (&logOptions{format: format, level: "info"}).logger(&out, "crm")
		require.NoError(t, err)
		log.With(zap.Int("n", 1)).Info("paused: `pgapply resume`", zap.String("hint", "see `pgapply status`"))
		require.Contains(t, out.String(), "paused: `pgapply resume --name crm`")
		require.Contains(t, out.String(), "see `pgapply status --name crm`")
		out.Reset()
		log.Info("none", zap.String("hint", ""), zap.Int("n", 1))
		require.NotContains(t, out.String(), "hint")
	}
}
