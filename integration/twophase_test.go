package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

func twoPhase(o *apply.Options) { o.TwoPhase = true }

// TestPreparedTransactions: what the publisher prepares is prepared on the target, and
// ends there as it does on the publisher.
func TestPreparedTransactions(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("max_prepared_transactions", "10"))
	l := trackedLink(t, publisher, target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`, `CREATE TABLE unpublished (id int)`)
	l.start(twoPhase)
	prepared := func() string {
		return pgtest.Query(t, l.target, `SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()`)
	}
	l.onSource(`INSERT INTO c VALUES (1, 'one')`,
		`BEGIN; INSERT INTO c VALUES (2, 'two'); UPDATE c SET v = 'uno' WHERE id = 1; PREPARE TRANSACTION 'a'`,
		`BEGIN; INSERT INTO c VALUES (3, 'three'); PREPARE TRANSACTION 'it''s b'`,
		`BEGIN; INSERT INTO unpublished VALUES (1); PREPARE TRANSACTION 'empty'`)
	l.catchUp()
	require.Equal(t, "3", prepared())
	require.Equal(t, "1|one", pgtest.Query(t, l.target, `SELECT * FROM c`))
	l.onSource(`INSERT INTO c VALUES (4, 'four')`)
	l.catchUp()
	require.Equal(t, "1|one\n4|four", pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
	l.stop()
	l.onSource(`COMMIT PREPARED 'a'`, `ROLLBACK PREPARED 'it''s b'`)
	l.start(twoPhase)
	l.onSource(`COMMIT PREPARED 'empty'`)
	l.catchUp()
	require.Equal(t, "0", prepared())
	require.Equal(t, "1|uno\n2|two\n4|four", l.same(`SELECT * FROM c ORDER BY id`))
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.progress WHERE gid IS NOT NULL`))
}
