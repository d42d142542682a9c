package catalog

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder"
	"pgapply/internal/pgtest"
)

// What names objects of a server is a number in binary form: regtype and its kind, and
// whatever has a part of such a type.
func TestBinaryFormThatNamesObjects(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `CREATE SCHEMA s; CREATE DOMAIN s.role AS regrole; CREATE TYPE s.pair AS (a int, b s.role); CREATE TYPE s.regular AS ENUM ('a');
		CREATE TABLE s.t (a regtype, b regclass[], c s.role, d s.pair, e s.pair[], f oid, g s.regular, h oidvector, i int)`)
	relation := published("t", decoder.IdentityFull, "a", "b", "c", "d", "e", "f", "g", "h", "i")
	for i, known := range []decoder.Column{
		{TypeOID: 2206},
		{TypeOID: 2210},
		{TypeOID: 70000, TypeNamespace: "pg_catalog", TypeName: "regrole"},
		{TypeOID: 70001, TypeNamespace: "s", TypeName: "pair"},
		{TypeOID: 70002, TypeNamespace: "s", TypeName: "_pair"},
		{TypeOID: 26},
		{TypeOID: 70003, TypeNamespace: "s", TypeName: "regular"},
		{TypeOID: 30},
		{TypeOID: 23},
	} {
		known.Name = relation.Columns[i].Name
		relation.Columns[i] = known
	}
	table, err := Load(querier(t, uri), relation, true)
	require.NoError(t, err)
	for i, column := range table.Columns {
		require.Equal(t, i < 5, column.NamesObjects, column.Name)
		require.Equal(t, i >= 5, column.TakesBinary, column.Name)
	}
	name := &table.Columns[0]
	require.True(t, name.Takes([]byte{0, 0, 4, 235}), "pg_class has one number everywhere")
	require.False(t, name.Takes([]byte{0, 0, 64, 0}), "the first object that somebody made")
	require.False(t, table.Columns[1].Takes(make([]byte, 20)))
}
