package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// From 16 on the server moves an origin's progress forward also when a transaction
// that was stamped with a position aborts. None of that may be taken for applied.

const lateTrigger = `CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
	ALTER TABLE t ENABLE ALWAYS TRIGGER late`

// TestCommitRefused: a deferred trigger refuses the COMMIT.
func TestCommitRefused(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id = 2 THEN RAISE EXCEPTION 'not two'; END IF; RETURN NULL; END $$`, lateTrigger)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	l.onSource(`INSERT INTO t VALUES (2)`, `INSERT INTO t VALUES (3)`)
	status := l.failure("not two")
	pgtest.WaitFor(t, l.target, `SELECT status ->> 'retries' >= '2' FROM pgapply.runner`, "t")
	require.Equal(t, "1", pgtest.Query(t, l.target, `SELECT * FROM t`))
	require.Equal(t, "t|t", pgtest.Query(t, l.target, `SELECT
		(SELECT max(position) FROM pgapply.progress) < $1::pg_lsn, (SELECT max(pg_replication_origin_progress(origin_name, true)) FROM pgapply.origin) < $1::pg_lsn`,
		finishedAt(t, status.LastError)))
	l.onTarget(`ALTER TABLE t DISABLE TRIGGER late`)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
}

// TestTerminatedAtCommit: the backend is terminated while its COMMIT is at work,
// behind the position.
func TestTerminatedAtCommit(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	// The trigger is queued again by each of its own, so that some of it is left for COMMIT.
	l.onTarget(`CREATE TABLE queue (n int)`,
		`CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			SET CONSTRAINTS ALL DEFERRED;
			IF TG_TABLE_NAME = 't' THEN INSERT INTO public.queue VALUES (1); ELSE PERFORM pg_advisory_xact_lock(4711); END IF; RETURN NULL; END $$`,
		lateTrigger, `CREATE CONSTRAINT TRIGGER late AFTER INSERT ON queue DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
			ALTER TABLE queue ENABLE ALWAYS TRIGGER late`)
	l.start()
	hold := session(t, l.target)
	hold(`SELECT pg_advisory_lock(4711)`)
	l.onSource(`INSERT INTO t VALUES (1)`)
	pgtest.WaitFor(t, l.target, `SELECT query FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'advisory'`, "COMMIT", l.name+":w0")
	l.onTarget(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '` + l.name + `:w0'`)
	hold(`SELECT pg_advisory_unlock(4711)`)
	l.catchUp()
	l.same(`SELECT * FROM t`)
	l.onSource(`INSERT INTO t VALUES (2)`)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
}
