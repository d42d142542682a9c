package httpd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "0123456789abcdef"

// fake is a source that says what it is told to say.
type fake struct {
	reasons []string
	stuck   error
}

func (f *fake) Status() any { return map[string]string{"subscription": "orders"} }
func (f *fake) Conflicts(values bool) any {
	if values {
		return []string{"values"}
	}
	return []string{}
}
func (f *fake) Sample() Sample { return Sample{At: time.UnixMilli(5), Rows: 7} }
func (f *fake) WhyNotReady(details bool) []string {
	if len(f.reasons) > 0 && details {
		return append(f.reasons, "details")
	}
	return f.reasons
}
func (f *fake) Stuck() error { return f.stuck }
func (f *fake) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { say(w, "metrics\n") })
}

// on is a server that listens, and answers requests without them.
func on(t *testing.T, options Options, source Source) *Server {
	t.Helper()
	s, err := New(options, source)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.listener.Close()) })
	return s
}

// get asks for a path, with changes to the request.
func get(t *testing.T, s *Server, path string, changes ...func(*http.Request)) *http.Response {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	request.Host = "localhost:8432"
	for _, change := range changes {
		change(request)
	}
	answer := httptest.NewRecorder()
	s.http.Handler.ServeHTTP(answer, request)
	return answer.Result()
}

func with(header, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(header, value) }
}

func body(t *testing.T, answer *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(text)
}

func TestEndpoints(t *testing.T) {
	s := on(t, Options{Address: ":0"}, &fake{})
	s.Remember(s.source.Sample())
	for path, want := range map[string]struct{ kind, text string }{
		"/healthz":   {"text/plain; charset=utf-8", "ok\n"},
		"/readyz":    {"text/plain; charset=utf-8", "ready\n"},
		"/metrics":   {"text/plain; charset=utf-8", "metrics\n"},
		"/status":    {"application/json", "{\n  \"subscription\": \"orders\"\n}\n"},
		"/conflicts": {"application/json", `"values": true`},
		"/history":   {"application/json", "\"rows\": [\n    7\n  ]"},
		"/":          {"text/html; charset=utf-8", "<!doctype html>"},
		"/page.js":   {"text/javascript; charset=utf-8", "import"},
		"/plot.js":   {"text/javascript; charset=utf-8", "export"},
		"/format.js": {"text/javascript; charset=utf-8", "export"},
		"/page.css":  {"text/css; charset=utf-8", "@media"},
		"/icon.svg":  {"image/svg+xml", "<svg"},
	} {
		answer := get(t, s, path)
		require.Equal(t, http.StatusOK, answer.StatusCode, path)
		require.Equal(t, want.kind, answer.Header.Get("Content-Type"), path)
		require.Contains(t, body(t, answer), want.text, path)
		require.Contains(t, answer.Header.Get("Content-Security-Policy"), "default-src 'self'", path)
		require.Equal(t, "nosniff", answer.Header.Get("X-Content-Type-Options"), path)
		require.Empty(t, answer.Header.Get("Access-Control-Allow-Origin"), path)
	}
	require.Equal(t, http.StatusNotFound, get(t, s, "/other").StatusCode)
}

func TestProbes(t *testing.T) {
	source := &fake{reasons: []string{"starting"}, stuck: errors.New("no sign of life")}
	s := on(t, Options{Address: ":0", Token: secret}, source)
	answer := get(t, s, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode, "a probe has no token")
	require.Equal(t, "not ready: starting\n", body(t, answer))
	require.Equal(t, "not ready: starting\nnot ready: details\n", body(t, get(t, s, "/readyz", with("Authorization", "Bearer "+secret))))
	answer = get(t, s, "/healthz")
	require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
	require.Equal(t, "no sign of life\n", body(t, answer))
}

func TestNothingCanBeChanged(t *testing.T) {
	s := on(t, Options{Address: ":0"}, &fake{})
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, "QUERY"} {
		answer := get(t, s, "/status", func(r *http.Request) { r.Method = method })
		require.Equal(t, http.StatusMethodNotAllowed, answer.StatusCode, method)
		require.Equal(t, "GET, HEAD", answer.Header.Get("Allow"))
	}
	require.Equal(t, http.StatusOK, get(t, s, "/status", func(r *http.Request) { r.Method = http.MethodHead }).StatusCode)
}

func TestToken(t *testing.T) {
	s := on(t, Options{Address: ":0", Token: secret}, &fake{})
	for _, path := range []string{"/metrics", "/status", "/conflicts", "/history"} {
		for _, header := range []string{"", "Bearer", "Bearer ", "Bearer " + secret + "x", "Bearer " + secret[1:], "Basic " + secret, secret} {
			answer := get(t, s, path, with("Authorization", header))
			require.Equal(t, http.StatusUnauthorized, answer.StatusCode, "%s with %q", path, header)
			require.Equal(t, `Bearer realm="pgapply"`, answer.Header.Get("WWW-Authenticate"))
			require.NotContains(t, body(t, answer), "orders")
		}
		require.Equal(t, http.StatusOK, get(t, s, path, with("Authorization", "bearer "+secret)).StatusCode, path)
		require.Equal(t, http.StatusUnauthorized, get(t, s, path+"?token="+secret).StatusCode, "an address ends up in logs")
	}
	for _, path := range []string{"/", "/page.js", "/page.css", "/healthz", "/readyz"} {
		require.Equal(t, http.StatusOK, get(t, s, path).StatusCode, path)
	}
}

func TestCheckToken(t *testing.T) {
	require.NoError(t, CheckToken(secret))
	for _, token := range []string{"", "short", "with a space in it", "zwölf Zeichen und mehr", "two\nlines-of-some-length"} {
		err := CheckToken(token)
		require.Error(t, err, token)
		if token != "" {
			require.NotContains(t, err.Error(), token)
		}
	}
	_, err := New(Options{Address: ":0", Token: "short"}, &fake{})
	require.Error(t, err)
}

// A page from elsewhere whose name has been made to lead to the loopback address gets
// nothing.
func TestNameThatLeadsToLoopback(t *testing.T) {
	open := on(t, Options{Address: ":0"}, &fake{})
	guarded := on(t, Options{Address: ":0", Token: secret}, &fake{})
	for host, ours := range map[string]bool{
		"localhost": true, "LOCALHOST:1": true, "127.0.0.1:8432": true, "127.0.0.1": true, "[::1]:8432": true, "[::1]": true, "10.1.2.3:80": true,
		"evil.example": false, "evil.example:8432": false, "localhost.evil.example": false, "127.0.0.1.evil.example:80": false, "": false,
	} {
		at := func(r *http.Request) { r.Host = host }
		for _, path := range []string{"/", "/status", "/healthz"} {
			want := http.StatusMisdirectedRequest
			if ours {
				want = http.StatusOK
			}
			require.Equal(t, want, get(t, open, path, at).StatusCode, "%s of %q", path, host)
		}
		require.Equal(t, http.StatusOK, get(t, guarded, "/status", at, with("Authorization", "Bearer "+secret)).StatusCode, "who has the token is no stranger")
	}
}

// Row values are for those who have the token, or an account on this machine.
func TestWhoSeesValues(t *testing.T) {
	for _, test := range []struct {
		options Options
		shown   bool
		open    bool
	}{
		{Options{Address: "127.0.0.1:0"}, true, false},
		{Options{Address: "0.0.0.0:0"}, false, true},
		{Options{Address: "0.0.0.0:0", Token: secret}, true, false},
	} {
		s := on(t, test.options, &fake{})
		require.Equal(t, test.open, s.Open())
		var answer struct {
			Values    bool
			Conflicts []string
		}
		require.NoError(t, json.Unmarshal([]byte(body(t, get(t, s, "/conflicts", with("Authorization", "Bearer "+secret)))), &answer))
		require.Equal(t, test.shown, answer.Values)
		require.Equal(t, test.shown, len(answer.Conflicts) > 0)
	}
}

func TestAddress(t *testing.T) {
	for given, want := range map[string]string{
		":8432": "127.0.0.1:8432", "0.0.0.0:1": "0.0.0.0:1", "[::1]:1": "[::1]:1", "host.example:1": "host.example:1", ":0": "127.0.0.1:0",
	} {
		options := Options{Address: given}
		address, err := options.address()
		require.NoError(t, err)
		require.Equal(t, want, address)
	}
	for _, given := range []string{"8432", "localhost", "::1:8432", ":http", ":65536", ":-1", ":", ""} {
		_, err := New(Options{Address: given}, &fake{})
		require.ErrorContains(t, err, fmt.Sprintf("%q", given))
	}
}

func TestPortInUse(t *testing.T) {
	s := on(t, Options{Address: ":0"}, &fake{})
	_, err := New(Options{Address: s.Address()}, &fake{})
	require.ErrorContains(t, err, s.Address())
	require.ErrorContains(t, err, "in use")
}

func TestHistory(t *testing.T) {
	var h history
	require.Empty(t, h.after(0).At)
	for i := range int64(samples + 3) {
		h.add(Sample{At: time.UnixMilli(1000 + i), Rows: i, LagBytes: 2 * i})
	}
	all := h.after(0)
	require.Len(t, all.At, samples)
	require.EqualValues(t, 1003, all.At[0], "the oldest are gone")
	require.EqualValues(t, samples+2, all.Rows[samples-1])
	require.EqualValues(t, 2*samples+4, all.LagBytes[samples-1])
	newest := h.after(1000 + samples + 1)
	require.Equal(t, []int64{1000 + samples + 2}, newest.At)
	require.Len(t, newest.CopiedRows, 1)
}

// What clients hold on to does not hold the server.
func TestStopsWhileClientsDawdle(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s, err := New(Options{Address: ":0"}, &fake{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()

	idle, err := net.Dial("tcp", s.Address())
	require.NoError(t, err)
	defer idle.Close()
	half, err := net.Dial("tcp", s.Address())
	require.NoError(t, err)
	defer half.Close()
	_, err = half.Write([]byte("GET /status HTTP/1.1\r\nHost: local"))
	require.NoError(t, err)
	kept, err := net.Dial("tcp", s.Address())
	require.NoError(t, err)
	defer kept.Close()
	_, err = kept.Write([]byte("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	require.NoError(t, err)
	line, err := bufio.NewReader(kept).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 200 OK\r\n", line)

	cancel()
	require.NoError(t, <-ended)
	goleak.VerifyNone(t, before) // nor does it go on behind our back
	require.NotZero(t, s.history.mu.count, "it has sampled")
}

func TestLargeHeadersAreRefused(t *testing.T) {
	s, err := New(Options{Address: ":0"}, &fake{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Address()+"/healthz", nil)
	require.NoError(t, err)
	request.Header.Set("X", strings.Repeat("x", 2*mostHeaders))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, answer.StatusCode)
	cancel()
	require.NoError(t, <-ended)
}

// The page needs nothing from elsewhere, and makes no markup of what it is told.
func TestPageIsItsOwn(t *testing.T) {
	require.NoError(t, fs.WalkDir(page, "page", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := page.ReadFile(path)
		require.NoError(t, err)
		elsewhere := strings.ReplaceAll(string(text), "http://www.w3.org/2000/svg", "")
		require.NotRegexp(t, regexp.MustCompile(`https?://|url\(|@import`), elsewhere, path)
		require.NotRegexp(t, regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|eval\(|new Function|\son[a-z]+=|style=`), string(text), path)
		return nil
	}))
}
