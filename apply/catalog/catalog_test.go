package catalog

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/decoder"
	"pgapply/internal/pgpipe"
	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// querier opens a session with an empty search_path, as apply sessions have.
func querier(t *testing.T, uri string) *pgpipe.Pipe[int] {
	t.Helper()
	config, err := pgconn.ParseConfig(uri)
	require.NoError(t, err)
	config.RuntimeParams["search_path"] = ""
	config.RuntimeParams["session_replication_role"] = "replica"
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Conn().Close()) })
	return pgpipe.New[int](conn)
}

// published describes a relation of schema s as its publisher would: a column list
// in which a star marks the key.
func published(name string, identity decoder.ReplicaIdentity, columns ...string) *decoder.Relation {
	relation := &decoder.Relation{Namespace: "s", Name: name, ReplicaIdentity: identity}
	for _, column := range columns {
		key := column[0] == '*'
		if key {
			column = column[1:]
		}
		relation.Columns = append(relation.Columns, decoder.Column{Name: column, Key: key || identity == decoder.IdentityFull, TypeOID: 23})
	}
	return relation
}

func TestLoad(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `
		CREATE SCHEMA s; CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext;
		CREATE TYPE s.mood AS ENUM ('a'); CREATE DOMAIN s.d AS int; CREATE DOMAIN s.dd AS s.d; CREATE TYPE s.pair AS (a int, b text);
		CREATE TYPE s.odd AS (a int, j json);
		CREATE TABLE s.types (c_int int, c_varchar varchar(5), c_char char(5), c_citext ext.citext, c_mood s.mood, c_dd s.dd, c_pair s.pair,
			c_odd s.odd, c_ints int[], c_json json, c_jsonb jsonb, c_jsons json[], c_xml xml, c_point point, c_box box, c_range int4range,
			c_multi int4multirange, c_cidr cidr, c_regclass regclass, c_varchars varchar(3)[], c_xid xid, c_text text COLLATE "C");
		CREATE TABLE s.plain (id int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (1) STORED, i int GENERATED ALWAYS AS IDENTITY);
		CREATE TABLE s.cased (k ext.citext PRIMARY KEY, v text);
		CREATE TABLE s.reversed (a text, b text); CREATE UNIQUE INDEX ON s.reversed (a text_pattern_ops, b) INCLUDE (b);
		CREATE TABLE s.chosen (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL); CREATE UNIQUE INDEX chosen_key ON s.chosen (b, a) INCLUDE (id);
		ALTER TABLE s.chosen REPLICA IDENTITY USING INDEX chosen_key;
		CREATE TABLE s.deferred (id int PRIMARY KEY DEFERRABLE, v text);
		CREATE TABLE s.keyless (a int, b text);
		CREATE TABLE s.root (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
		CREATE VIEW s.a_view AS SELECT 1 AS id; CREATE MATERIALIZED VIEW s.a_matview AS SELECT 1 AS id; CREATE SEQUENCE s.a_sequence`)
	q := querier(t, uri)
	load := func(relation *decoder.Relation) *Table {
		t.Helper()
		table, err := Load(q, relation, false)
		require.NoError(t, err)
		return table
	}

	t.Run("equality of types", func(t *testing.T) {
		want := map[string]string{
			"c_citext": `OPERATOR("ext".=)`, "c_odd": "", "c_json": "", "c_jsons": "", "c_xml": "", "c_point": "", "c_box": "",
		}
		var names []string
		for name := range map[string]bool{
			"c_int": true, "c_varchar": true, "c_char": true, "c_citext": true, "c_mood": true, "c_dd": true, "c_pair": true, "c_odd": true,
			"c_ints": true, "c_json": true, "c_jsonb": true, "c_jsons": true, "c_xml": true, "c_point": true, "c_box": true, "c_range": true,
			"c_multi": true, "c_cidr": true, "c_regclass": true, "c_varchars": true, "c_xid": true, "c_text": true,
		} {
			names = append(names, name)
		}
		table := load(published("types", decoder.IdentityFull, names...))
		require.Equal(t, ByRow, table.Search)
		for i, column := range table.Columns {
			require.Equal(t, names[i], column.Name)
			equality, special := want[column.Name]
			if !special {
				equality = `OPERATOR("pg_catalog".=)`
			}
			require.Equal(t, equality, column.Equality, column.Name)
		}
	})

	t.Run("keys", func(t *testing.T) {
		keys := func(table *Table) (names []string) {
			for _, column := range table.Columns {
				if column.Key {
					names = append(names, column.Name)
				}
			}
			return names
		}
		table := load(published("plain", decoder.IdentityDefault, "v", "*id", "i"))
		require.Equal(t, ByKey, table.Search)
		require.Equal(t, []string{"id"}, keys(table))
		require.True(t, table.Columns[2].IdentityAlways)
		require.Equal(t, []string{"a", "b"}, keys(load(published("chosen", decoder.IdentityIndex, "*a", "*b", "id"))))
		require.Equal(t, []string{"id"}, keys(load(published("plain", decoder.IdentityFull, "v", "id"))), "a local key is used under FULL too")
		table = load(published("cased", decoder.IdentityDefault, "*k", "v"))
		require.Equal(t, `OPERATOR("ext".=)`, table.Columns[0].Equality)
		require.True(t, load(published("root", decoder.IdentityDefault, "*id", "*k")).Partitioned)
		require.Equal(t, ByRow, load(published("deferred", decoder.IdentityFull, "id", "v")).Search, "a deferrable key is none")
	})

	t.Run("impossible searches", func(t *testing.T) {
		for _, c := range []struct {
			relation *decoder.Relation
			reason   string
		}{
			{published("keyless", decoder.IdentityDefault, "*a", "b"), "neither REPLICA IDENTITY index nor PRIMARY KEY"},
			{published("plain", decoder.IdentityIndex, "id", "*v"), `did not send replica identity column expected by the logical replication target relation "s.plain": "id"`},
			{published("plain", decoder.IdentityFull, "v"), `"id"`},
		} {
			table := load(c.relation)
			require.Equal(t, Impossible, table.Search)
			require.ErrorContains(t, table.SearchFault(), c.reason)
			mismatch, ok := AsMismatch(table.SearchFault())
			require.True(t, ok)
			require.NotEmpty(t, mismatch.Hint)
		}
	})

	t.Run("misfits", func(t *testing.T) {
		for _, c := range []struct {
			relation *decoder.Relation
			reason   string
		}{
			{published("nowhere", decoder.IdentityDefault, "*id"), `logical replication target relation "s.nowhere" does not exist`},
			{published("a_view", decoder.IdentityDefault, "*id"), `cannot use relation "s.a_view" as logical replication target: it is a view`},
			{published("a_matview", decoder.IdentityDefault, "*id"), "a materialized view"},
			{published("a_sequence", decoder.IdentityDefault, "*id"), "a sequence"},
			{published("plain", decoder.IdentityDefault, "*id", "x", "y"), `is missing replicated columns: "x", "y"`},
			{published("plain", decoder.IdentityDefault, "*id", "V"), `is missing replicated column: "V"`},
			{published("plain", decoder.IdentityDefault, "*id", "g"), `has incompatible generated column: "g"`},
		} {
			_, err := Load(q, c.relation, false)
			mismatch, ok := AsMismatch(err)
			require.True(t, ok, "%v", err)
			require.Contains(t, mismatch.Reason, c.reason)
			require.NotEmpty(t, mismatch.Hint)
		}
	})

	t.Run("binary", func(t *testing.T) {
		relation := published("types", decoder.IdentityFull, "c_int", "c_dd", "c_mood", "c_text", "c_varchar", "c_citext")
		for i, oid := range []uint32{23, 70000, 70001, 1043, 25, 25} {
			relation.Columns[i].TypeOID = oid
		}
		relation.Columns[1].TypeNamespace, relation.Columns[1].TypeName = "pg_catalog", "int4"
		relation.Columns[2].TypeNamespace, relation.Columns[2].TypeName = "s", "mood"
		table, err := Load(q, relation, true)
		require.NoError(t, err)
		for i, takes := range []bool{true, true, true, true, true, false} {
			require.Equal(t, takes, table.Columns[i].TakesBinary, table.Columns[i].Name)
		}
		require.Equal(t, uint32(1043), table.Columns[3].TypeOID, "a varchar goes into a text column as what it is")
		relation.Columns[0].TypeOID, relation.Columns[2].TypeName = 700, "other"
		table, err = Load(q, relation, true)
		require.NoError(t, err)
		require.False(t, table.Columns[0].TakesBinary, "four bytes of float4 are no int4")
		require.False(t, table.Columns[2].TakesBinary)
	})
}
