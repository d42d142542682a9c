package integration

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// link is a publisher's and a target's database and the subscription between them.
type link struct {
	t              *testing.T
	source, target string
	name           string

	// flags are further ones of every process that is spawned.
	flags []string
	// mode says how play goes about it.
	mode mode
	// distant leads to a target that is far away.
	distant string

	engine *apply.Engine
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// newLink makes two fresh databases on the shared servers.
func newLink(t *testing.T) *link {
	publisher, target := pgtest.Shared(t)
	l := &link{t: t, source: pgtest.Database(t, publisher)}
	l.target = pgtest.Database(t, target)
	l.name = pgtest.Query(t, l.source, `SELECT current_database()`)
	return l
}

// both runs SQL on either end, each string a transaction of its own.
func (l *link) both(sql ...string) {
	l.t.Helper()
	pgtest.Exec(l.t, l.source, sql...)
	pgtest.Exec(l.t, l.target, sql...)
}

func (l *link) onSource(sql ...string) { l.t.Helper(); pgtest.Exec(l.t, l.source, sql...) }
func (l *link) onTarget(sql ...string) { l.t.Helper(); pgtest.Exec(l.t, l.target, sql...) }

// mode is a way to bring a workload to the target that must make no difference.
type mode struct {
	name string
	// backlog lets the workload pile up before the engine starts, so that it comes
	// in groups.
	backlog bool
	change  func(*apply.Options)
	// far: a round trip between the engine and the target takes so long that it is avoided.
	far bool
}

// farAway is such a round trip.
const farAway = 6 * time.Millisecond

// eachMode runs a test once for each mode.
func eachMode(t *testing.T, test func(t *testing.T, l *link)) {
	for _, m := range []mode{
		{name: "live", change: func(*apply.Options) {}},
		{name: "backlog", backlog: true, change: func(*apply.Options) {}},
		{name: "binary from far away", backlog: true, far: true, change: func(o *apply.Options) { o.Binary = true }},
	} {
		t.Run(m.name, func(t *testing.T) {
			l := newLink(t)
			l.mode = m
			test(t, l)
		})
	}
}

// play runs the workload on the publisher, each string a transaction, and brings
// it to the target as the mode says.
func (l *link) play(workload ...string) {
	l.t.Helper()
	if l.engine == nil {
		l.start()
	}
	if l.mode.backlog {
		l.stop()
	}
	l.onSource(workload...)
	if l.mode.backlog {
		l.start()
	}
	l.catchUp()
}

// options are those of a start: publication p, slot and name as the database.
func (l *link) options(change ...func(*apply.Options)) apply.Options {
	o := apply.DefaultOptions()
	o.Name, o.Source, o.Target = l.name, l.source, l.reach()
	o.Publications = []string{"p"}
	o.SpoolDir, o.CopyData = l.t.TempDir(), false
	o.Log = zaptest.NewLogger(l.t, zaptest.Level(zap.DebugLevel))
	if l.mode.change != nil {
		l.mode.change(&o)
	}
	for _, set := range change {
		set(&o)
	}
	return o
}

// reach is the target as the engine connects to it.
func (l *link) reach() string {
	if !l.mode.far {
		return l.target
	}
	if l.distant == "" {
		proxy, uri, err := faultnet.ListenURI(l.target)
		require.NoError(l.t, err)
		l.t.Cleanup(proxy.Close)
		proxy.Delay(farAway / 2)
		l.distant = uri
	}
	return l.distant
}

// start runs the engine until the test ends, and waits until it streams.
func (l *link) start(change ...func(*apply.Options)) {
	l.t.Helper()
	l.launch(l.options(change...))
	pgtest.WaitFor(l.t, l.source, `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, "t", l.name)
	pgtest.WaitFor(l.t, l.source, `SELECT state FROM pg_stat_replication WHERE application_name = $1`, "streaming", l.name)
}

func (l *link) launch(o apply.Options) {
	l.t.Helper()
	engine, err := apply.New(o)
	require.NoError(l.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	l.engine, l.cancel, l.done = engine, cancel, make(chan struct{})
	done := l.done
	go func() {
		defer close(done)
		if l.err = engine.Run(ctx); l.err != nil {
			l.t.Logf("the engine has ended: %v", l.err)
		}
	}()
	l.t.Cleanup(func() { cancel(); <-done })
}

// run runs the engine to its end.
func (l *link) run(change ...func(*apply.Options)) error {
	l.t.Helper()
	l.launch(l.options(change...))
	return l.wait()
}

// wait waits for the engine's end.
func (l *link) wait() error {
	l.t.Helper()
	select {
	case <-l.done:
	case <-time.After(2 * time.Minute):
		l.cancel()
		require.Fail(l.t, "the engine does not end")
	}
	return l.err
}

// stop ends the engine in order.
func (l *link) stop() {
	l.t.Helper()
	l.cancel()
	require.NoError(l.t, l.wait())
}

// catchUp waits until the publisher knows that everything written so far is
// durable on the target.
func (l *link) catchUp() {
	l.t.Helper()
	position := pgtest.Query(l.t, l.source, `SELECT pg_current_wal_flush_lsn()`)
	pgtest.WaitFor(l.t, l.source,
		`SELECT confirmed_flush_lsn >= $1::pg_lsn AND active FROM pg_replication_slots WHERE slot_name = $2`, "t", position, l.name)
}

// same proves that a query gives the same rows on both ends, and at least one.
func (l *link) same(query string) string {
	l.t.Helper()
	want := pgtest.Query(l.t, l.source, query)
	require.NotEmpty(l.t, want, query)
	require.Equal(l.t, want, pgtest.Query(l.t, l.target, query), query)
	return want
}

// failure waits until the engine reports an error that contains all of the texts.
func (l *link) failure(texts ...string) state.Status {
	l.t.Helper()
	deadline := time.After(time.Minute)
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		status := l.engine.Status()
		if status.LastError != "" && containsAll(status.LastError+"\n"+status.LastErrorHint, texts) {
			return status
		}
		select {
		case <-pause.C:
		case <-deadline:
			require.Fail(l.t, "no such error", "want %q, have %q (%q)", texts, status.LastError, status.LastErrorHint)
		}
	}
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// requireClass proves that an error is an apply.Error of a class and names what it should.
func requireClass(t *testing.T, class apply.Class, err error, texts ...string) {
	t.Helper()
	typed, ok := errors.AsType[*apply.Error](err)
	require.True(t, ok, "want an *apply.Error, have %v", err)
	require.Equal(t, class, typed.Class, "%v", err)
	for _, text := range texts {
		require.Contains(t, typed.Error()+"\n"+typed.Hint, text)
	}
}

var finished = regexp.MustCompile(`finished at ([0-9A-F]+/[0-9A-F]+)`)

// finishedAt reads the position that an apply error names.
func finishedAt(t *testing.T, text string) string {
	t.Helper()
	match := finished.FindStringSubmatch(text)
	require.NotNil(t, match, text)
	return match[1]
}
