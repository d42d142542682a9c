package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// TestSpoolFull: transactions in progress that together exceed the spool are received
// again with streaming off, each when it is committed and alone in the spool, which has no
// room for two; afterwards streaming is on again.
func TestSpoolFull(t *testing.T) {
	publisher, target := pgtest.Pair(t, smallMemory, pgtest.With("wal_sender_timeout", "2s"))
	l := trackedLink(t, publisher, target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	l.start(func(o *apply.Options) { o.MemoryLimit, o.SpoolLimit, o.SpoolDir = 1<<20, 3<<20, t.TempDir() })
	var open []*pgtest.Session
	for i := range 4 {
		session := pgtest.Open(t, l.source)
		session.Exec(`BEGIN`, `INSERT INTO c SELECT `+string(rune('1'+i))+`0000 + g, repeat('x', 400) FROM generate_series(1, 5000) g`)
		open = append(open, session)
	}
	pgtest.WaitFor(t, l.target, `SELECT status -> 'stream' ->> 'streaming' FROM pgapply.runner`, "off")
	l.onSource(`INSERT INTO c VALUES (1, 'between')`)
	l.catchUp()
	require.Equal(t, "1|between", pgtest.Query(t, l.target, `SELECT * FROM c`))
	for i, session := range open {
		if i == 2 {
			session.Exec(`ROLLBACK`)
		} else {
			session.Exec(`COMMIT`)
		}
	}
	l.catchUp()
	l.same(`SELECT count(*), sum(id) FROM c`)
	require.Equal(t, "off", l.engine.Status().Stream.Streaming)
	// The publisher notes which transactions are running, and the slot moves on.
	l.onSource(`CHECKPOINT`, `INSERT INTO c VALUES (2, 'after')`)
	l.catchUp()
	l.onSource(`CHECKPOINT`)
	pgtest.WaitFor(t, l.target, `SELECT status -> 'stream' ->> 'streaming' FROM pgapply.runner`, "parallel")
	require.Zero(t, l.engine.Status().Retries)
}
