package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// TestRowsBeyondMemory: a row that is far larger than --memory-limit goes through the spool,
// however it comes, and takes no more memory than the few copies of it that two servers and
// what lies between them need. PGAPPLY_TEST_FIELD gives its size in MiB, for more than
// everyday use: PostgreSQL's end is at a GiB for a message, old row and new one together.
func TestRowsBeyondMemory(t *testing.T) {
	t.Parallel()
	size := int64(fromEnvironment(t, "PGAPPLY_TEST_FIELD", 32)) << 20
	for _, c := range []struct {
		name, identity string
		flags          []string
		streamed       bool
	}{
		{"whole", "DEFAULT", []string{"--workers=1"}, false},
		{"in parts", "DEFAULT", []string{"--binary"}, true},
		{"with the old row", "FULL", []string{"--streaming=off"}, false},
	} {
		if c.identity == "FULL" && size > 400<<20 {
			continue // the publisher has no message for it
		}
		t.Run(c.name, func(t *testing.T) {
			if size <= 64<<20 {
				t.Parallel()
			}
			l := newLink(t)
			l.both(`CREATE TABLE t (id int PRIMARY KEY, n int, v text)`, `ALTER TABLE t REPLICA IDENTITY `+c.identity)
			if c.streamed {
				l.streamEarly()
			}
			l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
			p := l.spawn(append([]string{"--memory-limit=16MiB", "--http=127.0.0.1:0"}, c.flags...)...)
			l.streams(p)
			began := time.Now()
			for _, change := range []string{
				fmt.Sprintf(`INSERT INTO t VALUES (1, 1, repeat('a', %d))`, size),
				fmt.Sprintf(`INSERT INTO t VALUES (2, 1, repeat('b', %d))`, size),
				fmt.Sprintf(`UPDATE t SET v = repeat('x', %d) WHERE id = 1`, size),
				`UPDATE t SET n = 2`,
				`DELETE FROM t WHERE id = 2`,
			} {
				l.onSource(change)
				l.catchUp()
			}
			l.same(`SELECT id, n, length(v), left(v, 10), md5(v) FROM t`)
			peak := p.peakMemory()
			t.Logf("rows of %d MiB with --memory-limit 16MiB: peak memory %d MiB, %s", size>>20, peak>>20, time.Since(began).Round(time.Millisecond))
			require.Less(t, peak, 5*size+96<<20)
			require.Eventually(t, func() bool { return p.usage().heap < 96<<20 }, patience, 50*time.Millisecond, "it is given back")
			pgtest.WaitFor(t, l.target, `SELECT status ->> 'spool_bytes' FROM pgapply.runner`, "0")
			require.Equal(t, map[bool]string{true: "t", false: "f"}[c.streamed],
				pgtest.Query(t, l.source, `SELECT stream_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = $1`, l.name))
			p.untroubled()
			p.stop()
		})
	}
	if size >= 512<<20 {
		rowsBeyondAMessage(t, size)
	}
}

// rowsBeyondAMessage: what the publisher cannot put into one message is told with its
// remedy: in binary form bytes take half of the room.
func rowsBeyondAMessage(t *testing.T, size int64) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v bytea)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	p := l.spawn("--memory-limit=16MiB")
	l.streams(p)
	l.onSource(fmt.Sprintf(`INSERT INTO t VALUES (1, convert_to(repeat('x', %d), 'UTF8'))`, size), `INSERT INTO t VALUES (2, 'behind it')`)
	p.says("cannot put a row into one message", "--binary")
	p.stop()
	p = l.spawn("--memory-limit=16MiB", "--binary")
	l.streams(p)
	l.catchUp()
	l.same(`SELECT id, length(v), md5(v) FROM t ORDER BY 1`)
	p.stop()
}
