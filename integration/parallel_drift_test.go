package integration

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTableChangesInStreams: a description of a table that comes within a streamed
// transaction holds for that transaction, for all once it has committed, and for
// nobody after it was rolled back.
func TestTableChangesInStreams(t *testing.T) {
	t.Parallel()
	s := newStage(newLink(t))
	s.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	s.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	s.start()
	s.script(`-: INSERT INTO t SELECT g, 'old' FROM generate_series(1, 10) g`)
	s.catchUp()
	s.onTarget(`ALTER TABLE t ADD kept int, ADD lost int, ADD later text`)

	// Rolled back as a whole, in a part that is rolled back, and kept.
	s.script(`
		a: BEGIN
		a: ALTER TABLE t ADD lost int
		a: INSERT INTO t VALUES (11, 'lost', 1)
		a: push
		a: ROLLBACK
		-: INSERT INTO t VALUES (12, 'after an abort')
		a: BEGIN
		a: INSERT INTO t VALUES (13, 'a')
		a: push
		a: SAVEPOINT lost
		a: ALTER TABLE t ADD lost int, DROP v
		a: UPDATE t SET lost = 1 WHERE id < 5
		a: push
		a: ROLLBACK TO lost
		a: UPDATE t SET v = 'after a partial abort' WHERE id < 3
		a: push
		a: ALTER TABLE t ADD kept int DEFAULT 7
		a: UPDATE t SET v = 'kept' WHERE id IN (5, 6)
		a: INSERT INTO t VALUES (14, 'a', 8)
		a: push
		`)
	s.ahead(1)
	s.script(`
		a: COMMIT
		-: UPDATE t SET kept = 9 WHERE id = 7
		-: INSERT INTO t VALUES (15, 'ordinary', 10)
		`)
	s.catchUp()
	// A default that is stored in the table's definition is no change of rows.
	s.onTarget(`UPDATE t SET kept = 7 WHERE kept IS NULL`)
	const columns = `SELECT id, v, kept FROM t ORDER BY id`
	s.same(columns)
	require.Zero(t, s.engine.Status().Retries)

	// Two in progress at a time: each has its own description of the table.
	s.script(`
		b: BEGIN
		b: INSERT INTO t VALUES (20, 'b', 1)
		b: push
		c: BEGIN
		c: SAVEPOINT c
		c: INSERT INTO t VALUES (21, 'c', 1)
		c: push
		b: COMMIT
		c: COMMIT
		d: BEGIN
		d: ALTER TABLE t ADD later text
		d: ALTER TABLE t DROP kept
		d: INSERT INTO t VALUES (22, 'd', 'later')
		d: UPDATE t SET later = 'all'
		d: push
		d: COMMIT
		-: INSERT INTO t VALUES (23, 'ordinary', 'later')
		`)
	s.catchUp()
	s.same(`SELECT id, v, later FROM t ORDER BY id`)
	require.Zero(t, s.engine.Status().Retries)
	require.Zero(t, s.engine.Status().Misses)

	// The target lags behind: an error that heals with the column.
	s.script(`
		e: BEGIN
		e: ALTER TABLE t ADD missing int
		e: INSERT INTO t VALUES (30, 'e', 'later', 1)
		e: push
		e: COMMIT
		`)
	s.failure("missing")
	s.onTarget(`ALTER TABLE t ADD missing int`)
	s.script(`-: INSERT INTO t VALUES (31, 'ordinary', 'later', 1)`)
	s.catchUp()
	s.same(`SELECT id, v, later, missing FROM t ORDER BY id`)
	s.stop()
}
