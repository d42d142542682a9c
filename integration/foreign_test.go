package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// TestForeignRowsInTheFlow: rows that somebody else wrote are found, resolved and
// recorded alike, whether a change meets the first of them, one of many, or one
// after a long time without any.
func TestForeignRowsInTheFlow(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	for _, c := range []struct{ policy, resolution, recorded string }{
		{"apply_remote", "applied", "update_origin_differs|5105\ndelete_origin_differs|101"},
		{"keep_local", "kept", "update_origin_differs|15209\ndelete_origin_differs|201"},
		{"last_update_wins", "applied", "update_origin_differs|5105\ndelete_origin_differs|101"},
	} {
		for _, identity := range []string{"DEFAULT", "FULL"} {
			for _, backlog := range []bool{false, true} {
				if identity == "FULL" && !backlog {
					continue // its look differs in the search alone
				}
				t.Run(fmt.Sprintf("%s/%s/backlog=%t", c.policy, identity, backlog), func(t *testing.T) {
					l := trackedLink(t, publisher, target)
					l.both(`CREATE TABLE c (id int PRIMARY KEY, v text, big text)`, `ALTER TABLE c ALTER big SET STORAGE EXTERNAL`,
						`INSERT INTO c SELECT g, 'v' || g, CASE g % 100 WHEN 7 THEN repeat('x', 3000) END FROM generate_series(1, 6000) g`)
					l.onSource(`ALTER TABLE c REPLICA IDENTITY `+identity, `CREATE PUBLICATION p FOR TABLE c`)
					policies := onConflict("update_origin_differs="+c.policy, "delete_origin_differs="+c.policy)
					l.start(policies)
					l.catchUp()
					if backlog {
						l.stop()
					}
					for i := 2; i <= 200; i += 2 {
						l.onSource(fmt.Sprintf(`UPDATE c SET v = 'once' WHERE id = %d; UPDATE c SET v = 'twice' WHERE id = %[1]d`, i))
					}
					// Long runs of rows that are ours by then, or are still not.
					l.onSource(`UPDATE c SET v = 'all' WHERE id > 1000`, `UPDATE c SET v = v || '!' WHERE id > 1000`, `UPDATE c SET v = v || '!' WHERE id > 1000`,
						`DELETE FROM c WHERE id BETWEEN 900 AND 1100`, `UPDATE c SET v = 'late' WHERE id < 10`)
					if backlog {
						l.start(policies)
					}
					l.catchUp()
					require.Equal(t, c.recorded, pgtest.Query(t, l.target, `SELECT conflict_type, count(*) FROM pgapply.conflict GROUP BY 1 ORDER BY 1 DESC`))
					require.LessOrEqual(t, l.engine.Status().Replays, int64(4), "after the first such row the others are no surprise")
					if c.resolution == "applied" {
						l.same(`SELECT id, v, md5(big) FROM c ORDER BY id`)
						require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT count(*) = count(DISTINCT replica_identity ->> 'id') FROM pgapply.conflict`),
							"a row is somebody else's once")
					} else {
						require.Equal(t, "6000|0", pgtest.Query(t, l.target, `SELECT count(*), count(*) FILTER (WHERE v <> 'v' || id) FROM c`))
					}
					require.Equal(t, "t|t|t|t", pgtest.Query(t, l.target, fmt.Sprintf(`SELECT
						bool_and(l ->> 'table' = 'public.c' AND l ? 'commit_ts' AND l ? 'xid' AND NOT l ? 'origin'),
						bool_and((l -> 'tuple' ->> 'v' = 'v' || (l -> 'tuple' ->> 'id')) AND l -> 'tuple' ? 'big'),
						bool_and(l -> 'tuple' ->> 'id' = replica_identity ->> 'id' AND (remote_tuple ->> 'id' = replica_identity ->> 'id') IS NOT FALSE),
						bool_and(policy = '%s' AND resolution = '%s' AND remote_commit_lsn > '0/0' AND remote_xid > 0 AND relname = 'c' AND schemaname = 'public')
						FROM pgapply.conflict, jsonb_array_elements(local_conflicts) l`, c.policy, c.resolution)))
				})
			}
		}
	}
}

// TestLastUpdateWinsAlike: the row that is met first is judged by conflict.Decide,
// those that follow by the target. Both judge alike: by time, then by node.
func TestLastUpdateWinsAlike(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	l := trackedLink(t, publisher, target)
	// Compared as text, a system identifier lies between these two.
	writers := []string{"older", "newer", "0", "zzz"}
	want := map[string]string{"older": "remote", "newer": "local", "0": "remote", "zzz": "local"}
	for first := range writers {
		l.both(fmt.Sprintf(`CREATE TABLE c%d (id int PRIMARY KEY, writer text, v text)`, first))
	}
	l.onSource(`CREATE PUBLICATION p FOR ALL TABLES`)
	policy := onConflict("update_origin_differs=last_update_wins")
	l.start(policy)
	for first := range writers {
		for id := range 2 * len(writers) {
			l.onSource(fmt.Sprintf(`INSERT INTO c%d VALUES (%d, '%s')`, first, id, writers[(first+id)%len(writers)]))
		}
	}
	l.catchUp()
	l.stop()
	for first := range writers {
		l.onTarget(fmt.Sprintf(`UPDATE c%d SET v = 'local' WHERE writer = 'older'`, first))
		for id := range 2 * len(writers) {
			l.onSource(fmt.Sprintf(`UPDATE c%d SET v = 'remote' WHERE id = %d`, first, id))
			if writer := writers[(first+id)%len(writers)]; writer == "0" || writer == "zzz" {
				committed := pgtest.Query(t, l.source, fmt.Sprintf(`SELECT pg_xact_commit_timestamp(xmin) FROM c%d WHERE id = %d`, first, id))
				l.onTarget(fmt.Sprintf(`
					SELECT pg_replication_origin_create('%[1]s') WHERE pg_replication_origin_oid('%[1]s') IS NULL;
					SELECT pg_replication_origin_session_setup('%[1]s');
					SELECT pg_replication_origin_xact_setup('0/1', '%[2]s');
					UPDATE c%[3]d SET v = 'local' WHERE id = %[4]d`, writer, committed, first, id))
			}
		}
		l.onTarget(fmt.Sprintf(`UPDATE c%d SET v = 'local' WHERE writer = 'newer'`, first))
	}
	l.start(policy)
	l.catchUp()
	for first := range writers {
		for writer, v := range want {
			require.Equal(t, v+"|2", pgtest.Query(t, l.target, fmt.Sprintf(`SELECT v, count(*) FROM c%d WHERE writer = '%s' GROUP BY 1`, first, writer)), "%s, table %d", writer, first)
		}
	}
	require.Equal(t, "applied|16\nkept|16", pgtest.Query(t, l.target, `SELECT resolution, count(*) FROM pgapply.conflict GROUP BY 1 ORDER BY 1`))
	require.Equal(t, int64(len(writers)), l.engine.Status().Replays, "one for each table")
}

// TestNumberOfADroppedOrigin: the number of a worker's origin that somebody has dropped
// has become another's. What that one writes is not ours.
func TestNumberOfADroppedOrigin(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	l := trackedLink(t, publisher, target)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	policy := onConflict("update_origin_differs=keep_local")
	l.start(policy)
	l.onSource(`INSERT INTO t VALUES (1, 'a'), (2, 'a'), (3, 'a')`)
	l.catchUp()
	l.stop()
	dropped := pgtest.Query(t, l.target, `SELECT max(roident::int8) FROM pg_replication_origin`)
	l.onTarget(`SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roident = `+dropped,
		`SELECT pg_replication_origin_create('another')`,
		`SELECT pg_replication_origin_session_setup('another'); UPDATE t SET v = 'another' WHERE id = 1`, `UPDATE t SET v = 'local' WHERE id = 2`)
	require.Equal(t, dropped, pgtest.Query(t, l.target, `SELECT roident FROM pg_replication_origin WHERE roname = 'another'`))
	l.start(policy, func(o *apply.Options) { o.Workers = 1 })
	l.onSource(`UPDATE t SET v = 'publisher'`)
	l.catchUp()
	require.Equal(t, "another local publisher", pgtest.Query(t, l.target, `SELECT string_agg(v, ' ' ORDER BY id) FROM t`))
}
