package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// The tests in this file say what is a conflict, and of which type, under the policies
// that are native behaviour. conflicts_test.go has the other policies.

// TestExistingKeysStop: under the policy error a key that is taken stops the
// transaction, and is recorded once, however often it is tried.
func TestExistingKeysStop(t *testing.T) {
	for name, c := range map[string]struct{ change, recorded string }{
		"insert_exists":                          {`INSERT INTO t VALUES (7, 100, 'x')`, `insert_exists|t|error|failed||1`},
		"update_exists":                          {`UPDATE t SET u = 77 WHERE id = 1`, `update_exists|t|error|failed|{"id": "1"}|1`},
		"multiple_unique_conflicts of an insert": {`INSERT INTO t VALUES (7, 88, 'x')`, `multiple_unique_conflicts|t|error|failed||2`},
		"multiple_unique_conflicts of an update": {`UPDATE t SET id = 7, u = 88 WHERE id = 1`, `multiple_unique_conflicts|t|error|failed|{"id": "1"}|2`},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t)
			l.both(`CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v text)`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
			l.start()
			l.onSource(`INSERT INTO t VALUES (1, 1, 'a')`)
			l.catchUp()
			l.onTarget(`INSERT INTO t VALUES (7, 77, 'local'), (8, 88, 'local')`)
			l.onSource(`BEGIN; INSERT INTO t VALUES (2, 2, 'before'); `+c.change+`; COMMIT`, `INSERT INTO t VALUES (3, 3, 'later')`)
			l.failure("public.t", "23505")
			pgtest.WaitFor(t, l.target, `SELECT status ->> 'retries' >= '2' FROM pgapply.runner`, "t")
			require.Equal(t, c.recorded, l.recorded())
			require.Equal(t, "1,7,8", pgtest.Query(t, l.target, `SELECT string_agg(id::text, ',' ORDER BY id) FROM t`))
			l.onTarget(`DELETE FROM t WHERE id > 6`)
			l.catchUp()
			l.same(`SELECT * FROM t ORDER BY id`)
		})
	}
}

// TestUniqueIndexesOfEveryKind: partial ones, expressions and NULLS NOT DISTINCT.
func TestUniqueIndexesOfEveryKind(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, a int, b text, c int)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE UNIQUE INDEX partial ON t (a) WHERE a > 10`, `CREATE UNIQUE INDEX expression ON t (lower(b))`, `INSERT INTO t VALUES (100, 11, 'KEY', NULL)`)
	indexes, keys := "public.partial,public.expression", `{"a": 11},{"lower(b)": "key"}`
	if pgtest.Major(t) >= 15 {
		l.onTarget(`CREATE UNIQUE INDEX nulls ON t (c) NULLS NOT DISTINCT`)
		indexes += ",public.nulls"
		keys += `,{"c": null}`
	} else {
		l.onTarget(`CREATE UNIQUE INDEX nulls ON t (c)`)
	}
	l.start(onConflict("insert_exists=keep_local"))
	l.onSource(`INSERT INTO t VALUES (1, 10, 'a', 1)`, `INSERT INTO t VALUES (2, 11, 'b', 2)`, `INSERT INTO t VALUES (3, 12, 'key', 3)`, `INSERT INTO t VALUES (4, 13, 'c', NULL)`)
	l.catchUp()
	require.Equal(t, indexes, pgtest.Query(t, l.target, `SELECT string_agg(local_conflicts -> 0 ->> 'index', ',' ORDER BY id) FROM pgapply.conflict`))
	require.Equal(t, keys, pgtest.Query(t, l.target, `SELECT string_agg((local_conflicts -> 0 -> 'key')::text, ',' ORDER BY id) FROM pgapply.conflict`))
	require.Equal(t, map[bool]string{true: "1,100", false: "1,4,100"}[pgtest.Major(t) >= 15], pgtest.Query(t, l.target, `SELECT string_agg(id::text, ',' ORDER BY id) FROM t`))
}

// TestRowOfAnotherOriginIsChangedAndRecorded: that somebody else wrote the row last
// changes nothing, and is recorded with who and when. What the subscription wrote
// itself is no conflict, and neither is a row from before the tracking of commit times.
func TestRowOfAnotherOriginIsChangedAndRecorded(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 'a'), (2, 'a'), (3, 'a'), (4, 'a')`)
	l.catchUp()
	l.onTarget(`UPDATE t SET v = 'local' WHERE id = 1`, `SELECT pg_replication_origin_create('elsewhere')`)
	other := session(t, l.target)
	other(`SELECT pg_replication_origin_session_setup('elsewhere')`)
	other(`BEGIN; SELECT pg_replication_origin_xact_setup('0/1', now()); UPDATE t SET v = 'other' WHERE id = 2; COMMIT`)
	other(`SELECT pg_replication_origin_session_reset()`)
	l.onSource(`UPDATE t SET v = 'b' WHERE id IN (1, 3)`, `DELETE FROM t WHERE id IN (2, 4)`)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
	require.Equal(t, "update_origin_differs|{\"id\": \"1\"}||t\ndelete_origin_differs|{\"id\": \"2\"}|elsewhere|t", pgtest.Query(t, l.target,
		`SELECT conflict_type, replica_identity, local_conflicts -> 0 ->> 'origin', local_conflicts -> 0 ? 'commit_ts' FROM pgapply.conflict ORDER BY id`))
}

// TestOriginsAreUnknownWithoutCommitTimes: as natively, nothing is detected then.
func TestOriginsAreUnknownWithoutCommitTimes(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start(onConflict("update_origin_differs=keep_local"))
	l.onSource(`INSERT INTO t VALUES (1, 'a')`)
	l.catchUp()
	l.onTarget(`UPDATE t SET v = 'local'`)
	l.onSource(`UPDATE t SET v = 'b'`)
	l.catchUp()
	require.Equal(t, "b", l.same(`SELECT v FROM t`))
	require.Empty(t, l.recorded())
}

// TestUpdateOfADeletedRowIsMissing: which of the two it was, no SQL function shows. So
// update_deleted is never reported, whatever its policy is.
func TestUpdateOfADeletedRowIsMissing(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start(onConflict("update_deleted=error"))
	l.onSource(`INSERT INTO t VALUES (1, 'a')`)
	l.catchUp()
	l.onTarget(`DELETE FROM t`)
	l.onSource(`UPDATE t SET v = 'b'`)
	l.catchUp()
	require.Equal(t, `update_missing|t|skip|skipped|{"id": "1"}|0`, l.recorded())
}

// TestRowThatIsNotCommittedYetIsMissing: an update does not see what another session
// has inserted and not committed, where native apply waits for that session. An insert
// waits, here as there.
func TestRowThatIsNotCommittedYetIsMissing(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`INSERT INTO t VALUES (1, 'a')`, `CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	local := session(t, l.target)
	local(`BEGIN; INSERT INTO t VALUES (1, 'local'), (2, 'local')`)
	l.onSource(`UPDATE t SET v = 'b'`)
	l.catchUp()
	require.Equal(t, `update_missing|t|skip|skipped|{"id": "1"}|0`, l.recorded())
	l.onSource(`INSERT INTO t VALUES (2, 'b')`)
	l.awaitBlocked()
	local(`ROLLBACK`)
	l.catchUp()
	require.Equal(t, "2|b", pgtest.Query(t, l.target, `SELECT * FROM t`))
}

// TestConflictTellsWhatItMet: both rows, the transaction and its times, in the table;
// in the log no values.
func TestConflictTellsWhatItMet(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`INSERT INTO t VALUES (1, 'mine')`)
	runner := l.spawn("--on-conflict", "insert_exists=apply_remote")
	l.streams(runner)
	l.onSource(`INSERT INTO t VALUES (1, 'secret')`)
	l.catchUp()
	require.Equal(t, `{"v": "secret", "id": "1"}|{"v": "mine", "id": 1}|{"id": 1}|public.t_pkey|t|t|t`, pgtest.Query(t, l.target, `SELECT remote_tuple, l -> 'tuple', l -> 'key', l ->> 'index',
		l ? 'commit_ts' AND l ? 'xid', remote_xid > 0 AND remote_commit_lsn > '0/0', remote_commit_ts > now() - interval '1 hour' FROM pgapply.conflict, jsonb_array_elements(local_conflicts) l`))
	log := runner.stderr.tail(1000)
	for _, part := range []string{"insert_exists", "apply_remote", `"t"`, "remote_xid", "finished_at", "remote_commit_ts", "local_commit_ts", "t_pkey", fmt.Sprintf(`"id": "%s"`, pgtest.Query(t, l.target, `SELECT id FROM pgapply.conflict`))} {
		require.Contains(t, log, part)
	}
	require.NotContains(t, log, "secret")
	require.NotContains(t, log, "mine")
	runner.stop()

	runner = l.spawn("--on-conflict", "insert_exists=apply_remote", "--log-rows")
	l.streams(runner)
	l.onTarget(`INSERT INTO t VALUES (2, 'mine')`)
	l.onSource(`INSERT INTO t VALUES (2, 'secret')`)
	l.catchUp()
	runner.stop()
	require.Contains(t, runner.stderr.tail(1000), "secret", "unless they are asked for")
	require.Contains(t, runner.stderr.tail(1000), "mine")
}
