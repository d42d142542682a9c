package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// TestPreparedStandsInTheWay: a unique index that only the target has makes a transaction
// wait for a prepared one whose end comes behind it. Nothing of ours can cure that; it is
// said plainly, and a person can.
func TestPreparedStandsInTheWay(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("max_prepared_transactions", "10"))
	l := trackedLink(t, publisher, target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, u int)`)
	l.onTarget(`CREATE UNIQUE INDEX ON c (u)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	l.start(twoPhase)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 7); PREPARE TRANSACTION 'first'`)
	l.catchUp()
	l.onSource(`INSERT INTO c VALUES (2, 7)`, `ROLLBACK PREPARED 'first'`)
	pgtest.WaitFor(t, l.target, `SELECT status -> 'workers' -> 0 ->> 'waiting_for' LIKE '%' || gid || '%COMMIT PREPARED%' FROM pgapply.runner, pg_prepared_xacts WHERE database = current_database()`, "t")
	gid := pgtest.Query(t, l.target, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`)
	l.onTarget(`ROLLBACK PREPARED '` + gid + `'`)
	l.catchUp()
	require.Equal(t, "2|7", l.same(`SELECT * FROM c`))
	require.Zero(t, l.engine.Status().Retries)
}

// TestPreparedStandsBehindDDL: the head waits for an ALTER TABLE that waits for what is
// prepared, and whose end comes behind the head.
func TestPreparedStandsBehindDDL(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("max_prepared_transactions", "10"))
	l := trackedLink(t, publisher, target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, u int)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	l.start(twoPhase)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 7); PREPARE TRANSACTION 'first'`)
	l.catchUp()
	altering := make(chan struct{})
	go func() {
		defer close(altering)
		pgtest.Exec(t, l.target, `ALTER TABLE c ADD extra int`)
	}()
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE c%' AND wait_event_type = 'Lock'`, "1")
	l.onSource(`INSERT INTO c VALUES (2, 7)`, `COMMIT PREPARED 'first'`)
	pgtest.WaitFor(t, l.target, `SELECT status -> 'workers' -> 0 ->> 'waiting_for' LIKE '%' || gid || '%COMMIT PREPARED%' FROM pgapply.runner, pg_prepared_xacts WHERE database = current_database()`, "t")
	l.onTarget(`COMMIT PREPARED '` + pgtest.Query(t, l.target, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`) + `'`)
	<-altering
	l.catchUp()
	require.Equal(t, "1|7\n2|7", l.same(`SELECT id, u FROM c ORDER BY id`))
}
