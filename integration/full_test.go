package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// TestFullUsesAnIndex: rows that are searched by all columns are found through a
// unique index of the target, also beside an index that looks as good and is not.
func TestFullUsesAnIndex(t *testing.T) {
	eachMode(t, func(t *testing.T, l *link) {
		// Statistics that came in between would show that n is nearly as good for rows that have one.
		l.both(`CREATE TABLE f (decoy int, id int, v text, n int) WITH (autovacuum_enabled = off)`, `ALTER TABLE f REPLICA IDENTITY FULL`,
			`INSERT INTO f SELECT g % 3, g, 'v' || g, CASE WHEN g % 2 = 0 THEN g END FROM generate_series(1, 100000) g`)
		l.onTarget(`CREATE INDEX decoy ON f (decoy)`, `CREATE UNIQUE INDEX usable ON f (id)`, `CREATE INDEX decoy2 ON f (n)`)
		l.onSource(`CREATE PUBLICATION p FOR TABLE f`)
		l.play(`UPDATE f SET v = v || '!' WHERE id <= 1000`, `DELETE FROM f WHERE id BETWEEN 2000 AND 2100`)
		l.same(`SELECT count(*), md5(string_agg(f::text, ',' ORDER BY id)) FROM f`)
		// The statistics of a session arrive with a delay, or when it ends.
		l.stop()
		pgtest.WaitFor(t, l.target, `SELECT idx_scan >= 1101 FROM pg_stat_user_indexes WHERE indexrelname = 'usable'`, "t")
		require.Equal(t, "0|0", pgtest.Query(t, l.target, `SELECT string_agg(idx_scan::text, '|') FROM pg_stat_user_indexes WHERE indexrelname LIKE 'decoy%'`))
	})
}

// TestFullOfNestedTypes: types that have no equality somewhere inside.
func TestFullOfNestedTypes(t *testing.T) {
	// Not in binary, where arrays of composite types carry the publisher's type numbers.
	for _, m := range []mode{{name: "live"}, {name: "backlog from far away", backlog: true, far: true}} {
		l := newLink(t)
		l.mode = m
		l.both(`CREATE DOMAIN dj AS json`, `CREATE TYPE comp AS (a int, b json)`, `CREATE TYPE outerc AS (a int, b comp)`, `CREATE TYPE withdomain AS (a dj)`,
			`CREATE TABLE f (id int, c comp[], o outerc, d withdomain, e comp)`, `ALTER TABLE f REPLICA IDENTITY FULL`)
		l.onSource(`CREATE PUBLICATION p FOR TABLE f`)
		l.play(`INSERT INTO f SELECT g, ARRAY[ROW(1, '{"a": 1}')::comp], ROW(1, ROW(2, '[]')::comp)::outerc, ROW('1')::withdomain, ROW(3, 'null')::comp FROM generate_series(1, 3) g`,
			`UPDATE f SET id = 10 WHERE id = 1`, `DELETE FROM f WHERE id = 2`)
		l.same(`SELECT * FROM f ORDER BY id`)
		l.stop()
	}
}
