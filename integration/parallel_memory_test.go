package integration

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// TestStreamsBeyondMemory: streamed transactions that are together far larger than the
// memory limit are open at a time, go through the spool, and leave nothing there.
// PGAPPLY_TEST_STREAMED gives their size in all, in MiB, for more than everyday use.
func TestStreamsBeyondMemory(t *testing.T) {
	t.Parallel()
	transactions, megabytes := 4, 160
	if value := os.Getenv("PGAPPLY_TEST_STREAMED"); value != "" {
		var err error
		transactions = 10
		megabytes, err = strconv.Atoi(value)
		require.NoError(t, err, "PGAPPLY_TEST_STREAMED=%q is not a number of MiB", value)
	}
	const rowBytes = 1 << 10
	rows := megabytes << 20 / rowBytes / transactions

	l := newLink(t)
	l.both(`CREATE TABLE t (writer int, id int, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`, fmt.Sprintf(`ALTER DATABASE %s SET logical_decoding_work_mem = '4MB'`, l.name))
	p := l.spawn("--memory-limit", "16MiB", "--workers", "4")
	l.streams(p)
	began := time.Now()
	var sessions []*pgtest.Session
	var writing sync.WaitGroup
	for writer := range transactions {
		s := pgtest.Open(t, l.source)
		sessions = append(sessions, s)
		writing.Go(func() {
			s.Exec(`BEGIN`)
			// In parts, so that those of all writers lie among each other.
			const parts = 8
			for part := range parts {
				s.Exec(fmt.Sprintf(`INSERT INTO t SELECT %d, g, repeat(md5(g::text), %d) FROM generate_series(%d, %d) g`,
					writer, rowBytes/32, part*rows/parts, (part+1)*rows/parts-1))
			}
		})
	}
	writing.Wait()
	written := time.Since(began)
	l.onSource(`INSERT INTO t VALUES (-1, 0, '')`)
	l.catchUp()
	open := pgtest.Query(t, l.source, `SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = $1`, l.name)
	pgtest.WaitFor(t, l.target, `SELECT (status ->> 'spool_bytes')::bigint > $1 AND (status ->> 'open_streams')::int = $2 FROM pgapply.runner`, "t",
		strconv.Itoa((megabytes-16)<<20/2), transactions)
	spooled := pgtest.Query(t, l.target, `SELECT (status ->> 'spool_bytes')::bigint >> 20 FROM pgapply.runner`)
	for _, s := range sessions {
		s.Exec(`COMMIT`)
		l.catchUp() // each in its time: patience is for one
	}
	peak := p.peakMemory()
	t.Logf("%d transactions of %d MiB in all (%s streamed), open at a time: written in %s, applied after %s, %s MiB spooled, peak memory %d MiB",
		transactions, megabytes, open, written.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), spooled, peak>>20)
	l.same(`SELECT writer, count(*), sum(id), sum(hashtext(v)::bigint) FROM t GROUP BY 1 ORDER BY 1`)
	require.Less(t, peak, int64(128<<20))
	pgtest.WaitFor(t, l.target, `SELECT status ->> 'spool_bytes' FROM pgapply.runner`, "0")
	// They extend one table, and wait for each other at that, but for a moment only.
	require.NotContains(t, p.stderr.String(), "stands in the way")
	p.untroubled()
	p.stop()
}
