package target

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply/catalog"
	"pgapply/decoder"
	"pgapply/internal/pgtest"
)

// TestKeysOfEqualValues: values that are equal to the server, once they are in the
// target's column, have one key, in text and in binary form; others have not, unless it
// is said that they may. Of other columns nothing is said.
func TestKeysOfEqualValues(t *testing.T) {
	server := pgtest.SharedServer(t)
	uri := pgtest.Database(t, server)
	pgtest.Exec(t, uri, `CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('a', 'b'); CREATE DOMAIN money_amount AS numeric(6,2); CREATE DOMAIN short AS varchar(4); CREATE DOMAIN shorter AS short;
		CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	s := openFeed(t, uri)
	const numbers = `0;1;-1;1.0;1.00;10;100;0.10;0.1;1e5;100000.0;123456789012.3400;123456789012.34;NaN`
	const spaced = `'';' ';'a';'a ';'a  ';' a';'b'`
	for _, c := range []struct {
		published, column string
		values            string
		known, coarse     bool
	}{
		{`int`, `int`, `0;1;-1;2147483647`, true, false},
		{`int`, `bigint`, `0;1;-1;2147483647`, true, false},
		{`bigint`, `smallint`, `0;1;-1;32767`, true, false},
		{`oid`, `oid`, `0;1;4294967295`, true, false},
		{`bool`, `bool`, `true;false`, true, false},
		{`text`, `text`, spaced, true, true},
		{`text`, `text COLLATE "C"`, spaced, true, true},
		{`varchar(6)`, `varchar(2)`, spaced, true, true},
		{`char(3)`, `char(3)`, spaced, true, false},
		{`char(3)`, `char(5)`, spaced, true, false},
		{`text`, `char(5)`, spaced, true, false},
		{`char(3)`, `text`, spaced, true, false},
		{`text`, `short`, spaced, true, true},
		{`shorter`, `shorter`, spaced, true, true},
		{`bytea`, `bytea`, `'';'\x00';'\x0000';'\x20';'a'`, true, false},
		{`bit(3)`, `bit(3)`, `B'000';B'001';B'100'`, true, false},
		{`bit varying(5)`, `bit varying(9)`, `B'';B'0';B'00';B'1';B'10'`, true, false},
		{`uuid`, `uuid`, `'00000000-0000-0000-0000-000000000001';'A0000000-0000-0000-0000-00000000000F';'a0000000-0000-0000-0000-00000000000f'`, true, false},
		{`numeric`, `numeric`, numbers, true, false},
		{`numeric(20,5)`, `numeric(20,5)`, numbers, true, false},
		{`numeric(20,5)`, `numeric`, numbers, true, false},
		{`numeric`, `numeric(20,1)`, numbers, false, false},
		{`numeric`, `money_amount`, numbers, false, false},
		{`int`, `numeric`, `1`, false, false},
		{`float8`, `float8`, numbers + `;'-0';'infinity';'-infinity';1e-300`, true, false},
		{`float4`, `float4`, `0;'-0';1;1.0;1e10;'NaN';0.1`, true, false},
		{`float8`, `float4`, `1`, false, false},
		{`date`, `date`, `'2000-01-01';'2000-01-02';'infinity';'-infinity';'0044-03-15 BC'`, true, false},
		{`timestamp`, `timestamp`, `'2000-01-01 00:00:00.4';'2000-01-01';'infinity'`, true, false},
		{`timestamptz`, `timestamptz`, `'2000-01-01 00:00:00+00';'2000-01-01 01:00:00+01';'2000-10-29 02:30:00+02'`, true, false},
		{`timestamp(0)`, `timestamp(0)`, `'2000-01-01 00:00:00.4';'2000-01-01'`, true, false},
		{`timestamp`, `timestamp(0)`, `'2000-01-01'`, false, false},
		{`time`, `time`, `'00:00';'24:00';'00:00:00.000001'`, true, false},
		{`mood`, `mood`, `'a';'b'`, true, false},
		{`mood`, `text`, `'a'`, false, false},
		{`text`, `int`, `'1'`, false, false},
		{`text`, `citext`, `'a'`, false, false},
		{`citext`, `citext`, `'a'`, false, false},
		{`text`, `text COLLATE loose`, `'a'`, false, false},
		{`interval`, `interval`, `'1 day'`, false, false},
		{`jsonb`, `jsonb`, `'1'`, false, false},
		{`int[]`, `int[]`, `'{1}'`, false, false},
		{`int4range`, `int4range`, `'[1,2)'`, false, false},
		{`money`, `money`, `1`, false, false},
		{`timetz`, `timetz`, `'00:00+00'`, false, false},
	} {
		t.Run(c.published+" to "+c.column, func(t *testing.T) {
			pgtest.Exec(t, uri, `DROP TABLE IF EXISTS p, t`, fmt.Sprintf(`CREATE TABLE p (k %s)`, c.published), fmt.Sprintf(`CREATE TABLE t (k %s PRIMARY KEY)`, c.column))
			for _, value := range strings.Split(c.values, `;`) {
				if value == "NaN" {
					value = `'NaN'`
				}
				pgtest.Exec(t, uri, `INSERT INTO p VALUES (`+value+`)`)
			}
			form, known := keyForm(t, s, uri)
			require.Equal(t, c.known, known)
			if !known {
				return
			}
			plain := strings.Split(c.column, " COLLATE ")[0]
			send := pgtest.Query(t, uri, `WITH RECURSIVE b(type) AS (SELECT atttypid FROM pg_attribute WHERE attrelid = 'p'::regclass AND attnum = 1
				UNION ALL SELECT typbasetype FROM b JOIN pg_type t ON t.oid = type AND typtype = 'd') SELECT typsend FROM b JOIN pg_type t ON t.oid = type WHERE typtype <> 'd'`)
			text := `k::text`
			if strings.HasPrefix(c.published, "char") {
				text = `rpad(k::text, 3)` // as its output function writes it
			}
			pairs := 0
			for _, line := range strings.Split(pgtest.Query(t, uri, fmt.Sprintf(`WITH v AS (SELECT encode(convert_to(%[1]s, 'UTF8'), 'hex') AS text, encode(%[2]s(k), 'hex') AS binary, (%[1]s)::%[3]s AS k FROM p)
				SELECT a.text, b.text, a.binary, b.binary, a.k = b.k FROM v a, v b`, text, send, plain)), "\n") {
				fields := strings.Split(line, "|")
				for i, kind := range []decoder.ValueKind{decoder.Text, decoder.Binary} {
					a, b := keyOf(t, form, kind, fields[2*i]), keyOf(t, form, kind, fields[2*i+1])
					equal := fields[4] == "t"
					if equal || !c.coarse {
						require.Equal(t, equal, a == b, "%c %s: %q and %q", kind, line, a, b)
					}
					pairs++
				}
			}
			require.NotZero(t, pairs)
		})
	}
}

// keyForm is that of table t's key, where p is the published table.
func keyForm(t *testing.T, s *Session, uri string) (catalog.KeyForm, bool) {
	t.Helper()
	fields := strings.Split(pgtest.Query(t, uri, `WITH RECURSIVE b(type) AS (SELECT atttypid FROM pg_attribute WHERE attrelid = 'p'::regclass AND attnum = 1
			UNION ALL SELECT typbasetype FROM b JOIN pg_type t ON t.oid = type AND typtype = 'd')
		SELECT atttypid, atttypmod, CASE WHEN atttypid >= 16384 THEN typname END, nspname
		FROM pg_attribute, b JOIN pg_type t ON t.oid = type AND typtype <> 'd' JOIN pg_namespace n ON n.oid = typnamespace WHERE attrelid = 'p'::regclass AND attnum = 1`), "|")
	oid, err := strconv.ParseUint(fields[0], 10, 32)
	require.NoError(t, err)
	modifier, err := strconv.ParseInt(fields[1], 10, 32)
	require.NoError(t, err)
	relation := &decoder.Relation{Namespace: "public", Name: "t", ReplicaIdentity: decoder.IdentityDefault, Columns: []decoder.Column{
		{Key: true, Name: "k", TypeOID: uint32(oid), TypeModifier: int32(modifier), TypeName: fields[2], TypeNamespace: fields[3]},
	}}
	bound, err := catalog.Load(s.pipe, relation, true)
	require.NoError(t, err)
	keys, err := catalog.ReadKeys(bound, relation)
	require.NoError(t, err)
	require.NoError(t, s.finish())
	if keys.Barrier != "" {
		return catalog.NoForm, false
	}
	require.True(t, keys.Searched)
	require.Len(t, keys.Sets, 1)
	return keys.Sets[0].Columns[0].Form, true
}

func keyOf(t *testing.T, form catalog.KeyForm, kind decoder.ValueKind, data string) string {
	t.Helper()
	value, err := hex.DecodeString(data)
	require.NoError(t, err)
	return string(appendKey(nil, form, &decoder.Value{Kind: kind, Data: value}))
}

// TestKeysOfRows: what rows have in common, by the sets of a table.
func TestKeysOfRows(t *testing.T) {
	column := func(position int) catalog.KeyColumn {
		return catalog.KeyColumn{Position: position, Form: catalog.Bytes}
	}
	distinct := catalog.KeySet{OID: 1, Columns: []catalog.KeyColumn{column(0), column(1)}}
	equal := catalog.KeySet{OID: 1, Columns: distinct.Columns, NullsEqual: true}
	other := catalog.KeySet{OID: 2, Columns: distinct.Columns}
	keys := NewKeys()
	hash := func(set catalog.KeySet, tuple decoder.Tuple) []uint64 {
		keys.Hashes = nil
		keys.add(&set, tuple)
		return keys.Hashes
	}
	one := hash(distinct, texts("a", "bc"))
	require.Len(t, one, 1)
	require.Equal(t, one, hash(distinct, texts("a", "bc")))
	require.Equal(t, one, hash(equal, texts("a", "bc")))
	require.NotEqual(t, one, hash(distinct, texts("ab", "c")), "lengths count")
	require.NotEqual(t, hash(distinct, texts("a\x00\x00\x00\x00b", "c")), hash(distinct, texts("a", "b\x00\x00\x00\x00c")))
	require.NotEqual(t, one, hash(distinct, texts("bc", "a")))
	require.NotEqual(t, one, hash(other, texts("a", "bc")), "of another index")
	require.NotEqual(t, hash(distinct, texts("", "a")), hash(distinct, texts("a", "")))
	require.Empty(t, hash(distinct, texts("a", nil)), "NULL is not equal to NULL")
	require.Equal(t, hash(equal, texts("a", nil)), hash(equal, texts("a", nil)))
	require.NotEqual(t, hash(equal, texts("a", nil)), hash(equal, texts("a", "")))
	row := texts("a", "b")
	row[1].Kind = decoder.Unchanged
	require.Empty(t, hash(distinct, row), "it has the place already")
}

// TestKeysAllocateNothing: a row costs no memory once there is some.
func TestKeysAllocateNothing(t *testing.T) {
	set := &catalog.KeySet{OID: 1, Columns: []catalog.KeyColumn{{Position: 0, Form: catalog.NumericForm}, {Position: 1, Form: catalog.Padded}}}
	row := texts("100.100", "a text ")
	keys := NewKeys()
	work := func() {
		keys.Hashes = keys.Hashes[:0]
		for range 100 {
			keys.add(set, row)
		}
	}
	work()
	require.Zero(t, testing.AllocsPerRun(10, work))
}
