package catalog

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder"
	"pgapply/internal/pgpipe"
	"pgapply/internal/pgtest"
)

// TestRuns: which tables take runs, each reason against it by itself, and that the pin
// knows them too.
func TestRuns(t *testing.T) {
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
	q := querier(t, uri).(*pgpipe.Pipe[int])
	noticed := 0
	for _, c := range []struct {
		name    string
		columns string
		then    string
		runs    bool
		// shape: it is the columns, and no pin has to tell.
		shape bool
	}{
		{"plain", `id int PRIMARY KEY, v text`, ``, true, false},
		{"no key", `id int, v text`, ``, true, false},
		{"types", `id s.code PRIMARY KEY, v s.mood, b box, r int4range, n name`, ``, true, false},
		{"ordinary trigger", `id int`, `CREATE TRIGGER x BEFORE INSERT ON s.t FOR EACH ROW EXECUTE FUNCTION s.see()`, true, false},
		{"foreign key", `id int PRIMARY KEY, r int REFERENCES s.t`, ``, true, false},
		{"ordinary rule", `id int`, `CREATE RULE x AS ON INSERT TO s.t DO ALSO NOTHING`, true, false},
		{"unique", `id int PRIMARY KEY, v int UNIQUE`, ``, true, false},
		{"check", `id serial CHECK (id > 0), v int DEFAULT random() CHECK (v + id < 9 OR v::text ~ 'x'), w timestamptz DEFAULT now(), m s.mood DEFAULT 'a' CHECK (m <> 'a')`, ``, true, false},
		{"generated and indexed", `id int, v text, g int GENERATED ALWAYS AS (id + 1) STORED`, `CREATE INDEX ON s.t (lower(v)) WHERE id > 0`, true, false},
		{"domain with a check", `id s.small, v s.small DEFAULT 3`, ``, true, false},
		{"extension", `id s.citext PRIMARY KEY CHECK (id OPERATOR(s.~) 'a'), v uuid DEFAULT s.uuid_generate_v4()`, `CREATE INDEX ON s.t ((id OPERATOR(s.=) 'b'))`, true, false},
		{"parent", `id int`, `CREATE TABLE s.child () INHERITS (s.t); CREATE TRIGGER x BEFORE INSERT ON s.child FOR EACH ROW EXECUTE FUNCTION s.see(); ALTER TABLE s.child ENABLE ALWAYS TRIGGER x`, true, false},

		{"partitions", `id int) PARTITION BY RANGE (id`, `CREATE TABLE s.l1 PARTITION OF s.t DEFAULT PARTITION BY RANGE (id); CREATE TABLE s.l2 PARTITION OF s.l1 DEFAULT`, true, false},

		{"always", `id int`, `CREATE TRIGGER x BEFORE INSERT ON s.t FOR EACH ROW EXECUTE FUNCTION s.see(); ALTER TABLE s.t ENABLE ALWAYS TRIGGER x`, false, false},
		{"statement trigger", `id int`, `CREATE TRIGGER x AFTER UPDATE ON s.t EXECUTE FUNCTION s.see(); ALTER TABLE s.t ENABLE REPLICA TRIGGER x`, false, false},
		{"enforced foreign key", `id int PRIMARY KEY, r int REFERENCES s.t`, `DO $$ BEGIN EXECUTE (
			SELECT format('ALTER TABLE s.t ENABLE ALWAYS TRIGGER %I', tgname) FROM pg_trigger WHERE tgrelid = 's.t'::regclass LIMIT 1); END $$`, false, false},
		{"rule", `id int`, `CREATE RULE x AS ON INSERT TO s.t DO ALSO NOTHING; ALTER TABLE s.t ENABLE REPLICA RULE x`, false, false},
		{"deferrable", `id int PRIMARY KEY, v int UNIQUE DEFERRABLE`, ``, false, false},
		{"exclusion", `id int PRIMARY KEY, v int4range, EXCLUDE USING gist (v WITH &&)`, ``, false, false},
		{"check that looks", `id int CHECK (s.looks(id))`, ``, false, false},
		{"default that looks", `id int, v bool DEFAULT s.looks(1)`, ``, false, false},
		{"check that changes", `id int CHECK (s.sees(id))`, ``, false, false},
		{"check that computes", `id int CHECK (s.computes(id))`, ``, false, false},
		{"check by an operator", `id int CHECK (id OPERATOR(s.<?) 3)`, ``, false, false},
		{"check by a domain", `id int CHECK (id::s.few IS NOT NULL)`, ``, false, false},
		{"check by a domain in a composite", `id int CHECK (ROW(id)::s.inside IS NOT NULL)`, ``, false, false},
		{"generated", `id int, g bool GENERATED ALWAYS AS (s.computes(id)) STORED`, ``, false, false},
		{"index", `id int`, `CREATE INDEX ON s.t (s.computes(id))`, false, false},
		{"index on some", `id int`, `CREATE INDEX ON s.t (id) WHERE s.computes(id)`, false, false},
		{"partition key", `id int) PARTITION BY LIST (s.computes(id)`, ``, false, false},
		{"check of a partition", `id int) PARTITION BY RANGE (id`, `CREATE TABLE s.l1 PARTITION OF s.t (CHECK (s.computes(id))) DEFAULT`, false, false},
		{"domain", `id s.few`, ``, false, false},
		{"domain over a domain", `id int, v s.fewer`, ``, false, false},
		{"domain by an operator", `id s.less`, ``, false, false},
		{"trigger on a partition", `id int) PARTITION BY RANGE (id`, `CREATE TABLE s.l1 PARTITION OF s.t DEFAULT PARTITION BY RANGE (id); CREATE TABLE s.l2 PARTITION OF s.l1 DEFAULT;
			CREATE TRIGGER x BEFORE INSERT ON s.l2 FOR EACH ROW EXECUTE FUNCTION s.see(); ALTER TABLE s.l2 ENABLE ALWAYS TRIGGER x`, false, false},
		{"array", `id int, v int[]`, ``, false, true},
		{"vector", `id int, v int2vector`, ``, false, true},
		{"composite", `id int, v s.pair`, ``, false, true},
		{"domain over an array", `id int, v s.list`, ``, false, true},
		{"domain over a composite", `id int, v s.two`, ``, false, true},
	} {
		pgtest.Exec(t, uri, `CREATE TABLE s.t (`+c.columns+`)`)
		relation := published("t", decoder.IdentityFull, "id")
		if c.shape {
			relation = published("t", decoder.IdentityFull, "id", "v")
		}
		table, err := Load(q, relation, false)
		require.NoError(t, err)
		if c.then != "" {
			before := table
			pgtest.Exec(t, uri, c.then)
			if before.Runs && !c.runs {
				_, err = q.Query(PinRunsSQL, before.Version.Table, before.Version.Runs)
				require.ErrorContains(t, err, "22P02", c.name)
				require.NoError(t, q.Recover())
				noticed++
			}
			table, err = Load(q, relation, false)
			require.NoError(t, err)
		}
		require.Equal(t, c.runs, table.Runs, c.name)
		require.Equal(t, c.runs, table.RowByRow == "", c.name)
		rows, err := q.Query(`SELECT (`+noticedBy+`) FROM pg_catalog.pg_class c WHERE c.oid = $1`, table.Version.Table)
		require.NoError(t, err)
		require.Equal(t, c.runs || c.shape, rows[0][0] == nil, c.name)
		if c.runs || c.shape {
			_, err = q.Query(PinRunsSQL, table.Version.Table, "")
			require.NoError(t, err, c.name)
			_, err = q.Query(PinRunsSQL, table.Version.Table, table.Version.Runs)
			require.NoError(t, err, c.name)
		} else {
			_, err = q.Query(PinRunsSQL, table.Version.Table, "")
			require.ErrorContains(t, err, "22P02", c.name)
			require.NoError(t, q.Recover())
		}
		rows, err = q.Query(`SELECT count(*) FROM pg_catalog.pg_locks WHERE pid = pg_catalog.pg_backend_pid() AND relation IN ('s.t'::pg_catalog.regclass, pg_catalog.to_regclass('s.l1'), pg_catalog.to_regclass('s.l2'))`)
		if c.runs || c.shape {
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
		require.False(t, table.Runs)
		require.NoError(t, q.Recover())
		pgtest.Exec(t, uri, `DROP TABLE s.t`)
	})
	t.Run("elements", func(t *testing.T) {
		pgtest.Exec(t, uri, `CREATE DOMAIN s.corner AS box; CREATE TABLE s.t (id int, b box, d s.corner)`)
		relation := published("t", decoder.IdentityFull, "id", "b", "d")
		relation.Columns[0].TypeOID = 21
		table, err := Load(q, relation, true)
		require.NoError(t, err)
		require.False(t, table.Runs, "an int2 that arrives in binary goes into the int4 as what it is")
		require.Equal(t, []byte{',', ';', ';'}, []byte{table.Columns[0].Delimiter, table.Columns[1].Delimiter, table.Columns[2].Delimiter})
		require.Equal(t, uint32(1020), table.Columns[1].ArrayOID)
		table, err = Load(q, relation, false)
		require.NoError(t, err)
		require.True(t, table.Runs)
	})
}
