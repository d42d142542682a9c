package integration

import (
	"testing"
)

func TestInsertUpdateDelete(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE TABLE other (a int, b int, PRIMARY KEY (b, a))`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t, other`)
	l.start()
	l.onSource(
		`INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 100) g`,
		`UPDATE t SET v = 'new' WHERE id % 3 = 0`,
		`DELETE FROM t WHERE id % 7 = 0`,
		`INSERT INTO other SELECT g, -g FROM generate_series(1, 10) g; UPDATE other SET a = 100 WHERE a = 1; DELETE FROM other WHERE a = 5`,
		`UPDATE t SET id = 1000 WHERE id = 1`,
	)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
	l.same(`SELECT * FROM other ORDER BY a`)
	l.stop()
}
