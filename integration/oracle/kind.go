package oracle

import "strings"

// kind is a type of column with values that tax it.
type kind struct {
	name string
	// value is an expression that differs for each number $n. It is written for
	// both a literal number and a column of generate_series.
	value string
	// odd are values at the edges of the type. None equals another value of the
	// column without looking the same.
	odd []string
	// alike are values that equal others of the kind but look different. They are
	// used only where a key finds the row: among several equal rows native and
	// publisher may each mean another one.
	alike []string
	// vary turns a value $c into an equal one that looks different.
	vary string
	// key says that it can be part of a key.
	key bool
	// incomparable types have no default equality.
	incomparable bool
	// make are the statements that make the type, on both ends.
	make []string
	// wider are types that take every value of this one in text form, in the
	// order in which ALTER TABLE may go through them.
	wider []string
	// since is the oldest major that knows it.
	since int
	// extension that has to be there, on both ends.
	extension string
	// filter is a row filter on a column $c.
	filter string
	// large values are stored out of line.
	large bool
}

// at is the kind's value for a number, given as an SQL expression.
func (k *kind) at(number string) string { return strings.ReplaceAll(k.value, "$n", number) }

// kinds are all types of columns. The types that are made live in schema s.
var kinds = []*kind{
	{name: "int", value: `$n`, odd: []string{"0", "-2147483648", "2147483647"}, key: true, wider: []string{"bigint", "numeric"}, filter: `$c % 3 <> 1`},
	{name: "smallint", value: `$n`, odd: []string{"0", "-32768"}, key: true, wider: []string{"int", "bigint"}, filter: `$c % 2 = 0`},
	{name: "bigint", value: `$n * 10000000000`, odd: []string{"-9223372036854775808"}, key: true, wider: []string{"numeric"}, filter: `$c > 40000000000`},
	{name: "numeric", value: `$n / 4.0`, odd: []string{"'NaN'", "0.00000000000000000001", "-12345678901234567890.5"}, alike: []string{"1", "1.0", "1.00"}, vary: `$c + 0.00000000`, key: true},
	{name: "numeric(12,3)", value: `$n / 8.0`, odd: []string{"0", "-0.001"}, key: true},
	{name: "float4", value: `$n / 8.0`, odd: []string{"'Infinity'", "1e-30", "0.1"}, alike: []string{"0", "'-0'", "'NaN'"}},
	{name: "float8", value: `$n / 8.0`, odd: []string{"'-Infinity'", "1e-300", "0.1", "1/3.0"}, alike: []string{"0", "'-0'", "'NaN'"}, vary: `- (0 - $c)`, key: true},
	{name: "money", value: `$n::money`, odd: []string{"'-1.23'"}},
	{name: "bool", value: `$n % 2 = 0`, odd: []string{"true"}},
	{name: "text", value: `'k' || $n`, odd: oddTexts, key: true, filter: `$c <> 'k7' AND $c NOT LIKE '%3'`},
	{name: `text COLLATE "POSIX"`, value: `'P' || $n`, odd: oddTexts, key: true},
	{name: "text COLLATE s.nocase", value: `'Key' || $n`, odd: []string{"''", "'ä'"}, alike: []string{"'key1'", "'KEY1'", "'Ä'"}, vary: `upper($c)`, key: true, extension: "icu", make: []string{`CREATE COLLATION s.nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`}},
	{name: "public.citext", value: `('Ci' || $n)::public.citext`, odd: []string{"''"}, alike: []string{"'ci1'", "'CI1'"}, vary: `upper($c::text)`, key: true, extension: "citext", make: []string{`CREATE EXTENSION citext SCHEMA public`}},
	{name: "varchar(40)", value: `'v' || $n`, odd: []string{"''", `E'tab\tnew\nline\\'`, "'NULL'"}, key: true, wider: []string{"varchar(200)", "text"}, filter: `$c <> 'v5'`},
	{name: "char(12)", value: `'c' || $n`, odd: []string{"''", "'  x'"}, key: true},
	{name: "name", value: `('n' || $n)::name`, odd: []string{"'x y'"}, key: true},
	{name: `"char"`, value: `chr(97 + $n % 26)::"char"`, odd: []string{"'!'"}},
	{name: "bytea", value: `decode(lpad(to_hex($n), 8, '0'), 'hex')`, odd: []string{`'\x'`, `'\x00ff5c'`}, key: true},
	{name: "uuid", value: `md5(($n)::text)::uuid`, odd: []string{"'00000000-0000-0000-0000-000000000000'"}, key: true},
	{name: "date", value: `date '2000-01-01' + $n`, odd: []string{"'infinity'", "'0044-03-15 BC'"}, key: true, filter: `$c <> '2000-01-05'`},
	{name: "timestamp", value: `timestamp '2000-01-01' + $n * interval '1 hour 1 microsecond'`, odd: []string{"'-infinity'", "'99999-01-01'"}, key: true},
	{name: "timestamptz", value: `timestamptz '2024-03-30 00:00+00' + $n * interval '7 minutes 1 microsecond'`, odd: []string{"'infinity'", "'0001-01-01 00:00:00.000001+00'"}, key: true},
	{name: "time", value: `time '00:00' + $n * interval '1 second'`, odd: []string{"'24:00'"}},
	{name: "timetz", value: `timetz '00:00+00' + $n * interval '1 second'`, odd: []string{"'23:59:60-11:30'"}},
	{name: "interval", value: `$n * interval '1 hour'`, odd: []string{"'1 year -2 mons 3 days -04:05:06.789'", "'-7 years'"}, alike: []string{"'1 day'", "'24:00'"}, key: true},
	{name: "inet", value: `inet '10.0.0.0' + $n`, odd: []string{"'::1'", "'10.1.2.3/8'"}, key: true},
	{name: "macaddr", value: `('08:00:2b:01:02:' || lpad(to_hex($n % 256), 2, '0'))::macaddr`, odd: []string{"'00:00:00:00:00:00'"}},
	{name: "bit(16)", value: `($n)::bit(16)`, odd: []string{"B'1010101010101010'"}, key: true},
	{name: "bit varying", value: `($n)::bit(16)::varbit`, odd: []string{"B''", "B'1'"}},
	{name: "pg_lsn", value: `pg_lsn '0/0' + $n`, odd: []string{"'FFFFFFFF/FFFFFFFF'"}, since: 14},
	{name: "tsvector", value: `to_tsvector('simple', 'w' || $n)`, odd: []string{"''", `$$'a b':1A,2 'c''d'$$`}},
	{name: "s.mood", value: `(ARRAY['sad', 'o''k', 'Very happy'])[1 + $n % 3]::s.mood`, odd: []string{`'q"'`}, make: []string{`CREATE TYPE s.mood AS ENUM ('Very happy', 'sad', 'o''k', 'q"')`}},
	{name: "s.positive", value: `$n + 1`, odd: []string{"2147483647"}, key: true, make: []string{`CREATE DOMAIN s.positive AS int CHECK (VALUE > 0)`}},
	{name: "s.word", value: `'w' || $n`, odd: []string{"'ä'"}, key: true, make: []string{`CREATE DOMAIN s.word0 AS varchar(50)`, `CREATE DOMAIN s.word AS s.word0 CHECK (VALUE <> 'x')`}},
	{name: "s.pair", value: `ROW($n, 'p' || $n)::s.pair`, odd: []string{`'(,)'`, `ROW(1, 'com,ma "quo\te"')::s.pair`}, key: true, make: []string{`CREATE TYPE s.pair AS (a int, "B b" text)`}},
	{name: "s.pair[]", value: `ARRAY[ROW($n, 'p')::s.pair, NULL]`, odd: []string{`'{}'`}, make: []string{`CREATE TYPE s.pair AS (a int, "B b" text)`}},
	{name: "s.mixed", value: `ROW($n, '{}', point($n, 1))::s.mixed`, incomparable: true, make: []string{`CREATE TYPE s.mixed AS (a int, j json, p point)`}},
	{name: "int[]", value: `ARRAY[$n, NULL, $n + 1]`, odd: []string{"'{}'", "'[0:1]={1,2}'", "'{{1,2},{3,4}}'"}, key: true},
	{name: "text[]", value: `ARRAY['a' || $n, 'NULL', NULL, 'q"uo\te', 'com,ma', '']`, odd: []string{"'{}'"}},
	{name: "s.mood[]", value: `ARRAY[(ARRAY['sad', 'o''k'])[1 + $n % 2]::s.mood]`, odd: []string{`ARRAY['q"', NULL]::s.mood[]`}, make: []string{`CREATE TYPE s.mood AS ENUM ('Very happy', 'sad', 'o''k', 'q"')`}},
	{name: "char(3)[]", value: `ARRAY['a', ($n % 100)::text]`, odd: []string{"'{}'"}},
	{name: "numeric[]", value: `ARRAY[$n / 4.0, NULL]`, odd: []string{"'{NaN}'"}},
	{name: "box[]", value: `ARRAY[box(point(0, 0), point($n, 1))]`, odd: []string{"'{}'"}, incomparable: true},
	{name: "int4range", value: `int4range($n, $n + 5)`, odd: []string{"'empty'", "'(,)'", "'[5,)'"}, key: true},
	{name: "tstzrange", value: `tstzrange(timestamptz '2024-01-01 00:00+00', timestamptz '2024-01-01 00:00+00' + $n * interval '1 day', '[]')`, odd: []string{"'empty'", "'(,)'"}},
	{name: "s.floats", value: `s.floats($n / 2.0, $n + 1)`, odd: []string{"'empty'", "'(,1)'"}, make: []string{`CREATE TYPE s.floats AS RANGE (subtype = float8)`}},
	{name: "int4multirange", value: `int4multirange(int4range($n, $n + 2), int4range($n + 10, $n + 12))`, odd: []string{"'{}'"}, key: true, since: 14},
	{name: "jsonb", value: `jsonb_build_object('n', $n, 'a', ARRAY['x', 'ä'])`, odd: []string{"'null'", "'[]'", `'"q\"\\u00e4"'`}, alike: []string{"'1.0'", "'1'"}, key: true},
	{name: "json", value: `json_build_object('n', $n)`, odd: []string{`'{"a" :  1, "a":2}'`}, incomparable: true},
	{name: "xml", value: `xmlelement(name a, $n)`, odd: []string{`'x<b/>'`}, incomparable: true, extension: "xml"},
	{name: "point", value: `point($n, 0.1)`, odd: []string{"'(1e-300,-0)'"}, incomparable: true},
	{name: "box", value: `box(point(0, 0), point($n, 1))`, odd: []string{"'(2,2),(1,1)'"}, incomparable: true},
	{name: "circle", value: `circle(point(0, 0), $n)`, incomparable: true},
	{name: "polygon", value: `polygon(box(point(0, 0), point($n, 1)))`, incomparable: true},
	{name: "public.hstore", value: `public.hstore('k', ($n)::text)`, odd: []string{`'"a b"=>NULL'`}, key: true, extension: "hstore", make: []string{`CREATE EXTENSION hstore SCHEMA public`}},
	{name: "public.ltree", value: `('top.n' || $n)::public.ltree`, odd: []string{"''"}, key: true, extension: "ltree", make: []string{`CREATE EXTENSION ltree SCHEMA public`}},
}

var oddTexts = []string{"''", "'ä ü 漢字 🐘'", `E'tab\tnew\nline\\ back'`, `'quo''te"'`, "'NULL'", `'\N'`, "repeat('x', 300)"}

// kindInt and the others are for columns that every table can have.
var (
	kindInt   = kinds[0]
	kindLong  = &kind{name: "text", value: `lpad(($n)::text, 150, 'k')`, key: true}
	kindPad   = &kind{name: "text", value: `repeat(md5(($n)::text), 70)`, odd: []string{"''", "'short'"}, large: true}
	kindBytes = &kind{name: "bytea", value: `decode(repeat(md5(($n)::text), 80), 'hex')`, odd: []string{"''"}, large: true}
)
