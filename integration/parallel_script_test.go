package integration

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// A stage is a link for scripts: steps on the publisher, one a line, such as
//
//	a: BEGIN
//	a: INSERT INTO t VALUES (1, 'x')
//	a: push
//	-: INSERT INTO t VALUES (2, 'y')
//	a: COMMIT
//
// Each name is a session that stays, and "-" one of its own for each step. A push has
// the publisher send what the session's transaction has done so far, and returns when
// it is sent. The same stage may play several scripts.
type stage struct {
	*link
	sessions map[string]*pgtest.Session
	// yields counts the transactions that were rolled back because they stood in the
	// way of an earlier one, and refusals those that could not be applied ahead to their
	// end, both in runs with counting.
	yields, refusals atomic.Int64
}

func (s *stage) counting(o *apply.Options) {
	o.Log = o.Log.WithOptions(zap.Hooks(func(e zapcore.Entry) error {
		switch {
		case strings.Contains(e.Message, "stands in the way of an earlier one"):
			s.yields.Add(1)
		case strings.Contains(e.Message, "a streamed transaction waits for its turn"):
			s.refusals.Add(1)
		}
		return nil
	}))
}

// pad fills the publisher's memory with changes of a table that nobody publishes, so
// that it streams the transaction that they belong to.
const pad = `INSERT INTO pad SELECT g, repeat('x', 100) FROM generate_series(1, 500) g`

// newStage makes a link whose publisher streams what pushes.
func newStage(l *link) *stage {
	l.t.Helper()
	l.streamEarly()
	l.onSource(`CREATE TABLE pad (id int, v text)`)
	return &stage{link: l, sessions: make(map[string]*pgtest.Session)}
}

func (s *stage) script(text string) {
	s.t.Helper()
	for line := range strings.Lines(text) {
		name, sql, found := strings.Cut(strings.TrimSpace(line), ": ")
		if !found {
			require.Empty(s.t, strings.TrimSpace(line))
			continue
		}
		switch {
		case sql == "push":
			s.session(name).Exec(pad)
			s.onSource(`INSERT INTO pad VALUES (0, 'its commit flushes the log')`)
			s.awaitSent()
		case name == "ahead":
			workers, err := strconv.Atoi(sql)
			require.NoError(s.t, err)
			s.ahead(workers)
		case name == "-":
			s.onSource(sql)
		default:
			s.session(name).Exec(sql)
		}
	}
}

func (s *stage) session(name string) *pgtest.Session {
	s.t.Helper()
	if s.sessions[name] == nil {
		s.sessions[name] = pgtest.Open(s.t, s.source)
	}
	return s.sessions[name]
}

// workerQuery counts the workers beside the head with a transaction open on the target.
const workerQuery = `FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ ':w[1-9]' AND backend_xid IS NOT NULL`

// ahead waits until that many workers have applied what there is of a transaction, and
// wait for more of it.
func (l *link) ahead(workers int) {
	l.t.Helper()
	pgtest.WaitFor(l.t, l.target, `SELECT count(*) `+workerQuery+` AND wait_event = 'ClientRead'`, fmt.Sprint(workers))
}

// blocked waits until that many sessions of ours wait for a lock of the target.
func (l *link) blocked(sessions int) {
	l.t.Helper()
	pgtest.WaitFor(l.t, l.target, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ ':w[0-9]' AND wait_event_type = 'Lock'`, fmt.Sprint(sessions))
}

// sameTables proves that tables have the same rows on both ends, as often.
func (l *link) sameTables(names ...string) {
	l.t.Helper()
	for _, name := range names {
		l.same(fmt.Sprintf(`SELECT '%[1]s', count(*), md5(string_agg(r::text, ',' ORDER BY r::text)) FROM %[1]s r`, name))
	}
}
