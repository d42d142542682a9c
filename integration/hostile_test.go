package integration

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/faultnet"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

// broken are the beginnings of what the engine may say of a damaged stream. Anything else,
// such as that a transaction cannot be applied, would mean that it believed it.
var broken = []string{
	"malformed pgoutput ", "protocol violation: ", "the publisher's stream is broken: ", "receive from the publisher: ",
	"the publisher ended the stream", "a publication does not exist", "confirm that the publisher's log reaches",
}

// TestBadPublisher: whatever arrives in place of a publisher's frames, nothing of it reaches
// the target, nothing is acknowledged that has not arrived, and the stream begins again where
// the target stands. PGAPPLY_TEST_VANDALS says how often, PGAPPLY_TEST_SEED makes it the same again.
func TestBadPublisher(t *testing.T) {
	t.Parallel()
	seed := uint64(fromEnvironment(t, "PGAPPLY_TEST_SEED", int(time.Now().UnixNano()&0xffffff)))
	t.Logf("PGAPPLY_TEST_SEED=%d", seed)
	rounds := fromEnvironment(t, "PGAPPLY_TEST_VANDALS", len(damages))
	l := newLink(t)
	l.loadTables()
	l.start() // makes the slot
	w := l.startLoad(2)
	w.issue(20)
	awaitDone(t, l.target, w.issued)
	l.catchUp()
	l.stop()

	all := &vandals{random: rand.New(rand.NewPCG(seed, 1))}
	var err error
	all.sent, err = lsn.Parse(pgtest.Query(t, l.source, `SELECT pg_current_wal_insert_lsn()`))
	require.NoError(t, err)
	proxy, uri, err := faultnet.ListenURI(l.source)
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	proxy.Rewrite(func() faultnet.Rewriter { return &vandal{vandals: all} })
	warnings, said := observer.New(zap.WarnLevel)
	l.start(func(o *apply.Options) { o.Source, o.Log = uri, zap.New(warnings) })

	outcomes := make(map[string]*outcome)
	order := all.random.Perm(len(damages))
	for round := range rounds {
		way := &damages[order[round%len(damages)]]
		if outcomes[way.name] == nil {
			outcomes[way.name] = &outcome{}
		}
		l.suffer(all, way, w, said, outcomes[way.name])
	}
	w.finish()
	l.catchUp()
	l.sameLoad()
	all.mu.Lock()
	require.Zero(t, all.overdrawn, "acknowledged, and never sent")
	all.mu.Unlock()
	status := l.engine.Status()
	require.Zero(t, status.Misses)
	require.Empty(t, status.Conflicts)
	l.stop()
	for _, way := range damages {
		if o := outcomes[way.name]; o != nil {
			t.Logf("%-42s %4d damages %4d broken off %4d harmless", way.name, o.broken+o.harmless, o.broken, o.harmless)
		}
	}
}

type outcome struct{ broken, harmless int }

// suffer lets a vandal loose, and waits until the engine has got over it.
func (l *link) suffer(all *vandals, way *damage, w *load, said *observer.ObservedLogs, o *outcome) {
	l.t.Helper()
	retries := l.engine.Status().Retries
	fired := all.loose(way)
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	deadline := time.After(patience)
	for damaged := false; !damaged; {
		select {
		case <-fired:
			damaged = true
		case <-pause.C:
			if len(w.units) < 4 {
				w.issue(4)
			}
		case <-deadline:
			require.Fail(l.t, "nothing could be damaged", way.name)
		}
	}
	w.issue(10) // to be applied behind it
	for over := false; !over; {
		select {
		case <-pause.C:
		case <-l.done:
			require.Fail(l.t, "the engine has ended", "%s: %v", way.name, l.err)
		case <-deadline:
			require.Fail(l.t, "the engine does not get over it", "%s: %+v", way.name, l.engine.Status().LastError)
		}
		if l.engine.Status().Phase == state.Retrying { // a person who does not want to wait
			pgtest.Exec(l.t, l.target, `SELECT pg_notify('`+state.Channel+`', '`+l.name+`')`)
		}
		over = done(l.t, l.target) >= w.issued
	}
	if l.engine.Status().Retries > retries {
		o.broken++
	} else {
		o.harmless++
	}
	for _, entry := range said.TakeAll() {
		known := false
		for _, beginning := range broken {
			known = known || strings.HasPrefix(entry.Message, beginning)
		}
		require.True(l.t, known, "%s: %s", way.name, entry.Message)
	}
}

// fromEnvironment reads an environment variable.
func fromEnvironment(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		return otherwise
	}
	n, err := strconv.Atoi(value)
	require.NoError(t, err, "%s=%q is not a number", variable, value)
	return n
}
