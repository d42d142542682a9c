package apply

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"pgapply/apply/state"
	"pgapply/internal/faultnet"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// slow is an engine that does nothing by itself for hours: it rests that long after an
// error, and does not look at the state.
type slow struct {
	*Engine
	t              *testing.T
	source, target string
	publisher      *faultnet.Proxy
	store          *state.Store
}

func startSlow(t *testing.T) *slow {
	publisher, target := pgtest.Shared(t)
	s := &slow{t: t, source: pgtest.Database(t, publisher), target: pgtest.Database(t, target)}
	for _, uri := range []string{s.source, s.target} {
		pgtest.Exec(t, uri, `CREATE TABLE t (id int PRIMARY KEY)`)
	}
	pgtest.Exec(t, s.source, `CREATE PUBLICATION p FOR TABLE t`)
	options := DefaultOptions()
	options.Name = pgtest.Query(t, s.source, `SELECT current_database()`)
	var err error
	s.publisher, options.Source, err = faultnet.ListenURI(s.source)
	require.NoError(t, err)
	t.Cleanup(s.publisher.Close)
	options.Target, options.Publications, options.SpoolDir = s.target, []string{"p"}, t.TempDir()
	options.Log = zaptest.NewLogger(t)
	s.Engine, err = New(options)
	require.NoError(t, err)
	s.poll, s.backoff.first, s.backoff.longest = time.Hour, time.Hour, time.Hour

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx) // nil
	}()
	t.Cleanup(func() { cancel(); <-done })
	s.reaches(state.Streaming)
	conn, err := state.ConnectControl(t.Context(), s.target, "", "person")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	s.store, err = state.OpenExisting(t.Context(), conn, options.Name)
	require.NoError(t, err)
	return s
}

// reaches waits until the engine is in the phase.
func (s *slow) reaches(phase state.Phase) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.Status().Phase == phase }, time.Minute, 10*time.Millisecond, "%s", phase)
}

func (s *slow) pause() {
	s.t.Helper()
	_, err := s.store.Pause(s.t.Context(), "")
	require.NoError(s.t, err)
}

func (s *slow) resume() {
	s.t.Helper()
	_, err := s.store.Resume(s.t.Context())
	require.NoError(s.t, err)
}

// skip leaves out what the failed conflict is about.
func (s *slow) skip() {
	s.t.Helper()
	position, err := lsn.Parse(pgtest.Query(s.t, s.target, `SELECT max(remote_commit_lsn) FROM pgapply.conflict WHERE resolution = 'failed'`))
	require.NoError(s.t, err)
	_, err = s.store.SetSkip(s.t.Context(), position)
	require.NoError(s.t, err)
}

// applied waits until the target has the rows.
func (s *slow) applied(ids string) {
	s.t.Helper()
	pgtest.WaitFor(s.t, s.target, `SELECT string_agg(id::text, ' ' ORDER BY id) FROM t`, ids)
}

// TestCommandsWakeAStream: an engine that streams does as it is told at once.
func TestCommandsWakeAStream(t *testing.T) {
	s := startSlow(t)
	s.pause()
	s.reaches(state.Paused)
	pgtest.Exec(t, s.source, `INSERT INTO t VALUES (1)`)
	s.resume()
	s.applied("1")
	s.reaches(state.Streaming)
}

// TestCommandsWakeARest: one that rests after an apply error does so too.
func TestCommandsWakeARest(t *testing.T) {
	s := startSlow(t)
	pgtest.Exec(t, s.target, `INSERT INTO t VALUES (1), (3)`)
	pgtest.Exec(t, s.source, `INSERT INTO t VALUES (1)`, `INSERT INTO t VALUES (2)`)
	s.reaches(state.Retrying)
	s.skip()
	s.applied("1 2 3")
	pgtest.Exec(t, s.source, `INSERT INTO t VALUES (3)`, `INSERT INTO t VALUES (4)`)
	s.reaches(state.Retrying)
	s.pause()
	s.reaches(state.Paused)
	s.skip()
	s.resume()
	s.applied("1 2 3 4")
	// One that is not paused tries again at once.
	pgtest.Exec(t, s.target, `INSERT INTO t VALUES (5)`)
	pgtest.Exec(t, s.source, `INSERT INTO t VALUES (5), (6)`)
	s.reaches(state.Retrying)
	pgtest.Exec(t, s.target, `DELETE FROM t WHERE id = 5`)
	s.resume()
	s.applied("1 2 3 4 5 6")
}

// TestCommandsNeedNoPublisher: also one that cannot reach its publisher.
func TestCommandsNeedNoPublisher(t *testing.T) {
	s := startSlow(t)
	s.publisher.Refuse()
	s.publisher.DropAll()
	s.reaches(state.Retrying)
	s.pause()
	s.reaches(state.Paused)
	s.publisher.Accept()
	s.resume()
	pgtest.Exec(t, s.source, `INSERT INTO t VALUES (1)`)
	s.applied("1")
}
