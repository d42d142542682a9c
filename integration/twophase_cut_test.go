package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// happens waits until a connection was cut.
func happens(t *testing.T, fault *faultnet.Fault) {
	t.Helper()
	select {
	case <-fault.Fired():
	case <-time.After(patience):
		require.Fail(t, "no connection was cut")
	}
}

// TestPreparedCuts: a connection that breaks around any of the commands of a prepared
// transaction leaves open whether it was done. Its name, and the row that commits with
// it, tell.
func TestPreparedCuts(t *testing.T) {
	t.Parallel()
	l := twoPhaseLink(t)
	l.stop()
	proxy, through := l.proxied()
	l.onSource(`ALTER DATABASE `+l.name+` SET logical_decoding_work_mem = '64kB'`, `INSERT INTO c VALUES (0, '')`)
	// COMMIT is that of the position which follows.
	atPrepare, atCommit, atRollback := []string{"PREPARE TRANSACTION", "COMMIT"}, []string{"COMMIT PREPARED", "COMMIT"}, []string{"ROLLBACK PREPARED", "COMMIT"}
	points := map[string]faultnet.Point{"before": faultnet.Before, "after": faultnet.After, "reply": faultnet.Reply}
	id := 0
	for _, c := range []struct {
		name string
		rows int
		// cut are commands to cut at, of the PREPARE or of its end.
		prepare, end []string
		commit       bool
	}{
		{"prepare", 1, atPrepare, nil, true},
		{"prepare in blocks", 1500, atPrepare, nil, true},
		{"commit", 1, nil, atCommit, true},
		{"rollback", 1, nil, atRollback, false},
	} {
		for _, command := range append(c.prepare, c.end...) {
			for point, at := range points {
				name := fmt.Sprintf("%s, %s %s", c.name, point, command)
				// A new engine, whose first pause after an error is short.
				l.start(twoPhase, through)
				l.catchUp()
				play := func(cut bool, sql string) {
					if !cut {
						l.onSource(sql)
						l.catchUp()
						return
					}
					fault := proxy.Cut(at, command, 1)
					l.onSource(sql)
					happens(t, fault)
					l.catchUp()
					require.NotZero(t, l.engine.Status().Retries, name)
				}
				play(c.prepare != nil, fmt.Sprintf(`BEGIN; UPDATE c SET v = v || '+' WHERE id = 0;
					INSERT INTO c SELECT g, repeat('x', 100) FROM generate_series(%d, %d) g; PREPARE TRANSACTION 'a'`, id+1, id+c.rows))
				id += c.rows
				require.Equal(t, "1", l.prepared(), name)
				end := `ROLLBACK PREPARED 'a'`
				if c.commit {
					end = `COMMIT PREPARED 'a'`
				}
				play(c.end != nil, end)
				l.settled()
				require.Zero(t, l.engine.Status().Misses, name)
				l.stop()
			}
		}
	}
	require.Equal(t, "++++++++++++++++++", pgtest.Query(t, l.target, `SELECT v FROM c WHERE id = 0`))
}

// TestPreparedOutlivesRestarts: what is prepared stays so while either server and the
// engine are gone.
func TestPreparedOutlivesRestarts(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Start(t, pgtest.OnMajor(max(15, pgtest.Major(t)))), pgtest.Start(t)
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	l.start(twoPhase)
	for i, restart := range []func(){
		func() { require.NoError(t, publisher.Restart(t.Context())) },
		func() { require.NoError(t, target.Restart(t.Context())) },
		func() { l.stop(); l.start(twoPhase) },
	} {
		l.onSource(fmt.Sprintf(`BEGIN; INSERT INTO c VALUES (%d, 'commits'); PREPARE TRANSACTION 'a'`, i),
			fmt.Sprintf(`BEGIN; INSERT INTO c VALUES (%d, 'rolls back'); PREPARE TRANSACTION 'b'`, 10+i))
		l.catchUp()
		restart()
		l.onSource(fmt.Sprintf(`INSERT INTO c VALUES (%d, 'between')`, 20+i))
		l.catchUp()
		require.Equal(t, "2", l.prepared())
		l.onSource(`COMMIT PREPARED 'a'`, `ROLLBACK PREPARED 'b'`)
		l.settled()
	}
}

// TestEndBetweenPrepareAndItsEnd: a run that is to end in between leaves it prepared.
func TestEndBetweenPrepareAndItsEnd(t *testing.T) {
	for _, end := range []string{`COMMIT PREPARED 'a'`, `ROLLBACK PREPARED 'a'`} {
		l := twoPhaseLink(t)
		l.stop()
		l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`, `INSERT INTO c VALUES (2, 'b')`)
		position := parse(t, pgtest.Query(t, l.source, `SELECT pg_current_wal_insert_lsn()`))
		l.onSource(end)
		require.NoError(t, l.run(twoPhase, func(o *apply.Options) { o.EndLSN = position }))
		require.Equal(t, "1|2|b", l.prepared()+"|"+pgtest.Query(t, l.target, `SELECT * FROM c`))
		l.start(twoPhase)
		l.settled()
	}
}
