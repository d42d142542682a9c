package catalog

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder"
	"pgapply/internal/pgtest"
)

// TestBatches: which tables take batches, each reason against it by itself, and that the pin
// knows them too.
func TestBatches(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `CREATE SCHEMA s`,
		`CREATE TYPE s.pair AS (a int, b text); CREATE TYPE s.mood AS ENUM ('a'); CREATE DOMAIN s.code AS varchar(3); CREATE DOMAIN s.list AS int[]; CREATE DOMAIN s.two AS s.pair`,
		`CREATE FUNCTION s.see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`,
		`CREATE FUNCTION s.looks(int) RETURNS bool STABLE RETURN (SELECT $1 > 0)`,
		`CREATE FUNCTION s.sees(int) RETURNS bool VOLATILE LANGUAGE plpgsql AS 'BEGIN RETURN true; END'`,
		`CREATE FUNCTION s.less(int, int) RETURNS bool IMMUTABLE RETURN $1 < $2`,
		`CREATE FUNCTION s.computes(int) RETURNS bool IMMUTABLE RETURN $1 > 0`,
		`CREATE OPERATOR s.<? (LEFTARG = int, RIGHTARG = int, FUNCTION = s.less); CREATE DOMAIN s.few AS int CHECK (s.computes(VALUE)); CREATE DOMAIN s.fewer AS s.few`,
		`CREATE DOMAIN s.small AS int CHECK (VALUE < 10) DEFAULT 1; CREATE DOMAIN s.less AS int CHECK (VALUE OPERATOR(s.<?) 3)`,
		`CREATE TYPE s.inside AS (f s.few); CREATE EXTENSION citext SCHEMA s; CREATE EXTENSION "uuid-ossp" SCHEMA s`)
	q := querier(t, uri)
	pin := func(table *Table) (err error) {
		if table.Version.Batches == "" {
			_, err = q.Query(PinUnnoticedSQL, table.Version.Table)
		} else {
			_, err = q.Query(PinBatchesSQL, table.Version.Table, table.Version.Batches)
		}
		return err
	}
	noticed := 0
	for _, c := range []struct {
		name    string
		columns string
		then    string
		batches bool
	}{
		{"plain", `id int PRIMARY KEY, v text`, ``, true},
		{"no key", `id int, v text`, ``, true},
		{"types", `id s.code PRIMARY KEY, v s.mood, b box, r int4range, n name`, ``, true},
		{"ordinary trigger", `id int`, `CREATE TRIGGER x BEFORE INSERT ON s.t FOR EACH ROW EXECUTE FUNCTION s.see()`, true},
		{"foreign key", `id int PRIMARY KEY, r int REFERENCES s.t`, ``, true},
		{"ordinary rule", `id int`, `CREATE RULE x AS ON INSERT TO s.t DO ALSO NOTHING`, true},
		{"unique", `id int PRIMARY KEY, v int UNIQUE`, ``, true},
		{"check", `id serial CHECK (id > 0), v int DEFAULT random() CHECK (v + id < 9 OR v::text ~ 'x'), w timestamptz DEFAULT now(), m s.mood DEFAULT 'a' CHECK (m <> 'a')`, ``, true},
		{"generated and indexed", `id int, v text, g int GENERATED ALWAYS AS (id + 1) STORED`, `CREATE INDEX ON s.t (lower(v)) WHERE id > 0`, true},
		{"domain with a check", `id s.small, v s.small DEFAULT 3`, ``, true},
		{"extension", `id s.citext PRIMARY KEY CHECK (id OPERATOR(s.~) 'a'), v uuid DEFAULT s.uuid_generate_v4()`, `CREATE INDEX ON s.t ((id OPERATOR(s.=) 'b'))`, true},
		{"parent", `id int`, `CREATE TABLE s.child () INHERITS (s.t); CREATE TRIGGER x BEFORE INSERT ON s.child FOR EACH ROW EXECUTE FUNCTION s.see(); ALTER TABLE s.child ENABLE ALWAYS TRIGGER x`, true},

		{"partitions", `id int) PARTITION BY RANGE (id`, `CREATE TABLE s.l1 PARTITION OF s.t DEFAULT PARTITION BY RANGE (id); CREATE TABLE s.l2 PARTITION OF s.l1 DEFAULT`, true},

		{"always", `id int`, `CREATE TRIGGER x BEFORE INSERT ON s.t FOR EACH ROW EXECUTE FUNCTION s.see(); ALTER TABLE s.t ENABLE ALWAYS TRIGGER x`, false},
		{"statement trigger", `id int`, `CREATE TRIGGER x AFTER UPDATE ON s.t EXECUTE FUNCTION s.see(); ALTER TABLE s.t ENABLE REPLICA TRIGGER x`, false},
		{"enforced foreign key", `id int PRIMARY KEY, r int REFERENCES s.t`, `DO $$ BEGIN EXECUTE (
			SELECT format('ALTER TABLE s.t ENABLE ALWAYS TRIGGER %I', tgname) FROM pg_trigger WHERE tgrelid = 's.t'::regclass LIMIT 1); END $$`, false},
		{"rule", `id int`, `CREATE RULE x AS ON INSERT TO s.t DO ALSO NOTHING; ALTER TABLE s.t ENABLE REPLICA RULE x`, false},
		{"deferrable", `id int PRIMARY KEY, v int UNIQUE DEFERRABLE`, ``, false},
		{"exclusion", `id int PRIMARY KEY, v int4range, EXCLUDE USING gist (v WITH &&)`, ``, false},
		{"check that looks", `id int CHECK (s.looks(id))`, ``, false},
		{"default that looks", `id int, v bool DEFAULT s.looks(1)`, ``, false},
		{"check that changes", `id int CHECK (s.sees(id))`, ``, false},
		{"check that computes", `id int CHECK (s.computes(id))`, ``, false},
		{"check by an operator", `id int CHECK (id OPERATOR(s.<?) 3)`, ``, false},
		{"check by a domain", `id int CHECK (id::s.few IS NOT NULL)`, ``, false},
		{"check by a domain in a composite", `id int CHECK (ROW(id)::s.inside IS NOT NULL)`, ``, false},
		{"generated", `id int, g bool GENERATED ALWAYS AS (s.computes(id)) STORED`, ``, false},
		{"index", `id int`, `CREATE INDEX ON s.t (s.computes(id))`, false},
		{"index on some", `id int`, `CREATE INDEX ON s.t (id) WHERE s.computes(id)`, false},
		{"partition key", `id int) PARTITION BY LIST (s.computes(id)`, ``, false},
		{"check of a partition", `id int) PARTITION BY RANGE (id`, `CREATE TABLE s.l1 PARTITION OF s.t (CHECK (s.computes(id))) DEFAULT`, false},
		{"domain", `id s.few`, ``, false},
		{"domain over a domain", `id int, v s.fewer`, ``, false},
		{"domain by an operator", `id s.less`, ``, false},
		{"trigger on a partition", `id int) PARTITION BY RANGE (id`, `CREATE TABLE s.l1 PARTITION OF s.t DEFAULT PARTITION BY RANGE (id); CREATE TABLE s.l2 PARTITION OF s.l1 DEFAULT;
			CREATE TRIGGER x BEFORE INSERT ON s.l2 FOR EACH ROW EXECUTE FUNCTION s.see(); ALTER TABLE s.l2 ENABLE ALWAYS TRIGGER x`, false},
		{"array", `id int, v int[]`, ``, true},
		{"vector", `id int, v int2vector`, ``, true},
		{"composite", `id int, v s.pair`, ``, true},
		{"domain over an array", `id int, v s.list`, ``, true},
		{"domain over a composite", `id int, v s.two`, ``, true},
	} {
		pgtest.Exec(t, uri, `CREATE TABLE s.t (`+c.columns+`)`)
		relation := published("t", decoder.IdentityFull, "id")
		if strings.Contains(c.columns, " v ") {
			relation = published("t", decoder.IdentityFull, "id", "v")
		}
		table, err := Load(q, relation, false)
		require.NoError(t, err)
		if c.then != "" {
			before := table
			pgtest.Exec(t, uri, c.then)
			if before.RowByRow == "" && !c.batches {
				require.ErrorContains(t, pin(before), "22P02", c.name)
				require.NoError(t, q.Recover())
				noticed++
			}
			table, err = Load(q, relation, false)
			require.NoError(t, err)
		}
		require.Equal(t, c.batches, table.RowByRow == "", c.name)
		rows, err := q.Query(`SELECT (`+noticedBy+`) FROM pg_catalog.pg_class c WHERE c.oid = $1`, table.Version.Table)
		require.NoError(t, err)
		require.Equal(t, c.batches, rows[0][0] == nil, c.name)
		if c.batches {
			_, err = q.Query(PinUnnoticedSQL, table.Version.Table)
			require.NoError(t, err, c.name)
			require.NoError(t, pin(table), c.name)
		} else {
			_, err = q.Query(PinUnnoticedSQL, table.Version.Table)
			require.ErrorContains(t, err, "22P02", c.name)
			require.NoError(t, q.Recover())
		}
		rows, err = q.Query(`SELECT count(*) FROM pg_catalog.pg_locks WHERE pid = pg_catalog.pg_backend_pid() AND relation IN ('s.t'::pg_catalog.regclass, pg_catalog.to_regclass('s.l1'), pg_catalog.to_regclass('s.l2'))`)
		if c.batches {
			require.NoError(t, err)
			require.Equal(t, "0", string(rows[0][0]), c.name)
		}
		require.NoError(t, q.Recover())
		pgtest.Exec(t, uri, `DROP TABLE s.t CASCADE`)
	}

	require.Equal(t, 8, noticed, "what came after the table was bound")

	t.Run("without columns", func(t *testing.T) {
		pgtest.Exec(t, uri, `CREATE TABLE s.t ()`)
		table, err := Load(q, published("t", decoder.IdentityDefault), false)
		require.NoError(t, err)
		require.Equal(t, "it has no columns", table.RowByRow)
		require.NoError(t, q.Recover())
		pgtest.Exec(t, uri, `DROP TABLE s.t`)
	})
	t.Run("elements", func(t *testing.T) {
		pgtest.Exec(t, uri, `CREATE DOMAIN s.corner AS box; CREATE TABLE s.t (id int, b box, d s.corner)`)
		relation := published("t", decoder.IdentityFull, "id", "b", "d")
		relation.Columns[0].TypeOID = 21
		table, err := Load(q, relation, true)
		require.NoError(t, err)
		require.True(t, table.Columns[0].Widens, "an int2 that arrives in binary goes into the int4 as what it is")
		require.Equal(t, []byte{',', ';', ';'}, []byte{table.Columns[0].Delimiter, table.Columns[1].Delimiter, table.Columns[2].Delimiter})
		require.Equal(t, uint32(1020), table.Columns[1].ArrayOID)
		table, err = Load(q, relation, false)
		require.NoError(t, err)
		require.False(t, table.Columns[0].Widens)
	})
}
