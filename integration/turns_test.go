package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"pgapply/apply"
	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// TestTurnsOfARestart bounds how often each session waits for an answer between the start of
// a subscription that is known and its stream. On a link with a round trip of 30 ms each of
// those that wait for one another is that much time in which nothing is replicated, after an
// upgrade or a take-over as after an error. Turns are counted, not timed: one more is a
// decision, to be made here. Sessions that are opened side by side wait at the same time:
//
//	control  login to terms (7) ─ lock, fence (5) ─ state (3) ────────────────────────────────
//	                         │                    │         w0 origin (2) ─┬─ w1.. origins (4) ─┐
//	workers                  │                    ├─ opened (5) ───────────┴─ tables (4) ───────┤
//	publisher      start (5) ┘                    └─ slot (2) ─                                stream (4)
func TestTurnsOfARestart(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE t (a int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	toSource, source, err := faultnet.ListenURI(l.source)
	require.NoError(t, err)
	t.Cleanup(toSource.Close)
	toTarget, target, err := faultnet.ListenURI(l.target)
	require.NoError(t, err)
	t.Cleanup(toTarget.Close)
	through := func(o *apply.Options) { o.Source, o.Target = source, target }
	l.start(through)
	l.catchUp()
	l.stop()
	for _, end := range []string{l.source, l.target} { // a session that is still ending would be waited for
		pgtest.WaitFor(t, end, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`, "0")
	}

	traces := []*faultnet.Trace{toTarget.Trace(), toSource.Trace()}
	streaming := make(chan []faultnet.Conversation, 1)
	l.start(through, func(o *apply.Options) {
		o.Log = o.Log.WithOptions(zap.Hooks(func(entry zapcore.Entry) error {
			if entry.Message == "streaming" {
				streaming <- append(traces[0].Conversations(), traces[1].Conversations()...)
			}
			return nil
		}))
	})
	most := map[string]int{
		":control": 16,
		":w0":      8, ":w1": 7, ":w2": 7, ":w3": 7,
		":start": 9,
		"":       5,
	}
	for _, c := range <-streaming {
		// The heartbeat comes at its own times.
		c.Turns = slices.DeleteFunc(c.Turns, func(turn []string) bool {
			sql := strings.Join(turn, "\n")
			return strings.Contains(sql, "UPDATE pgapply.runner SET heartbeat") || strings.Contains(sql, "DELETE FROM pgapply.conflict")
		})
		role := strings.TrimPrefix(strings.TrimPrefix(c.Application, "pgapply:"), l.name)
		bound, known := most[role]
		require.True(t, known, "a session more: %s", c)
		require.LessOrEqual(t, len(c.Turns), bound, "%s", c)
		delete(most, role)
	}
	require.Empty(t, most, "sessions that were not opened")
	l.stop()
}
