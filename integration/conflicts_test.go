package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// recorded are the conflicts of a subscription in the order of their making.
func (l *link) recorded() string {
	l.t.Helper()
	return pgtest.Query(l.t, l.target, `SELECT conflict_type, relname, policy, resolution, replica_identity, jsonb_array_length(local_conflicts)
		FROM pgapply.conflict ORDER BY id`)
}

func onConflict(policies ...string) func(*apply.Options) {
	return func(o *apply.Options) {
		for _, policy := range policies {
			if err := o.OnConflict.Set(policy); err != nil {
				panic(err)
			}
		}
	}
}

// TestMissingRows: what the target does not have is skipped and recorded, once
// each, whether the change came alone, in a group or in a large transaction.
func TestMissingRows(t *testing.T) {
	for _, m := range []mode{{name: "live"}, {name: "backlog from far away", backlog: true, far: true}} {
		t.Run(m.name, func(t *testing.T) {
			l := newLink(t)
			l.mode = m
			l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`, `CREATE TABLE f (a int, b text)`, `ALTER TABLE f REPLICA IDENTITY FULL`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE c, f`)
			l.play(`INSERT INTO c SELECT g, 'v' || g FROM generate_series(1, 3000) g`, `INSERT INTO f VALUES (1, 'x'), (1, 'x'), (2, NULL)`)
			l.onTarget(`DELETE FROM c WHERE id IN (1, 2, 1500)`, `DELETE FROM f WHERE a = 2`)
			l.play(`UPDATE c SET v = 'new1' WHERE id = 1`, `DELETE FROM c WHERE id = 2`, `UPDATE c SET v = 'new3' WHERE id = 3`,
				`UPDATE f SET b = 'y' WHERE a = 2`, `BEGIN; INSERT INTO c VALUES (9999, 'in between'); UPDATE c SET v = v || '!'; COMMIT`, `DELETE FROM f WHERE ctid = '(0,1)'`)
			require.Equal(t, `update_missing|c|skip|skipped|{"id": "1"}|0
delete_missing|c|skip|skipped|{"id": "2"}|0
update_missing|f|skip|skipped|{"a": "2", "b": null}|0
update_missing|c|skip|skipped|{"id": "1500"}|0
update_missing|c|skip|skipped|{"id": "1"}|0`, l.recorded())
			require.Equal(t, pgtest.Query(t, l.source, `SELECT count(*) - 2, sum(id) - 1501, count(DISTINCT v) - 2 FROM c`),
				pgtest.Query(t, l.target, `SELECT count(*), sum(id), count(DISTINCT v) FROM c`))
			require.Equal(t, "1|x", pgtest.Query(t, l.target, `SELECT * FROM f`))
			require.Equal(t, `{"v": "new1", "id": "1"}|t|t`, pgtest.Query(t, l.target,
				`SELECT remote_tuple, remote_xid > 0, remote_commit_lsn > '0/0' AND remote_commit_ts > now() - interval '1 hour' FROM pgapply.conflict ORDER BY id LIMIT 1`))
		})
	}
}

// TestConflictsAreErrors: natively a taken key stops the transaction. It is recorded
// once, although the transaction is tried again, and goes in when the row is gone.
func TestConflictsAreErrors(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, u int UNIQUE, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	l.onTarget(`CREATE UNIQUE INDEX "c low" ON c (lower(v)) WHERE v <> ''`, `INSERT INTO c VALUES (1, 1, 'local'), (5, 50, 'five')`)
	l.start()
	l.onSource(`BEGIN; INSERT INTO c VALUES (2, 2, 'before'); INSERT INTO c VALUES (1, 50, 'LOCAL'); COMMIT`, `INSERT INTO c VALUES (3, 3, '')`)
	status := l.failure("public.c", "multiple_unique_conflicts", "c_pkey")
	require.NotContains(t, status.LastError, "LOCAL")
	pgtest.WaitFor(t, l.target, `SELECT status ->> 'retries' >= '2' FROM pgapply.runner`, "t")
	require.Equal(t, `multiple_unique_conflicts|c|error|failed||3`, l.recorded())
	require.Equal(t, `public.c_pkey, public."c low", public.c_u_key`, pgtest.Query(t, l.target,
		`SELECT string_agg(e ->> 'index', ', ' ORDER BY n) FROM pgapply.conflict, jsonb_array_elements(local_conflicts) WITH ORDINALITY x(e, n)`))
	require.Equal(t, "1|5", pgtest.Query(t, l.target, `SELECT string_agg(id::text, '|' ORDER BY id) FROM c`), "nothing of the transaction, nothing after it")
	require.Equal(t, "t", pgtest.Query(t, l.source, `SELECT confirmed_flush_lsn < (SELECT $1::pg_lsn) FROM pg_replication_slots WHERE slot_name = $2`,
		pgtest.Query(t, l.target, `SELECT remote_commit_lsn FROM pgapply.conflict`), l.name))
	l.onTarget(`DELETE FROM c`)
	l.catchUp()
	l.same(`SELECT * FROM c ORDER BY id`)
	require.Equal(t, `multiple_unique_conflicts|c|error|failed||3`, l.recorded())
}

// TestInsertPolicies and the others below resolve one conflict by each policy.
func TestInsertPolicies(t *testing.T) {
	for _, c := range []struct {
		policy, want, recorded string
	}{
		{"keep_local", "1|1|local|mine\n2|2|other|mine\n3|3|new|", `insert_exists|c|keep_local|kept||1
multiple_unique_conflicts|c|keep_local|kept||2`},
		{"apply_remote", "1|7|remote|mine\n2|1|both|\n3|3|new|", `insert_exists|c|apply_remote|applied||1
multiple_unique_conflicts|c|apply_remote|applied||2`},
	} {
		t.Run(c.policy, func(t *testing.T) {
			l := newLink(t)
			l.onSource(`CREATE TABLE c (id int PRIMARY KEY, u int UNIQUE, v text)`)
			l.onTarget(`CREATE TABLE c (id int PRIMARY KEY, u int UNIQUE, v text, local text)`,
				`INSERT INTO c VALUES (1, 1, 'local', 'mine'), (2, 2, 'other', 'mine')`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE c WITH (publish = 'insert')`)
			l.start(onConflict("insert_exists="+c.policy, "multiple_unique_conflicts="+c.policy))
			l.onSource(`INSERT INTO c VALUES (1, 7, 'remote')`, `UPDATE c SET id = 100, u = 100`, `INSERT INTO c VALUES (3, 3, 'new')`)
			if c.policy == "keep_local" {
				l.onSource(`INSERT INTO c VALUES (2, 1, 'both')`)
			} else {
				l.onTarget(`SELECT 1`)
				l.catchUp()
				l.onTarget(`INSERT INTO c VALUES (50, 1, 'has u', 'mine')`)
				l.onSource(`INSERT INTO c VALUES (2, 1, 'both')`)
			}
			l.catchUp()
			require.Equal(t, c.want, pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
			require.Equal(t, c.recorded, l.recorded())
		})
	}
}

func TestUpdateExistsPolicies(t *testing.T) {
	for _, c := range []struct{ policy, want string }{
		{"keep_local", "1|1\n9|2"}, {"apply_remote", "1|2"},
	} {
		t.Run(c.policy, func(t *testing.T) {
			l := newLink(t)
			l.both(`CREATE TABLE c (id int PRIMARY KEY, u int UNIQUE)`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
			l.start(onConflict("update_exists=" + c.policy))
			l.onSource(`INSERT INTO c VALUES (1, 1)`)
			l.catchUp()
			l.onTarget(`INSERT INTO c VALUES (9, 2)`)
			l.onSource(`UPDATE c SET u = 2`)
			l.catchUp()
			require.Equal(t, c.want, pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
			require.Equal(t, fmt.Sprintf(`update_exists|c|%s|%s|{"id": "1"}|1`, c.policy, map[string]string{"keep_local": "kept", "apply_remote": "applied"}[c.policy]), l.recorded())
		})
	}
}

func TestUpdateMissingPolicies(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text, big text)`, `ALTER TABLE c ALTER big SET STORAGE EXTERNAL`, `CREATE TABLE e (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c, e`)
	l.start(onConflict("update_missing=apply_remote", "public.e:update_missing=error"))
	l.onSource(`INSERT INTO c VALUES (1, 'a', 'short'), (2, 'b', repeat('x', 5000))`, `INSERT INTO e VALUES (1, 'a')`)
	l.catchUp()
	l.onTarget(`DELETE FROM c`, `DELETE FROM e`)
	l.onSource(`UPDATE c SET v = 'new' WHERE id = 1`)
	l.catchUp()
	require.Equal(t, "1|new|short", pgtest.Query(t, l.target, `SELECT * FROM c`))
	// A row cannot be made up from an update that lacks a value.
	l.onSource(`UPDATE c SET v = 'new' WHERE id = 2`)
	l.failure("public.c", `"big"`)
	l.onTarget(`INSERT INTO c SELECT 2, 'b', repeat('x', 5000)`)
	l.catchUp()
	l.same(`SELECT id, v, md5(big) FROM c ORDER BY id`)
	l.onSource(`UPDATE e SET v = 'new'`)
	l.failure("public.e", "update_missing")
	l.onTarget(`INSERT INTO e VALUES (1, 'a')`)
	l.catchUp()
	l.same(`SELECT * FROM e`)
}

// trackedLink is a link on servers that track commit timestamps.
func trackedLink(t *testing.T, publisher, target *cluster.Cluster) *link {
	l := &link{t: t, source: pgtest.Database(t, publisher), target: pgtest.Database(t, target)}
	l.name = pgtest.Query(t, l.source, `SELECT current_database()`)
	return l
}

func TestOriginPolicies(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	for _, c := range []struct{ policy, want, resolution string }{
		{"apply_remote", "1|remote\n3|own", "applied"},
		{"keep_local", "1|local\n2|local\n3|own", "kept"},
		{"last_update_wins", "1|remote\n3|own", "applied"},
	} {
		t.Run(c.policy, func(t *testing.T) {
			l := trackedLink(t, publisher, target)
			l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
			l.start(onConflict("update_origin_differs="+c.policy, "delete_origin_differs="+c.policy))
			l.onSource(`INSERT INTO c VALUES (1, 'x'), (2, 'x'), (3, 'x')`, `UPDATE c SET v = 'own' WHERE id = 3`)
			l.catchUp()
			require.Empty(t, l.recorded(), "what we wrote ourselves is no conflict")
			l.onTarget(`UPDATE c SET v = 'local' WHERE id < 3`)
			l.onSource(`UPDATE c SET v = 'remote' WHERE id = 1`, `DELETE FROM c WHERE id = 2`)
			l.catchUp()
			require.Equal(t, c.want, pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
			require.Equal(t, fmt.Sprintf("update_origin_differs|c|%[1]s|%[2]s|{\"id\": \"1\"}|1\ndelete_origin_differs|c|%[1]s|%[2]s|{\"id\": \"2\"}|1", c.policy, c.resolution), l.recorded())
			require.Equal(t, "t|t|local", pgtest.Query(t, l.target, `SELECT e ? 'commit_ts', e -> 'origin' IS NULL, e -> 'tuple' ->> 'v'
				FROM pgapply.conflict, jsonb_array_elements(local_conflicts) e WHERE conflict_type = 'update_origin_differs'`))
		})
	}
}

// TestLastUpdateWins: an older change of the publisher loses against a newer local row.
func TestLastUpdateWins(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	l := trackedLink(t, publisher, target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	lww := onConflict("update_origin_differs=last_update_wins", "insert_exists=last_update_wins")
	l.start(lww)
	l.onSource(`INSERT INTO c VALUES (1, 'x')`)
	l.catchUp()
	l.stop()
	l.onSource(`UPDATE c SET v = 'older remote'`, `INSERT INTO c VALUES (2, 'older remote')`)
	l.onTarget(`UPDATE c SET v = 'newer local'`, `INSERT INTO c VALUES (2, 'newer local'), (3, 'older local')`)
	l.onSource(`INSERT INTO c VALUES (3, 'newer remote')`)
	l.start(lww)
	l.catchUp()
	require.Equal(t, "1|newer local\n2|newer local\n3|newer remote", pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
}

// TestForeignRowsComeAgain: rows that somebody else wrote on the target are deleted and
// inserted again by one transaction. That their place is taken, as long as they are
// there, is no conflict.
func TestForeignRowsComeAgain(t *testing.T) {
	publisher, target := pgtest.Pair(t, pgtest.With("track_commit_timestamp", "on"))
	for _, batch := range []int64{apply.DefaultOptions().MaxBatch, 700, 0} {
		t.Run(fmt.Sprintf("max-batch %d", batch), func(t *testing.T) {
			l := trackedLink(t, publisher, target)
			l.both(`CREATE TABLE c (id numeric, part int4range, v int, PRIMARY KEY (id, part))`, `CREATE TABLE other (id int PRIMARY KEY)`,
				`INSERT INTO c SELECT g, int4range(g, g + 5), g FROM generate_series(0, 35) g`)
			l.onSource(`ALTER TABLE c REPLICA IDENTITY FULL`, `CREATE PUBLICATION p FOR TABLE c, other`)
			start := func() { l.start(func(o *apply.Options) { o.MaxBatch = batch }) }
			start()
			l.stop()
			l.onSource(`INSERT INTO c VALUES (103, int4range(3, 9), 1)`, `INSERT INTO other VALUES (1); DELETE FROM c WHERE id IN (31, 4, 19, 25); INSERT INTO c VALUES (4, int4range(4, 9), 33)`)
			start()
			l.catchUp()
			l.same(`SELECT * FROM c ORDER BY id`)
			require.Equal(t, "delete_origin_differs|4", pgtest.Query(t, l.target, `SELECT conflict_type, count(*) FROM pgapply.conflict GROUP BY 1`))
		})
	}
}

// TestKeyThatTheTargetMakes: the unique index in the way is over a column that the
// target fills itself, by an expression or by a default.
func TestKeyThatTheTargetMakes(t *testing.T) {
	for name, ddl := range map[string]string{
		"generated": `ALTER TABLE g ADD low text GENERATED ALWAYS AS (lower(a)) STORED UNIQUE; INSERT INTO g VALUES (1, 'TEN')`,
		"default":   `ALTER TABLE g ADD tenant int NOT NULL DEFAULT 7; CREATE UNIQUE INDEX ten ON g (tenant, lower(a)); INSERT INTO g VALUES (1, 'TEN')`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t)
			l.both(`CREATE TABLE g (id int PRIMARY KEY, a text)`)
			l.onTarget(ddl)
			l.onSource(`CREATE PUBLICATION p FOR TABLE g`)
			l.start(onConflict("insert_exists=apply_remote", "update_exists=apply_remote"))
			l.onSource(`INSERT INTO g VALUES (2, 'ten')`)
			l.catchUp()
			require.Equal(t, "2|ten", l.same(`SELECT id, a FROM g`))
			l.onTarget(`INSERT INTO g VALUES (3, 'TWENTY')`)
			l.onSource(`UPDATE g SET a = 'twenty'`)
			l.catchUp()
			require.Equal(t, "2|twenty", l.same(`SELECT id, a FROM g`))
			require.Equal(t, "insert_exists|1\nupdate_exists|1", pgtest.Query(t, l.target, `SELECT conflict_type, jsonb_array_length(local_conflicts) FROM pgapply.conflict ORDER BY id`))
		})
	}
}

// TestKeyWithItsOwnCollation: the index in the way compares otherwise than the column.
func TestKeyWithItsOwnCollation(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, b text)`)
	l.onTarget(`CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`, `CREATE UNIQUE INDEX u ON t (b COLLATE ci)`, `INSERT INTO t VALUES (100, 'abc')`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start(onConflict("insert_exists=keep_local"))
	l.onSource(`INSERT INTO t VALUES (1, 'ABC')`, `INSERT INTO t VALUES (2, 'other')`)
	l.catchUp()
	require.Equal(t, "2|other\n100|abc", pgtest.Query(t, l.target, `SELECT * FROM t ORDER BY id`))
	require.Equal(t, "insert_exists|t|keep_local|kept||1", l.recorded())
}
