package demo

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// watcher calls back, once, when what was shown matches.
type watcher struct {
	bytes.Buffer
	pattern *regexp.Regexp
	seen    func(match []string)
}

func (w *watcher) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if match := w.pattern.FindStringSubmatch(w.String()); match != nil && w.seen != nil {
		w.seen(match)
		w.seen = nil
	}
	return n, err
}

func TestDemoFindsIdenticalTablesAndGoesOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kept, ended := make(chan []string, 1), make(chan error, 1)
	out := &watcher{pattern: regexp.MustCompile(`(?s)psql '(\S+)'\n.*psql '(\S+)'\n`), seen: func(uris []string) { kept <- uris[1:] }}
	go func() {
		ended <- Run(ctx, Options{Duration: 3 * time.Second, Keep: true, Out: out, Log: zaptest.NewLogger(t)})
	}()
	select {
	case uris := <-kept:
		pgtest.Exec(t, uris[0], "INSERT INTO branches VALUES (-1, 'late')")
		pgtest.WaitFor(t, uris[1], "SELECT name FROM branches WHERE id = -1", "late")
	case err := <-ended:
		require.NoError(t, err)
		require.Fail(t, "the demo has ended by itself")
	}
	cancel()
	require.NoError(t, <-ended)

	_, identical, _ := strings.Cut(out.String(), "identical")
	for _, table := range []string{"accounts", "audit", "branches", "contracts", "history", "transfers"} {
		require.Contains(t, identical, table+" (")
	}
	require.NotContains(t, identical, "(0)", "each table has rows to compare")
}

func TestDemoCanBeInterruptedAtAnyTime(t *testing.T) {
	for _, at := range []string{"starting", "lag"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			out := &watcher{pattern: regexp.MustCompile(at), seen: func([]string) { cancel() }}
			err := Run(ctx, Options{Duration: 2 * time.Second, Out: out, Log: zaptest.NewLogger(t)})
			require.ErrorIs(t, err, context.Canceled)
			require.NotContains(t, out.String(), "identical")
		})
	}
}

func TestCompareCountsRowsOfEachSide(t *testing.T) {
	server := pgtest.Start(t)
	left, right := pgtest.Database(t, server), pgtest.Database(t, server)
	for uri, rows := range map[string]string{
		left:  `('same', 1), ('same', 1), (NULL, 2), ('changed', 3), ('publisher', NULL), ('B', 0), ('ä', 0)`,
		right: `('same', 1), (NULL, 2), ('changed', 4), ('target', NULL), ('target', NULL), ('B', 0), ('ä', 0)`,
	} {
		pgtest.Exec(t, uri, `CREATE TABLE "odd ""name" (a text, b int)`, `INSERT INTO "odd ""name" VALUES `+rows)
	}
	found, err := compare(t.Context(), connect(t, left), connect(t, right), `odd "name`)
	require.NoError(t, err)
	require.Equal(t, comparison{same: 4, publisherOnly: 3, targetOnly: 3}, found)
	require.False(t, found.identical())

	found, err = compare(t.Context(), connect(t, left), connect(t, left), `odd "name`)
	require.NoError(t, err)
	require.Equal(t, comparison{same: 7}, found)
	require.True(t, found.identical())
}

func connect(t *testing.T, uri string) *pgx.Conn {
	conn, err := pgx.Connect(t.Context(), uri)
	require.NoError(t, err)
	t.Cleanup(func() { disconnect(conn) })
	return conn
}

func TestScreen(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, terminal: true}
	s.line("one")
	s.line("two")
	s.say("done")
	require.Equal(t, "\rone\x1b[K\rtwo\x1b[K\ndone\n", out.String())

	require.Equal(t, "0", count(0))
	require.Equal(t, "999", count(999))
	require.Equal(t, "1,000,234", count(1000234))
	require.Equal(t, "1 row", counted(1, "row"))
	require.Equal(t, "1,000 rows", counted(1000, "row"))
	require.Equal(t, "1023 B", size(1023))
	require.Equal(t, "1.5 KiB", size(1536))
	require.Equal(t, "2.0 MiB", size(2<<20))
}
