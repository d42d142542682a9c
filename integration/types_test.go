package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// families holds for each family of types a column definition and values of it,
// the awkward ones first.
var families = []struct {
	column string
	values []string
}{
	{`smallint`, []string{`-32768`, `32767`}},
	{`integer`, []string{`-2147483648`, `2147483647`, `0`}},
	{`bigint`, []string{`-9223372036854775808`, `9223372036854775807`}},
	{`numeric`, []string{`'NaN'`, `'Infinity'`, `0.000000000000000000001`, `-1e100`, `1.50`}},
	{`numeric(10,2)`, []string{`12345678.90`, `-0.01`}},
	{`real`, []string{`'NaN'`, `'-Infinity'`, `1e-45`, `0.1`, `'-0'`}},
	{`double precision`, []string{`0.1`, `1.7976931348623157e308`, `5e-324`, `'-0'`}},
	{`money`, []string{`'-92233720368547758.08'`, `'12.34'`}},
	{`boolean`, []string{`true`, `false`}},
	{`text`, []string{`''`, `E'a\\b\n\t"\''`, `'ünï 🐘'`, `'\N'`, `'NULL'`, `repeat('x', 100000)`}},
	{`varchar(5)`, []string{`'abc  '`, `''`}},
	{`char(5)`, []string{`'ab'`, `''`}},
	{`"char"`, []string{`'x'`, `''`}},
	{`name`, []string{`'a name'`}},
	{`bytea`, []string{`'\x00ff27'`, `''`, `decode(repeat('00', 5000), 'hex')`}},
	{`date`, []string{`'4713-01-01 BC'`, `'infinity'`, `'2024-02-29'`}},
	{`time`, []string{`'24:00:00'`, `'00:00:00.000001'`}},
	{`timetz`, []string{`'23:59:59.999999-15:59'`}},
	{`timestamp`, []string{`'294276-12-31 23:59:59.999999'`, `'-infinity'`, `'0044-03-15 12:00 BC'`}},
	{`timestamptz`, []string{`'2024-03-31 02:30:00+01'`, `'infinity'`, `'1900-01-01 00:00:00+00'`}},
	{`timestamp(0)`, []string{`'2024-01-01 00:00:00'`}},
	{`interval`, []string{`'-1 year -2 mons +3 days -04:05:06.789'`, `'1 mon -1 day'`, `'178000000 years'`}},
	{`interval day to second(0)`, []string{`'1 day 00:00:01'`}},
	{`uuid`, []string{`'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'`}},
	{`json`, []string{`'{"b": 1,  "a": [null, "\u00e9"], "b": 2}'`}},
	{`jsonb`, []string{`'{"b": 1, "a": [null, 1.50]}'`, `'null'`}},
	{`jsonpath`, []string{`'$.a[*] ? (@ > 1)'`}},
	{`xml`, []string{`'<a b="c">&amp;</a>'`, `'text only'`}},
	{`bit(3)`, []string{`B'101'`}},
	{`bit varying(8)`, []string{`B''`, `B'10101'`}},
	{`inet`, []string{`'::1/64'`, `'192.168.0.1'`}},
	{`cidr`, []string{`'10.0.0.0/8'`}},
	{`macaddr`, []string{`'08:00:2b:01:02:03'`}},
	{`macaddr8`, []string{`'08:00:2b:01:02:03:04:05'`}},
	{`point`, []string{`'(0.1,-1e300)'`}},
	{`line`, []string{`'{1,2,3}'`}},
	{`lseg`, []string{`'[(1,2),(3,4)]'`}},
	{`box`, []string{`'(3,4),(1,2)'`}},
	{`path`, []string{`'[(1,2),(3,4)]'`, `'((1,2),(3,4))'`}},
	{`polygon`, []string{`'((0,0),(1,1),(2,0))'`}},
	{`circle`, []string{`'<(1,2),3>'`}},
	{`tsvector`, []string{`'a:1A b:2 ''c d'':3'`}},
	{`tsquery`, []string{`'a & !b <-> c'`}},
	{`int4range`, []string{`'[1,5)'`, `'empty'`, `'(,)'`}},
	{`tstzrange`, []string{`'["2024-01-01 00:00:00+00",)'`}},
	{`int4multirange`, []string{`'{[1,3),[5,8)}'`, `'{}'`}},
	{`pg_lsn`, []string{`'16/B374D848'`}},
	{`regclass`, []string{`'pg_catalog.pg_class'`}},
	{`oid`, []string{`4294967295`}},
	{`xid8`, []string{`'123456789012'`}},
	{`integer[]`, []string{`'{1,NULL,3}'`, `'{}'`, `'[-1:1]={1,2,3}'`, `'{{1,2},{3,4}}'`}},
	{`text[]`, []string{`ARRAY['a', 'NULL', NULL, '', '"', '\', 'a,b', '{}']`}},
	{`char(3)[]`, []string{`ARRAY['a', 'abc']`}},
	{`bit(3)[]`, []string{`ARRAY[B'101', B'010']`}},
	{`box[]`, []string{`'{(3,4),(1,2);(1,1),(0,0)}'`}},
	{`numeric(5,2)[]`, []string{`'{1.10,NULL}'`}},
	{`mood`, []string{`'sad'`, `'it''s "ok"'`}},
	{`positive`, []string{`1`, `2147483647`}},
	{`words`, []string{`ARRAY['a','b']`}},
	{`pair`, []string{`ROW(1, 'a,b', '{1,2}')`, `ROW(NULL, '', NULL)`}},
	{`span`, []string{`'[1.5,2.5)'`}},
}

// userArrays cannot travel in binary: the value names its element type by an OID
// of the publisher. The native subscription fails on them as well.
var userArrays = []struct {
	column string
	values []string
}{
	{`mood[]`, []string{`'{sad,NULL}'`}},
	{`pair[]`, []string{`ARRAY[ROW(1, 'x', NULL)::pair]`}},
}

const userTypes = `
	CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"');
	CREATE DOMAIN positive AS int CHECK (VALUE > 0);
	CREATE DOMAIN words AS text[];
	CREATE TYPE pair AS (a int, b text, c int[]);
	CREATE TYPE span AS RANGE (subtype = float8)`

// hostile are defaults of a role that would garble values, or end sessions, if
// pgapply left them in force.
var hostile = []string{
	`datestyle = 'SQL, DMY'`, `intervalstyle = 'sql_standard'`, `extra_float_digits = -15`, `bytea_output = 'escape'`,
	`array_nulls = off`, `xmloption = document`, `search_path = 'trap'`, `timezone = 'Asia/Kathmandu'`, `quote_all_identifiers = on`,
	`statement_timeout = '1ms'`, `lock_timeout = '1ms'`, `idle_in_transaction_session_timeout = '1ms'`, `idle_session_timeout = '1ms'`,
	`default_transaction_read_only = on`, `default_transaction_isolation = 'serializable'`, `default_transaction_deferrable = on`,
	`row_security = off`, `client_encoding = 'LATIN1'`, `session_replication_role = origin`, `standard_conforming_strings = on`,
}

// TestTypes sends every family through an insert, an update that keeps and one
// that sets it, and a search by the whole row.
func TestTypes(t *testing.T) {
	eachMode(t, testTypes)
	t.Run("hostile", func(t *testing.T) {
		l := newLink(t)
		l.mode = mode{name: "hostile", change: func(o *apply.Options) {
			o.Source = strings.Replace(o.Source, "postgres@", "hostile@", 1)
			o.Target = strings.Replace(o.Target, "postgres@", "hostile@", 1)
		}}
		l.both(`CREATE SCHEMA trap`, `CREATE TABLE trap.pg_class (oid oid)`, `CREATE ROLE hostile SUPERUSER LOGIN`)
		t.Cleanup(func() { l.both(`DROP OWNED BY hostile`, `DROP ROLE hostile`) })
		for _, setting := range hostile {
			l.both(`ALTER ROLE hostile SET ` + setting)
		}
		testTypes(t, l)
	})
}

func testTypes(t *testing.T, l *link) {
	tables := families
	if l.mode.name != "binary" {
		tables = append(tables[:len(tables):len(tables)], userArrays...)
	}
	// The target's user types get other OIDs than the publisher's.
	l.onTarget(`CREATE TYPE other AS ENUM ('x')`, `CREATE DOMAIN more AS text`)
	l.both(userTypes)
	var names, workload, checks []string
	for i, family := range tables {
		name := fmt.Sprintf("t%d", i)
		names = append(names, name)
		l.both(fmt.Sprintf(`CREATE TABLE %s (id int PRIMARY KEY, v %s)`, name, family.column),
			fmt.Sprintf(`CREATE TABLE %s_full (id int, v %s)`, name, family.column),
			fmt.Sprintf(`ALTER TABLE %s_full REPLICA IDENTITY FULL`, name))
		names = append(names, name+"_full")
		for n, value := range family.values {
			workload = append(workload,
				fmt.Sprintf(`INSERT INTO %[1]s VALUES (%[2]d, %[3]s), (%[2]d + 100, %[3]s), (%[2]d + 200, NULL);
					INSERT INTO %[1]s_full SELECT * FROM %[1]s WHERE id %% 100 = %[2]d`, name, n, value),
				fmt.Sprintf(`UPDATE %[1]s SET v = %[3]s WHERE id = %[2]d + 200; UPDATE %[1]s SET v = NULL WHERE id = %[2]d + 100`, name, n, value),
				fmt.Sprintf(`UPDATE %[1]s_full SET id = -1 WHERE id = %[2]d; DELETE FROM %[1]s_full WHERE id = %[2]d + 100;
					UPDATE %[1]s_full SET v = %[3]s WHERE id = %[2]d + 200`, name, n, value))
		}
		checks = append(checks, fmt.Sprintf(`SELECT '%[1]s', '%[2]s', id, v::text FROM %[1]s ORDER BY id`, name, family.column),
			fmt.Sprintf(`SELECT '%[1]s_full', '%[2]s', id, v::text FROM %[1]s_full ORDER BY id, v::text`, name, family.column))
	}
	l.onSource(`CREATE PUBLICATION p FOR TABLE ` + strings.Join(names, ", "))
	l.play(workload...)
	all := strings.Join(checks, ";")
	require.Equal(t, pgtest.Query(t, l.source, all), pgtest.Query(t, l.target, all))
	status := l.engine.Status()
	require.Zero(t, status.Misses.Update+status.Misses.Delete)
}
