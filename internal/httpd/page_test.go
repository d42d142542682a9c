//go:build page

package httpd_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/httpd"
)

// The page in a real browser: pagetest/page.test.mjs drives headless Chromium over servers
// whose engines are made up, and keeps screenshots. `make page` brings what it needs.
func TestPage(t *testing.T) {
	urls := make(map[string]string)
	for name, scene := range map[string]*scene{
		"empty": emptyScene(), "busy": busyScene(), "copying": copyingScene(), "conflict": conflictScene(),
		"hostile": hostileScene(), "token": busyScene(),
	} {
		options := httpd.Options{Address: ":0"}
		if name == "token" {
			options.Token = "open-sesame-and-more"
		}
		urls[name] = serve(t, options, scene)
	}
	text, err := json.Marshal(urls)
	require.NoError(t, err)
	browse := exec.CommandContext(t.Context(), "node", "--test", "--test-reporter=spec", "page.test.mjs")
	browse.Dir = "pagetest"
	browse.Env = append(os.Environ(), "PAGES="+string(text))
	output, err := browse.CombinedOutput()
	t.Logf("%s", output)
	require.NoError(t, err)
}

// serve runs a server until the test ends, and returns its address.
func serve(t *testing.T, options httpd.Options, s *scene) string {
	t.Helper()
	server, err := httpd.New(options, s.monitor(t))
	require.NoError(t, err)
	for _, sample := range s.history {
		server.Remember(sample)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return "http://" + server.Address() + "/"
}
