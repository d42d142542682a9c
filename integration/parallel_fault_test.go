package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/cluster"
	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// ledger makes the tables of a load, in which every row that is lost or repeated shows,
// for scripts.
func ledger(l *link) *stage {
	l.t.Helper()
	l.loadTables()
	l.onSource(`CREATE TABLE pad (id int, v text)`)
	return &stage{link: l, sessions: make(map[string]*pgtest.Session)}
}

// begins opens two transactions that are applied ahead, by two workers, and has others
// commit beside them.
func (s *stage) begins() {
	s.t.Helper()
	s.script(`
		a: BEGIN
		a: INSERT INTO entry SELECT 1, g, 'a' FROM generate_series(1, 300) g
		a: UPDATE counter SET n = n + 1 WHERE id = 1
		a: push
		b: BEGIN
		b: INSERT INTO entry SELECT 2, g, 'b' FROM generate_series(1, 300) g
		b: UPDATE counter SET n = n + 1 WHERE id = 2
		b: push
		-: INSERT INTO entry VALUES (3, 1, 'between')
		-: UPDATE counter SET n = n + 1 WHERE id = 3
		`)
	s.ahead(2)
}

// ends has what begins opened go on and end.
func (s *stage) ends() {
	s.t.Helper()
	s.script(`
		b: SAVEPOINT s
		b: INSERT INTO entry SELECT 2, g, 'b' FROM generate_series(301, 600) g
		b: push
		-: UPDATE counter SET n = n + 1 WHERE id = 3
		b: COMMIT
		a: INSERT INTO entry SELECT 1, g, 'a' FROM generate_series(301, 600) g
		a: push
		a: COMMIT
		-: UPDATE counter SET n = n + 1 WHERE id < 3
		`)
	s.catchUp()
	s.sameLoad()
}

// forget drops the sessions that a server's end has cut.
func (s *stage) forget() { clear(s.sessions) }

// TestWorkerLost: a worker's connection that breaks in the middle of a streamed
// transaction, or anybody's, costs a retry, and neither a row nor a second one.
func TestWorkerLost(t *testing.T) {
	t.Parallel()
	s := ledger(newLink(t))
	proxy, through := s.proxied()
	for name, fault := range map[string]func(){
		"worker terminated": func() {
			pgtest.Exec(t, s.target, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '`+s.name+`:w1'`)
		},
		"all terminated": func() {
			pgtest.Exec(t, s.target, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^`+s.name+`:w'`)
		},
		"all cut": proxy.DropAll,
		"worker cut": func() {
			cut := proxy.Cut(faultnet.Before, "SAVEPOINT", 1)
			s.script(`
				b: SAVEPOINT cut
				b: INSERT INTO entry VALUES (2, 0, 'b')
				b: push
				`)
			<-cut.Fired()
		},
		"worker's commit cut before": func() { proxy.CutBeforeCommit(2) }, // one for what comes between
		"worker's commit cut after":  func() { proxy.CutAfterCommit(2) },
		"worker's commit unanswered": func() { proxy.CutCommitReply(2) },
		"stream terminated": func() { // and the transactions begin anew under the same xid
			pgtest.Exec(t, s.source, `SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name = '`+s.name+`'`)
		},
		"control terminated": func() {
			pgtest.Exec(t, s.target, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgapply:`+s.name+`:control'`)
		},
	} {
		// A new engine, whose first pause after an error is short.
		s.start(through)
		s.begins()
		fault()
		s.ends()
		s.awaitRetries(1)
		require.Zero(t, s.engine.Status().Misses, name)
		s.stop()
	}
}

// TestServersRestartMidStream: either server goes down and comes back while
// transactions are applied ahead.
func TestServersRestartMidStream(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Pair(t)
	s := ledger(linkOf(t, publisher, target))
	s.start()
	for _, mode := range []cluster.Mode{cluster.Immediate, cluster.Fast} {
		s.begins()
		require.NoError(t, target.Stop(mode))
		require.NoError(t, target.Restart(t.Context()))
		s.ends()

		s.begins()
		require.NoError(t, publisher.Stop(mode))
		s.forget()
		require.NoError(t, publisher.Restart(t.Context()))
		s.begins()
		s.ends()
	}
	s.awaitRetries(2)
	require.Zero(t, s.engine.Status().Misses)
	s.stop()
}

// TestKillServersMidStream: kill -9 of either server while workers have transactions open.
func TestKillServersMidStream(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Pair(t)
	s := ledger(linkOf(t, publisher, target))
	s.start()
	for range rounds(t) {
		s.begins()
		require.NoError(t, target.Kill())
		require.NoError(t, target.Restart(t.Context()))
		s.ends()

		s.begins()
		require.NoError(t, publisher.Kill())
		s.forget()
		require.NoError(t, publisher.Restart(t.Context()))
		s.begins()
		s.ends()
	}
	require.Zero(t, s.engine.Status().Misses)
	s.stop()
}

// TestKilledMidStream: kill -9 while workers have transactions open.
func TestKilledMidStream(t *testing.T) {
	t.Parallel()
	s := ledger(newLink(t))
	p := s.spawn()
	s.streams(p)
	for range crashes(t, 3) {
		s.begins()
		p.kill()
		p = s.spawn()
		s.streams(p)
		// What came before the position is sent again only with what comes now.
		s.script(`
			a: push
			b: push
			`)
		s.ahead(2)
		s.ends()
	}
	p.untroubled()
	p.stop()
}

// TestPoolExhausted: more streams than workers. Those that find none wait for a worker
// that gets free, or are applied at their turn; without any worker all are.
func TestPoolExhausted(t *testing.T) {
	t.Parallel()
	s := ledger(newLink(t))
	open := `
		a: BEGIN
		a: INSERT INTO entry SELECT 1, g, 'a' FROM generate_series(1, 100) g
		a: push
		b: BEGIN
		b: INSERT INTO entry SELECT 2, g, 'b' FROM generate_series(1, 100) g
		b: push
		c: BEGIN
		c: INSERT INTO entry SELECT 3, g, 'c' FROM generate_series(1, 100) g
		c: push
		d: BEGIN
		d: INSERT INTO entry SELECT 4, g, 'd' FROM generate_series(1, 100) g
		d: push
		-: UPDATE counter SET n = n + 1 WHERE id = 3
		`
	xid := func() string { return pgtest.Query(t, s.target, `SELECT backend_xid `+workerQuery) }

	s.start(func(o *apply.Options) { o.Workers = 2 })
	s.script(open)
	s.ahead(1)
	first := xid()
	s.script(`c: COMMIT`) // at its turn, on the head
	s.catchUp()
	require.Equal(t, first, xid())
	s.script(`a: COMMIT`)
	s.catchUp()
	s.ahead(1) // b, which has waited longest
	second := xid()
	require.NotEqual(t, first, second)
	s.script(`b: ROLLBACK`)
	s.awaitSent()
	pgtest.WaitFor(t, s.target, `SELECT backend_xid <> $1::xid `+workerQuery+` AND wait_event = 'ClientRead'`, "t", second)
	s.script(`
		d: INSERT INTO entry SELECT 4, g, 'd' FROM generate_series(101, 200) g
		d: push
		d: COMMIT
		`)
	s.catchUp()
	s.sameLoad()
	s.stop()

	s.start(func(o *apply.Options) { o.Workers = 1 })
	s.script(open)
	s.catchUp()
	require.Equal(t, "1", pgtest.Query(t, s.target, `SELECT count(*) FROM pg_stat_activity WHERE application_name ~ $1`, "^"+s.name+":w"))
	require.Equal(t, 4, s.engine.Status().OpenStreams)
	s.script(`
		d: COMMIT
		a: ROLLBACK
		c: COMMIT
		b: COMMIT
		`)
	s.catchUp()
	s.sameLoad()
	require.Zero(t, s.engine.Status().Retries)
	s.stop()
}

// TestSkipStreamed: while a transaction is to be skipped, streamed ones wait for their
// turn: only their end tells which one it is.
func TestSkipStreamed(t *testing.T) {
	t.Parallel()
	s := ledger(newLink(t))
	s.onTarget(`ALTER TABLE entry ADD CHECK (text <> 'bad')`)
	s.start()
	s.script(`
		a: BEGIN
		a: INSERT INTO entry SELECT 1, g, 'a' FROM generate_series(1, 100) g
		a: UPDATE counter SET n = n + 1 WHERE id = 1
		a: push
		b: BEGIN
		b: INSERT INTO entry SELECT 2, g, 'bad' FROM generate_series(1, 100) g
		b: UPDATE counter SET n = n + 1 WHERE id = 2
		b: push
		-: UPDATE counter SET n = n + 1 WHERE id = 3
		b: COMMIT
		`)
	status := s.failure("check")
	s.stop()
	skip := func(position string) {
		s.onTarget(`UPDATE pgapply.subscription SET skip_lsn = '` + position + `'`)
		s.start()
	}
	skip(finishedAt(t, status.LastError))
	s.script(`-: UPDATE counter SET n = n + 1 WHERE id = 3`)
	s.catchUp()
	pgtest.WaitFor(t, s.target, `SELECT skip_lsn IS NULL FROM pgapply.subscription`, "t")
	s.stop()

	skip("FFFFFFFF/FFFFFFFF") // which never comes
	s.script(`
		a: INSERT INTO entry SELECT 1, g, 'a' FROM generate_series(101, 200) g
		a: push
		-: UPDATE counter SET n = n + 1 WHERE id = 3
		`)
	s.catchUp()
	require.Equal(t, 1, s.engine.Status().OpenStreams)
	require.Equal(t, "0", pgtest.Query(t, s.target, `SELECT count(*) `+workerQuery))
	s.script(`a: COMMIT`)
	s.catchUp()
	s.same(`SELECT * FROM entry WHERE text <> 'bad' ORDER BY writer, number`)
	s.same(`SELECT * FROM counter WHERE id <> 2 ORDER BY id`)
	require.Equal(t, "0", pgtest.Query(t, s.target, `SELECT n FROM counter WHERE id = 2`))
	require.Zero(t, s.engine.Status().Retries)
	s.stop()
}
