package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"pgapply/apply"
	"pgapply/operate"
)

const aToken = "0123456789abcdef"

func TestHTTPFlags(t *testing.T) {
	var given httpOptions
	root := newRoot(func(_ context.Context, _ apply.Options, http httpOptions) error {
		given = http
		return nil
	})
	root.SetArgs(run())
	require.NoError(t, root.ExecuteContext(t.Context()))
	require.Equal(t, httpOptions{readyLag: time.Minute}, given, "off unless asked for")
	root.SetArgs(run("--http", ":8432", "--http-token-file", "/t", "--ready-lag", "5s"))
	require.NoError(t, root.ExecuteContext(t.Context()))
	require.Equal(t, httpOptions{address: ":8432", tokenFile: "/t", readyLag: 5 * time.Second}, given)
	for _, wrong := range [][]string{run("--http-token-file", "/t"), run("--http", ":1", "--ready-lag", "-1s")} {
		require.Equal(t, exitConfiguration, exitCode(call(t, nil, wrong...).err), "%v", wrong)
	}
}

func TestTokenOfHTTP(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, test := range []struct{ name, variable, file, want, says string }{
		{name: "none"},
		{name: "file", file: write(aToken + "\n"), want: aToken},
		{name: "variable", variable: aToken, want: aToken},
		{name: "both", variable: aToken, file: write(aToken), says: "both --http-token-file and PGAPPLY_HTTP_TOKEN"},
		{name: "empty file", file: write("\n"), says: "--http-token-file: a token of fewer than"},
		{name: "short variable", variable: "abc", says: "PGAPPLY_HTTP_TOKEN: a token of fewer than"},
		{name: "no file", file: "/nonexistent", says: "read --http-token-file: open /nonexistent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(tokenVariable, test.variable)
			got, err := (&httpOptions{tokenFile: test.file}).token()
			if test.says != "" {
				require.ErrorContains(t, err, test.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

// nowhere are options of an engine that finds nobody at either end.
func nowhere() apply.Options {
	options := apply.DefaultOptions()
	options.Source, options.Target = "host=127.0.0.1 port=1 user=nobody dbname=a", "host=127.0.0.1 port=1 user=nobody dbname=b"
	options.Publications, options.Version = []string{"p"}, "v9"
	return options
}

// What is taken is said before anything is connected to.
func TestAddressThatIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	err = runEngine(t.Context(), nowhere(), httpOptions{address: taken.Addr().String()})
	require.Equal(t, exitConfiguration, exitCode(err))
	require.ErrorContains(t, err, taken.Addr().String())
	require.Contains(t, apply.HintOf(err), "ss -ltnp")
	err = runEngine(t.Context(), nowhere(), httpOptions{address: "8432"})
	require.Equal(t, exitConfiguration, exitCode(err))
	require.Empty(t, apply.HintOf(err))
}

// HTTP is there while the servers are not, says why, and ends with the engine.
func TestHTTPBesideAnEngineThatFindsNobody(t *testing.T) {
	t.Setenv(tokenVariable, aToken)
	const said = "serving HTTP on "
	addresses, failures := make(chan string, 1), make(chan struct{}, 100)
	options := nowhere()
	options.Log = zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zap.InfoLevel),
		zap.Hooks(func(entry zapcore.Entry) error {
			if address, ok := strings.CutPrefix(entry.Message, said); ok {
				addresses <- address
			}
			if entry.Level == zap.WarnLevel {
				select {
				case failures <- struct{}{}:
				default:
				}
			}
			return nil
		}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runEngine(ctx, options, httpOptions{address: ":0", readyLag: time.Minute}) }()
	address := <-addresses
	<-failures // it has tried

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path, bearer string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, nil)
		require.NoError(t, err)
		if bearer != "" {
			request.Header.Set("Authorization", "Bearer "+bearer)
		}
		answer, err := client.Do(request)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(text)
	}
	code, text := get("healthz", "")
	require.Equal(t, http.StatusOK, code, text)
	code, text = get("readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.NotContains(t, text, "127.0.0.1", "addresses are for those who have the token")
	_, text = get("readyz", aToken)
	require.Contains(t, text, "not ready: the tables are not known yet")
	code, _ = get("metrics", "")
	require.Equal(t, http.StatusUnauthorized, code)
	_, text = get("metrics", aToken)
	require.Contains(t, text, `pgapply_last_error{subscription="pgapply"} 1`)
	_, text = get("status", aToken)
	var report operate.Report
	require.NoError(t, json.Unmarshal([]byte(text), &report))
	require.Contains(t, report.LastError, "connect")
	require.NotEmpty(t, report.LastErrorHint)

	cancel()
	require.NoError(t, <-ended)
	_, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(address, "http://"), "/"))
	require.Error(t, err, "nobody listens any more")
}
