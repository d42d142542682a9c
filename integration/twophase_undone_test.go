package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// TestPreparedAndUndone: of a prepared transaction that is rolled back before it is
// decoded the publisher may leave out what it has not kept in memory (18 and later do), and
// send the rest. What is left may fail on the target, and must not stop it: ROLLBACK
// PREPARED follows.
func TestPreparedAndUndone(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]func(*apply.Options){
		"streamed": func(o *apply.Options) { o.Streaming = "parallel" },
		"whole":    func(o *apply.Options) { o.Streaming = "off" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLink(t)
			l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`, `INSERT INTO t VALUES (1, 'old')`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
			l.streamEarly()
			l.start(twoPhase, mode)
			l.stop()
			l.onSource(`BEGIN; DELETE FROM t WHERE id = 1; INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(2, 2000) g;
				SAVEPOINT a; INSERT INTO t VALUES (1, 'new'); RELEASE a; PREPARE TRANSACTION 'undone'`,
				`ROLLBACK PREPARED 'undone'`,
				`INSERT INTO t VALUES (5000, 'later')`)
			l.start(twoPhase, mode)
			l.catchUp()
			l.same(`SELECT * FROM t ORDER BY id`)
			l.stop()
			require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`))
			require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.progress WHERE gid IS NOT NULL`))
		})
	}
}
