package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// TestKeepalives: however long apply is blocked, the publisher hears from us within
// its wal_sender_timeout: also when we do not read on since what has arrived must be
// applied first, and the publisher cannot send.
func TestKeepalives(t *testing.T) {
	t.Parallel()
	_, target := pgtest.Shared(t)
	publisher := pgtest.Start(t, pgtest.With("wal_sender_timeout", "2s"))
	for _, c := range []struct {
		name         string
		transactions int // of about 100 kB
		waitsFor     string
	}{
		{"reading", 1, "WalSenderWaitForWAL"},
		{"full", 300, "WalSenderWriteData"}, // more than memory and sockets take in
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := linkOf(t, publisher, target)
			l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
			l.start(func(o *apply.Options) { o.MemoryLimit = 1 << 20 })
			sender := l.walsender()
			lock := session(t, l.target)
			lock(`BEGIN; LOCK TABLE t IN EXCLUSIVE MODE`)
			var work []string
			for i := range c.transactions {
				work = append(work, fmt.Sprintf(`INSERT INTO t SELECT 100 * %d + g, repeat('x', 1000) FROM generate_series(1, 100) g`, i))
			}
			l.onSource(work...)
			l.awaitBlocked()
			pgtest.WaitFor(t, l.source, `SELECT wait_event ILIKE $1 FROM pg_stat_activity WHERE pid = $2`, "t", c.waitsFor, sender)
			blocked := pgtest.Query(t, l.source, `SELECT clock_timestamp()`)
			pgtest.WaitFor(t, l.source, `SELECT reply_time > $1::timestamptz + '4 s' FROM pg_stat_replication WHERE pid = $2`, "t", blocked, sender)
			require.Equal(t, sender, l.walsender())
			require.Equal(t, "Lock", pgtest.Query(t, l.target, `SELECT wait_event_type FROM pg_stat_activity WHERE application_name = $1`, l.name+":w0"))
			lock(`ROLLBACK`)
			l.catchUp()
			l.same(`SELECT count(*), sum(id), sum(length(v)) FROM t`)
			require.Equal(t, sender, l.walsender(), "it is the same connection still")
			require.Zero(t, l.engine.Status().Retries)
			l.stop()
		})
	}
}

// walsender is the pid of the process on the publisher that serves the link.
func (l *link) walsender() string {
	l.t.Helper()
	return pgtest.Query(l.t, l.source, `SELECT pid FROM pg_stat_replication WHERE application_name = $1`, l.name)
}

// TestIdlePublication: while only other tables are written, the slot moves on, and
// the publisher can remove its log.
func TestIdlePublication(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE TABLE other (v text)`, `CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	restart := pgtest.Query(t, l.source, `SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = $1`, l.name)
	for range 3 {
		l.onSource(`INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 1000)`)
		// The record from which decoding can begin anew.
		l.onSource(`CHECKPOINT`)
		position := pgtest.Query(t, l.source, `SELECT pg_current_wal_flush_lsn()`)
		l.catchUp()
		l.onSource(`INSERT INTO other VALUES ('and on')`)
		pgtest.WaitFor(t, l.source, `SELECT restart_lsn > $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`, "t", restart, l.name)
		restart = pgtest.Query(t, l.source, `SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = $1`, l.name)
		// What is acknowledged is recorded on the target, or a start would take it for a loss.
		require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT ack_lsn >= $1::pg_lsn FROM pgapply.subscription`, position))
	}
	require.EqualValues(t, 1, l.engine.Status().Rows.Inserted, "nothing else was applied")
	l.stop()
	l.start()
	l.onSource(`INSERT INTO t VALUES (2)`)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
}
