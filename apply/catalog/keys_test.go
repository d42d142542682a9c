package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder"
	"pgapply/internal/pgtest"
)

// TestReadKeys: the sets of a table, by the columns of each, and why a table has none.
func TestReadKeys(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `CREATE SCHEMA s; CREATE EXTENSION citext SCHEMA s`,
		`CREATE FUNCTION s.see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`)
	q := querier(t, uri)
	nullsEqual := ""
	if pgtest.Major(t) >= 15 {
		nullsEqual = `; CREATE UNIQUE INDEX ON s.t (a, b) NULLS NOT DISTINCT`
	}
	for _, c := range []struct {
		name, columns, then string
		// published are the columns of the relation, as the function of that name takes them.
		published, want string
	}{
		{"primary key", `id int PRIMARY KEY, a int`, ``, `*id a`, `id`},
		{"two columns, and others", `id int, a int, b int, UNIQUE (b, a), PRIMARY KEY (a, id) INCLUDE (b)`, ``, `*id *a b`, `a,id b,a`},
		{"replica identity", `id int PRIMARY KEY, a int NOT NULL`, `CREATE UNIQUE INDEX x ON s.t (a); ALTER TABLE s.t REPLICA IDENTITY USING INDEX x`, `id *a`, `id a`},
		{"not published", `id int PRIMARY KEY, a int UNIQUE`, ``, `*id`, `id`},
		{"expression", `id int PRIMARY KEY, a int`, `CREATE UNIQUE INDEX ON s.t (a, abs(id))`, `*id a`, `id`},
		{"partial", `id int PRIMARY KEY, a int`, `CREATE UNIQUE INDEX ON s.t (a) WHERE id > 0`, `*id a`, `id`},
		{"not unique", `id int PRIMARY KEY, a int`, `CREATE INDEX ON s.t (a)`, `*id a`, `id`},
		{"hash", `id int PRIMARY KEY, a int`, `CREATE INDEX ON s.t USING hash (a)`, `*id a`, `id`},
		{"no key", `id int, a int`, ``, `id a`, `unsearched`},
		{"unique, and no key", `id int UNIQUE, a int`, ``, `id a`, `id unsearched`},
		{"key that is not sent", `id int PRIMARY KEY, a int`, ``, `id *a`, `id unsearched`},
		{"key that is not published", `id int PRIMARY KEY, a int UNIQUE`, ``, `*a`, `a unsearched`},
		{"NULLs", `id int PRIMARY KEY, a int, b int`, strings.TrimPrefix(nullsEqual, `; `), `*id a b`, map[bool]string{false: `id`, true: `id a,b=`}[nullsEqual != ""]},
		{"partitions", `id int PRIMARY KEY, a int) PARTITION BY RANGE (id`, `CREATE TABLE s.l PARTITION OF s.t DEFAULT; CREATE UNIQUE INDEX ON s.l (a)`, `*id a`, `id`},
		{"keys of leaves", `id int, a int) PARTITION BY RANGE (id`, `CREATE TABLE s.l PARTITION OF s.t DEFAULT; CREATE UNIQUE INDEX ON s.l (id)`, `id a`, `unsearched`},
		{"another operator class", `id int, a text`, `CREATE UNIQUE INDEX ON s.t (id int4_ops)`, `*id`, `id unsearched`},

		{"unknown equality", `id s.citext PRIMARY KEY`, ``, `*id`, `! key column "id": when its values are equal is known to the target alone`},
		{"unknown equality beside", `id int PRIMARY KEY, a jsonb UNIQUE`, ``, `*id a`, `! key column "a": when its values are equal is known to the target alone`},
		{"unknown equality that nobody sends", `id int PRIMARY KEY, a jsonb UNIQUE`, ``, `*id`, `id`},
		{"trigger", `id int PRIMARY KEY`, `CREATE TRIGGER x BEFORE INSERT ON s.t FOR EACH ROW EXECUTE FUNCTION s.see(); ALTER TABLE s.t ENABLE ALWAYS TRIGGER x`, `*id`, `! trigger "x"`},
		{"deferrable", `id int PRIMARY KEY, a int UNIQUE DEFERRABLE`, ``, `*id a`, `! constraint "t_a_key", which is deferrable or excludes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			pgtest.Exec(t, uri, `DROP TABLE IF EXISTS s.t`, fmt.Sprintf(`CREATE TABLE s.t (%s)`, c.columns))
			if c.then != "" {
				pgtest.Exec(t, uri, c.then)
			}
			identity := decoder.IdentityDefault
			if !strings.Contains(c.published, "*") {
				identity = decoder.IdentityFull
			}
			relation := published("t", identity, strings.Fields(c.published)...)
			table, err := Load(q, relation, false)
			require.NoError(t, err)
			keys, err := ReadKeys(table, relation)
			require.NoError(t, err)
			require.Equal(t, c.want, describeKeys(keys, relation))
		})
	}
}

// describeKeys writes keys as the test wants them.
func describeKeys(keys *Keys, relation *decoder.Relation) string {
	if keys.Barrier != "" {
		return "! " + keys.Barrier
	}
	var parts []string
	for _, set := range keys.Sets {
		var names []string
		for _, column := range set.Columns {
			names = append(names, relation.Columns[column.Position].Name)
		}
		part := strings.Join(names, ",")
		if set.NullsEqual {
			part += "="
		}
		parts = append(parts, part)
	}
	if !keys.Searched {
		parts = append(parts, "unsearched")
	}
	return strings.Join(parts, " ")
}
