package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// smallMemory makes a publisher stream transactions after a few rows.
var smallMemory = pgtest.With("logical_decoding_work_mem", "64kB")

// TestStreamedAhead: a transaction in progress is on the target before it ends on the
// publisher, invisible, and others commit beside it.
func TestStreamedAhead(t *testing.T) {
	publisher, target := pgtest.Pair(t, smallMemory)
	l := trackedLink(t, publisher, target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	l.start()
	open := pgtest.Open(t, l.source)
	open.Exec(`BEGIN`, `INSERT INTO c SELECT g, repeat('y', 100) FROM generate_series(1001, 6000) g`)
	open.Exec(`SAVEPOINT a`)
	open.Exec(`UPDATE c SET v = 'a' WHERE id > 1000`)
	open.Exec(`ROLLBACK TO a`)
	open.Exec(`UPDATE c SET v = v || 'b' WHERE id > 1000`)
	pgtest.WaitFor(t, l.target, `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ ':w[1-9]' AND wait_event = 'ClientRead' AND backend_xid IS NOT NULL`, "t")
	l.onSource(`INSERT INTO c VALUES (1, 'between')`)
	l.catchUp()
	require.Equal(t, "1|between", pgtest.Query(t, l.target, `SELECT * FROM c`))
	open.Exec(`COMMIT`)
	l.catchUp()
	require.Equal(t, "5000", pgtest.Query(t, l.target, `SELECT count(*) FROM c WHERE v = repeat('y', 100) || 'b'`))
	require.Zero(t, l.engine.Status().Replays)
}
