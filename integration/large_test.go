package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// TestMillionRows: a transaction of a million rows passes through little memory,
// whichever way it comes.
func TestMillionRows(t *testing.T) {
	t.Parallel()
	const limit = 256 << 20
	for streaming, rows := range map[string]int{"on": 1_000_000, "off": 200_000, "parallel": 200_000} {
		if os.Getenv("PGAPPLY_TEST_CRASHES") != "" {
			rows = 1_000_000
		}
		t.Run(streaming, func(t *testing.T) {
			l := newLink(t)
			l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
			p := l.spawn("--streaming", streaming)
			l.streams(p)
			began := time.Now()
			l.onSource(fmt.Sprintf(`INSERT INTO t SELECT g, repeat(md5(g::text), 3) FROM generate_series(1, %d) g`, rows))
			written := time.Since(began)
			l.catchUp()
			peak := p.peakMemory()
			t.Logf("streaming %s: %d rows in one transaction, written in %s, applied after %s, peak memory %d MiB", streaming, rows,
				written.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), peak>>20)
			require.Less(t, peak, int64(limit))
			l.same(`SELECT count(*), sum(id), sum(hashtext(v)::bigint) FROM t`)
			p.stop()
		})
	}
}

// TestInterleavedStreams: large transactions that arrive in pieces, among each
// other, with subtransactions that are kept, lost and nested, come out as they did
// on the publisher.
func TestInterleavedStreams(t *testing.T) {
	t.Parallel()
	for _, streaming := range []string{"off", "on", "parallel"} {
		for name, memory := range map[string]int64{"memory": 128 << 20, "spool": 1 << 20} {
			t.Run(streaming+"/"+name, func(t *testing.T) {
				l := newLink(t)
				l.streamEarly()
				l.both(`CREATE TABLE t (writer int, id int, v text, PRIMARY KEY (writer, id))`)
				l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
				l.start(func(o *apply.Options) { o.Streaming, o.MemoryLimit = streaming, memory })
				l.interleave()
				l.catchUp()
				l.same(`SELECT * FROM t ORDER BY 1, 2`)
				require.Zero(t, l.engine.Status().Misses)
				require.Zero(t, l.engine.Status().Retries, "it came out right at once")
				pgtest.WaitFor(t, l.source, `SELECT stream_txns >= 4 FROM pg_stat_replication_slots WHERE slot_name = $1`,
					map[bool]string{true: "t", false: "f"}[streaming != "off"], l.name)
				l.stop()
			})
		}
	}
}

// interleave runs four large transactions at a time, and small ones between them.
func (l *link) interleave() {
	l.t.Helper()
	var sessions [5]func(sql string)
	for i := range sessions {
		sessions[i] = session(l.t, l.source)
	}
	insert := func(writer, from, to int) string {
		return fmt.Sprintf(`INSERT INTO t SELECT %d, g, md5(g::text) FROM generate_series(%d, %d) g`, writer, from, to)
	}
	const small, a, b, c, d = 0, 1, 2, 3, 4
	for number, step := range []struct {
		writer int
		sql    string
	}{
		{a, `BEGIN`},
		{a, insert(a, 1, 2000)},
		{b, `BEGIN`},
		{b, insert(b, 1, 1000)},
		{b, `SAVEPOINT s`},
		{b, insert(b, 1001, 4000)},
		{a, `SAVEPOINT kept`},
		{a, insert(a, 2001, 4000)},
		{a, `SAVEPOINT lost`},
		{a, insert(a, 4001, 6000)},
		{c, `BEGIN`},
		{c, insert(c, 1, 3000)},
		{b, `ROLLBACK TO s`},
		{b, insert(b, 2001, 5000)},
		{a, `ROLLBACK TO lost`},
		{a, `UPDATE t SET v = 'changed' WHERE writer = 1 AND id % 3 = 0`},
		{a, `SAVEPOINT released`},
		{a, `DELETE FROM t WHERE writer = 1 AND id % 5 = 0`},
		{a, insert(a, 6001, 8000)},
		{a, `RELEASE released`},
		{d, `BEGIN`},
		{d, `SAVEPOINT first`},
		{d, insert(d, 1, 2000)},
		{d, `RELEASE first`},
		{c, `SAVEPOINT s`},
		{c, insert(c, 3001, 4000)},
		{c, `ROLLBACK`},
		{d, `SAVEPOINT second`},
		{d, insert(d, 2001, 4000)},
		{d, `SAVEPOINT nested`},
		{d, insert(d, 4001, 6000)},
		{b, `COMMIT`},
		{d, `ROLLBACK TO second`},
		{d, insert(d, 3001, 4500)},
		{d, `RELEASE second`},
		{d, `DELETE FROM t WHERE writer = 2 AND id % 2 = 0`},
		{a, `ROLLBACK TO kept`},
		{a, insert(a, 3001, 5000)},
		{d, `COMMIT`},
		{a, `UPDATE t SET v = 'again' WHERE writer = 1 AND id % 7 = 0`},
		{a, `COMMIT`},
		{c, insert(c, 1, 3000)},
	} {
		if strings.HasPrefix(step.sql, "ROLLBACK") {
			// What is rolled back now has been sent: else it never would be.
			l.awaitSent()
		}
		sessions[step.writer](step.sql)
		sessions[small](insert(small, number, number)) // which flushes the log
	}
}
