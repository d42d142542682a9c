package target

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/apply/catalog"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// texts makes a tuple of values in text form; nil is NULL.
func texts(values ...any) decoder.Tuple {
	tuple := make(decoder.Tuple, len(values))
	for i, value := range values {
		tuple[i].Kind = decoder.Null
		if value != nil {
			tuple[i] = decoder.Value{Kind: decoder.Text, Data: []byte(fmt.Sprint(value))}
		}
	}
	return tuple
}

// mergeableTable has a key and takes batches.
func mergeableTable() *table {
	equal := "OPERATOR(pg_catalog.=)"
	return &table{
		relation: &decoder.Relation{ID: 1},
		bound: &catalog.Table{
			Schema: "s", Name: "t",
			Columns: []catalog.Column{
				{Name: "id", TypeOID: 23, ArrayOID: 1007, Delimiter: ',', Equality: equal, Key: true, TakesBinary: true},
				{Name: "v", TypeOID: 25, ArrayOID: 1009, Delimiter: ',', Equality: equal, TakesBinary: true},
				{Name: "b", TypeOID: 603, ArrayOID: 1020, Delimiter: ';', TakesBinary: true},
			},
		},
	}
}

func TestNetStatements(t *testing.T) {
	bound := mergeableTable().bound
	key := &bound.Columns[0]
	ours := func(b *builder) { b.WriteString(" AND ours") }
	sql := func(op operation, columns string) string {
		plain := netStatement(bound, op, shape(columns), ours, false).sql
		end := " RETURNING 1" + expect("pg_catalog.cardinality($1)")
		if op == opAbsent {
			end = expect("0")
		}
		require.Equal(t, countedRows+plain+end, netStatement(bound, op, shape(columns), ours, true).sql)
		return plain
	}

	insert := netStatement(bound, opInsert, nil, ours, true)
	require.Equal(t, `INSERT INTO "s"."t" ("id", "v", "b") OVERRIDING SYSTEM VALUE SELECT pg_catalog.unnest($1) AS c0, pg_catalog.unnest($2) AS c1, pg_catalog.unnest($3) AS c2`, insert.sql)
	require.Equal(t, []uint32{1007, 1009, 1020}, insert.types)

	// The key is one column.
	key.Hashed = true
	update := netStatement(bound, opUpdate, shape("sus"), ours, false)
	require.Equal(t, `UPDATE ONLY "s"."t" AS pgapply_row SET "id" = pgapply_net.c0, "b" = pgapply_net.c1 `+
		`FROM (SELECT pg_catalog.unnest($1) AS c0, pg_catalog.unnest($2) AS c1) AS pgapply_net `+
		`WHERE pgapply_row."id" OPERATOR(pg_catalog.=) ANY ($1) AND pgapply_row."id" OPERATOR(pg_catalog.=) pgapply_net.c0 AND ours`, sql(opUpdate, "sus"))
	require.Equal(t, []parameter{{false, 0}, {false, 2}}, update.parameters)
	require.Equal(t, `SELECT FROM ONLY "s"."t" AS pgapply_row WHERE pgapply_row."id" OPERATOR(pg_catalog.=) ANY ($1) LIMIT 1`, sql(opAbsent, ""))
	require.Equal(t, `DELETE FROM ONLY "s"."t" AS pgapply_row WHERE pgapply_row."id" OPERATOR(pg_catalog.=) ANY ($1) AND ours`, sql(opDelete, ""))
	key.IdentityAlways, key.Collation = true, `"x"."y"`
	require.Equal(t, `UPDATE ONLY "s"."t" AS pgapply_row SET "b" = pgapply_net.c0 `+
		`FROM (SELECT pg_catalog.unnest($1) AS c0, pg_catalog.unnest($2) AS c1) AS pgapply_net `+
		`WHERE pgapply_row."id" OPERATOR(pg_catalog.=) ANY ($2 COLLATE "x"."y") AND pgapply_row."id" OPERATOR(pg_catalog.=) pgapply_net.c1 COLLATE "x"."y" AND ours`, sql(opUpdate, "ius"))
	require.Contains(t, sql(opUpdate, "iuu"), ` SET "v" = pgapply_row."v" FROM `, "nothing to set, and the key cannot be")
	require.Contains(t, sql(opDelete, ""), `ANY ($1 COLLATE "x"."y") AND`)

	each := ` FROM (SELECT pg_catalog.unnest($1) AS c0) AS pgapply_net WHERE pgapply_row."id" OPERATOR(pg_catalog.=) ANY (ARRAY[pgapply_net.c0 COLLATE "x"."y"]) AND ours`
	key.Hashed = false
	require.Contains(t, sql(opUpdate, "iuu"), each)
	key.Hashed, bound.Partitioned = true, true
	require.Contains(t, sql(opUpdate, "iuu"), each)
	require.Equal(t, `DELETE FROM "s"."t" AS pgapply_row USING`+each[len(" FROM"):], sql(opDelete, ""))
	bound.Partitioned, key.Collation, bound.Columns[1].Key = false, "", true
	require.Equal(t, `SELECT FROM ONLY "s"."t" AS pgapply_row, (SELECT pg_catalog.unnest($1) AS c0, pg_catalog.unnest($2) AS c1) AS pgapply_net `+
		`WHERE pgapply_row."id" OPERATOR(pg_catalog.=) ANY (ARRAY[pgapply_net.c0]) AND pgapply_row."v" OPERATOR(pg_catalog.=) ANY (ARRAY[pgapply_net.c1]) LIMIT 1`, sql(opAbsent, ""))
}

// TestMergeable: each reason by itself keeps a change out of batches.
func TestMergeable(t *testing.T) {
	const u, b, null = decoder.Unchanged, decoder.Binary, decoder.Null
	row := texts(1, "a", "(1,1),(0,0)")
	old := texts(1, nil, nil)
	kind := func(tuple decoder.Tuple, column int, kind decoder.ValueKind) decoder.Tuple {
		tuple = append(decoder.Tuple(nil), tuple...)
		tuple[column].Kind = kind
		return tuple
	}
	other := texts(2, nil, nil)
	for _, c := range []struct {
		name          string
		op            operation
		search, newer decoder.Tuple
		change        func(*Session, *table)
		want          bool
	}{
		{"insert", opInsert, nil, row, nil, true},
		{"insert without a key", opInsert, nil, row, func(_ *Session, t *table) { t.bound.Search = catalog.Impossible }, true},
		{"update", opUpdate, row, row, nil, true},
		{"update with the old key", opUpdate, old, row, nil, true},
		{"update that leaves a value", opUpdate, kind(row, 1, u), kind(row, 1, u), nil, true},
		{"update without a key", opUpdate, row, row, func(_ *Session, t *table) { t.bound.Search = catalog.ByRow }, false},
		{"update of the key", opUpdate, other, row, nil, false},
		{"update of the key's form", opUpdate, kind(row, 0, b), row, nil, false},
		{"update with a key that was not sent", opUpdate, kind(row, 0, u), kind(row, 0, u), nil, false},
		{"delete", opDelete, old, nil, nil, true},
		{"delete in binary", opDelete, kind(old, 0, b), nil, nil, true},
		{"delete of NULL", opDelete, kind(old, 0, null), nil, nil, false},
		{"binary that the column does not take", opInsert, nil, kind(row, 2, b), func(_ *Session, t *table) { t.bound.Columns[2].TakesBinary = false }, false},
		{"binary that the column widens", opInsert, nil, kind(row, 2, b), func(_ *Session, t *table) { t.bound.Columns[2].Widens = true }, false},
		{"binary", opInsert, nil, kind(row, 2, b), nil, true},
		{"binary among what is copied as text", opInsert, nil, kind(row, 2, b), func(_ *Session, t *table) { t.bound.TextCopy = true }, false},
		{"text that is copied as text", opInsert, nil, row, func(_ *Session, t *table) { t.bound.TextCopy = true }, true},
		{"insert of an array", opInsert, nil, row, func(_ *Session, t *table) { t.bound.Columns[2].ArrayOID = 0 }, true},
		{"update of an array", opUpdate, row, row, func(_ *Session, t *table) { t.bound.Columns[2].ArrayOID = 0 }, false},
		{"update that leaves an array", opUpdate, kind(row, 2, u), kind(row, 2, u), func(_ *Session, t *table) { t.bound.Columns[2].ArrayOID = 0 }, true},
		{"delete beside an array", opDelete, old, nil, func(_ *Session, t *table) { t.bound.Columns[2].ArrayOID = 0 }, true},
		{"delete by an array", opDelete, old, nil, func(_ *Session, t *table) { t.bound.Columns[0].ArrayOID = 0 }, false},
		{"binary key that the column does not take", opDelete, kind(old, 0, b), nil, func(_ *Session, t *table) { t.bound.Columns[0].TakesBinary = false }, false},
		{"insert of a value that was not sent", opInsert, nil, kind(row, 1, u), nil, false},
		{"key without equality", opDelete, old, nil, func(_ *Session, t *table) { t.bound.Columns[0].Equality = "" }, false},
		{"insert of NULL for a key", opInsert, nil, kind(row, 0, null), nil, false},
		{"insert of NULL where there is no key", opInsert, nil, kind(row, 0, null), func(_ *Session, t *table) { t.bound.Search = catalog.ByRow }, true},
		{"watched", opInsert, nil, row, func(s *Session, t *table) { s.watch(t) }, false},
		{"watched, out of turn", opInsert, nil, row, func(s *Session, t *table) { s.watch(t); s.running.open = true }, true},
		{"nothing that may be set", opUpdate, old, row, func(_ *Session, t *table) {
			for i := range t.bound.Columns {
				t.bound.Columns[i].IdentityAlways = true
			}
		}, false},
		{"identity beside the key", opUpdate, old, row, func(_ *Session, t *table) { t.bound.Columns[1].IdentityAlways = true }, false},
		{"identity beside the key, found by the new row", opUpdate, row, row, func(_ *Session, t *table) { t.bound.Columns[1].IdentityAlways = true }, false},
		{"identity in the key", opUpdate, row, row, func(_ *Session, t *table) { t.bound.Columns[0].IdentityAlways = true }, true},
	} {
		s, table := &Session{}, mergeableTable()
		if c.change != nil {
			c.change(s, table)
		}
		require.Equal(t, c.want, s.mergeable(table, c.op, c.search, c.newer), c.name)
	}
}

// take gives the session a change, as change does.
func take(t *testing.T, s *Session, table *table, op operation, tuple decoder.Tuple) bool {
	t.Helper()
	search, newer := tuple, tuple
	switch op {
	case opInsert:
		search = nil
	case opDelete:
		newer = nil
	}
	joined, err := s.join(table, op, search, newer)
	require.NoError(t, err)
	return joined
}

// TestBatchesAllocateNothing for a row, and keep no more than their bound.
func TestBatchesAllocateNothing(t *testing.T) {
	const rows = 1000
	s, table := &Session{options: Options{MaxBatch: 1 << 20}}, mergeableTable()
	var changes []decoder.Tuple
	for i := range rows {
		changes = append(changes, texts(i, `a value, "quoted"`, nil))
	}
	gather := func() {
		for range 3 {
			for _, change := range changes {
				if !take(t, s, table, opUpdate, change) {
					t.Fatal("not taken")
				}
			}
		}
		b := table.batch
		for column := range table.bound.Columns {
			for len(s.batches.arrays) <= column {
				s.batches.arrays = append(s.batches.arrays, nil)
			}
			s.batches.arrays[column] = b.net.Array(s.batches.arrays[column][:0], b.net.Result().Updates, column, ',', 25)
		}
		s.batches.drop(b)
	}
	gather()
	require.Zero(t, testing.AllocsPerRun(10, gather))
	require.Zero(t, s.batches.weight)
}

// TestBatchesThatDoNotTakeAChange leave it to be sent by itself.
func TestBatchesThatDoNotTakeAChange(t *testing.T) {
	table := mergeableTable()
	s := &Session{options: Options{MaxBatch: 1000}}
	require.True(t, take(t, s, table, opInsert, texts(1, "a", nil)))
	s.batches.forget()
	require.False(t, take(t, s, table, opInsert, texts(1, strings.Repeat("x", 1000), nil)), "larger than a batch may be")
	require.Nil(t, table.batch)
	s.exact = true
	require.False(t, take(t, s, table, opInsert, texts(1, "a", nil)))
	s.exact, table.bound.RowByRow = false, "a trigger"
	require.False(t, take(t, s, table, opInsert, texts(1, "a", nil)), "the table notices")
	table.bound.RowByRow, s.options.MaxBatch = "", 0
	require.False(t, take(t, s, table, opInsert, texts(1, "a", nil)), "batches are off")
	require.Empty(t, s.batches.waiting)
}

// feed is a session that is fed with changes of one table.
type feed struct {
	t        *testing.T
	s        *Session
	relation *decoder.Relation
	single   bool
}

func openFeed(t *testing.T, uri string) *Session {
	t.Helper()
	s, err := Open(t.Context(), Options{URI: uri, SynchronousCommit: "off", MaxBatch: 256 << 10, Member: func(string, string) (bool, error) { return true, nil }})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// openFeedAt is openFeed as if the target were near or far away.
func openFeedAt(t *testing.T, uri string, far bool) *Session {
	t.Helper()
	s := openFeed(t, uri)
	s.farAway = math.MaxInt64
	if far {
		s.farAway = 0
	}
	return s
}

// eachDistance runs a test once with a target that is near, and once far away.
func eachDistance(t *testing.T, test func(t *testing.T, far bool)) {
	for name, far := range map[string]bool{"near": false, "far": true} {
		t.Run(name, func(t *testing.T) { test(t, far) })
	}
}

// doubts is how a statement that meets too few rows comes out.
func (f *feed) doubts() error {
	if f.s.far() {
		return errMiscounted
	}
	return errOutOfTurn
}

// relationOf describes a table as a publisher with the same table would.
func relationOf(t *testing.T, uri, name string, identity decoder.ReplicaIdentity) *decoder.Relation {
	t.Helper()
	relation := &decoder.Relation{Namespace: "public", Name: name, ReplicaIdentity: identity}
	for _, line := range strings.Split(pgtest.Query(t, uri, `
		SELECT a.attname, CASE WHEN a.atttypid < 16384 THEN a.atttypid ELSE 0 END, coalesce(a.attnum = ANY(i.indkey), false)
		FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
		WHERE a.attrelid = $1::regclass AND a.attnum > 0 ORDER BY a.attnum`, name), "\n") {
		fields := strings.Split(line, "|")
		oid, err := strconv.ParseUint(fields[1], 10, 32)
		require.NoError(t, err)
		relation.Columns = append(relation.Columns, decoder.Column{Name: fields[0], TypeOID: uint32(oid), Key: fields[2] == "t"})
	}
	id, err := strconv.ParseUint(pgtest.Query(t, uri, `SELECT $1::regclass::oid`, name), 10, 32)
	require.NoError(t, err)
	relation.ID = uint32(id)
	return relation
}

// apply sends the changes and waits for their outcome; the transaction stays open.
// It returns what the server, or the session's own doubt, says against them.
func (f *feed) apply(op operation, tuples ...decoder.Tuple) error {
	f.t.Helper()
	if !f.s.running.open {
		f.s.Run(7)
		require.NoError(f.t, f.s.beginTransaction())
		f.s.running.open = true
	}
	if f.single {
		bound, err := f.s.table(f.relation)
		require.NoError(f.t, err)
		bound.bound.RowByRow = "for a test"
	}
	for i, tuple := range tuples {
		change := txn.Change{SubXID: 7, Relation: f.relation}
		switch op {
		case opInsert:
			change.Message = &decoder.Insert{New: tuple}
		case opUpdate:
			change.Message = &decoder.Update{New: tuple}
		default:
			change.Message = &decoder.Delete{OldKind: decoder.OldKey, Old: tuple}
		}
		if err := f.s.Change(change, int64(i)); err != nil {
			return err
		}
	}
	return f.s.Settle()
}

func (f *feed) abandon() { f.t.Helper(); require.NoError(f.t, f.s.Abandon()) }

// back rolls back like abandon and forgets no binding, which takes the most time.
func (f *feed) back() {
	f.t.Helper()
	s := f.s
	require.NoError(f.t, s.pipe.Recover())
	s.batches.forget()
	s.doubt, s.running.open = false, false
	require.NoError(f.t, s.control(opOther, rollbackStatement))
	require.NoError(f.t, s.finish())
}

// ask reads what the open transaction sees.
func (f *feed) ask(sql string) string {
	f.t.Helper()
	rows, err := f.s.ask(sql, nil)
	require.NoError(f.t, err)
	var lines []string
	for _, row := range rows {
		var fields []string
		for _, field := range row {
			fields = append(fields, string(field))
		}
		lines = append(lines, strings.Join(fields, "|"))
	}
	return strings.Join(lines, "\n")
}

// awkwardTypes are those whose values an array, or its elements on the way into a
// column, might treat in another way than a value by itself.
var awkwardTypes = []string{
	`int`, `numeric(4,1)`, `text`, `varchar(3)`, `char(3)`, `"char"`, `name`, `bytea`, `bit(3)`, `bit varying(3)`, `float8`, `real`, `money`, `boolean`,
	`interval`, `interval(0)`, `timestamp(0)`, `timestamptz`, `time(0)`, `date`, `json`, `jsonb`, `xml`, `box`, `point`, `path`, `inet`, `cidr`, `tsvector`, `tsquery`,
	`int4range`, `int4multirange`, `regclass`, `oid`, `uuid`, `pg_lsn`, `mood`, `short`, `wanted`, `ext.citext`, `ext.hstore`, `text COLLATE "C"`, `int[]`, `text[]`, `pair`,
}

var awkwardValues = []any{
	nil, ``, ` `, `NULL`, `null`, `"`, `\`, `\\`, `\N`, `'`, `{}`, `{1,2}`, `a`, `abc`, `abc  `, ` abc`, `abcd`, `a,b`, `a;b`, "a\nb", `"a"`, `\x00ff`, `\xf`,
	`1`, `0`, `-0`, `1.05`, `1.00`, `99999`, `1e308`, `NaN`, `-Infinity`, `101`, `10`, `B101`, `1 day`, `24:00:00.4`, `2024-02-30`, `2024-02-29 12:00:00.6`,
	`infinity`, `{"a": 1, "b": [1, 2]}`, `<a>&amp;</a>`, `<a>`, `(3,4),(1,2)`, `[(1,2),(3,4)]`, `10.0.0.0/8`, `::1`, `'c d':1A`, `[1,5)`, `empty`, `{[1,2),[5,6)}`,
	`pg_catalog.pg_class`, `16/B374D848`, `a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11`, `sad`, `it's "ok"`, `"a"=>"b, c"`, `ünï`, "\xff", "a\x00b",
}

// TestBatchesTakeWhatChangesTake: whatever the type and the value, a run of it does what
// the changes do one by one, down to refusing it.
func TestBatchesTakeWhatChangesTake(t *testing.T) {
	eachDistance(t, func(t *testing.T, far bool) {
		uri := pgtest.Database(t, pgtest.SharedServer(t))
		pgtest.Exec(t, uri, `CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext; CREATE EXTENSION hstore SCHEMA ext`,
			`CREATE TYPE pair AS (a int, b text); CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"', ''); CREATE DOMAIN short AS varchar(3) CHECK (VALUE <> 'a'); CREATE DOMAIN wanted AS text NOT NULL`)
		s := openFeedAt(t, uri, far)
		for i, columnType := range awkwardTypes {
			name := fmt.Sprintf("t%d", i)
			pgtest.Exec(t, uri, fmt.Sprintf(`CREATE TABLE %s (id int PRIMARY KEY, v %s)`, name, columnType))
			relation := relationOf(t, uri, name, decoder.IdentityDefault)
			outcomes := [2][]string{}
			taken := 0
			for k, single := range []bool{false, true} {
				f := &feed{t: t, s: s, relation: relation, single: single}
				for _, value := range awkwardValues {
					err := f.apply(opInsert, texts(1, value), texts(2, value), texts(3, value), texts(4, value))
					outcome := fmt.Sprintf("%q refused", value)
					if err == nil {
						outcome = fmt.Sprintf("%q %s", value, f.ask(`SELECT id, v::text, v IS NULL FROM public.`+name+` ORDER BY id`))
					} else {
						require.ErrorIs(t, err, errNotSure)
					}
					if err == nil && !single {
						require.Equal(t, "1", f.ask(`SELECT count(DISTINCT cmin::text) FROM public.`+name), columnType)
						taken++
					}
					outcomes[k] = append(outcomes[k], outcome)
					f.back()
				}
			}
			require.Equal(t, outcomes[1], outcomes[0], columnType)
			require.NotZero(t, taken, columnType)
		}
	})
}

// TestBatchesOfBinaryValues: the same for values in the form that the server itself gives.
func TestBatchesOfBinaryValues(t *testing.T) {
	eachDistance(t, func(t *testing.T, far bool) {
		uri := pgtest.Database(t, pgtest.SharedServer(t))
		pgtest.Exec(t, uri, `CREATE DOMAIN short AS varchar(3); CREATE DOMAIN code AS int`,
			`CREATE TABLE t (id code PRIMARY KEY, a text, b numeric, c bytea, d box, e interval, f float8, g short, h int4range, i jsonb, k money, l timestamptz, m bit(3), n inet, o name)`,
			`INSERT INTO t SELECT g, repeat('"\,', g % 4), g / 7.0, decode(repeat('00', g % 3), 'hex'), box(point(g, 1), point(0, 2)), make_interval(months => g, secs => 0.5::float8),
				CASE g % 3 WHEN 0 THEN 'NaN' WHEN 1 THEN '-0' ELSE 'Infinity' END::float8, CASE WHEN g % 2 = 0 THEN 'abc' END, int4range(g, g + 3), jsonb_build_array(g, null), g::money,
				'infinity', B'101', '::1', 'n' FROM generate_series(1, 1001) g`,
			`CREATE TABLE runs (LIKE t INCLUDING ALL); CREATE TABLE singles (LIKE t INCLUDING ALL)`)
		config, err := pgconn.ParseConfig(uri)
		require.NoError(t, err)
		conn, err := pgconn.ConnectConfig(t.Context(), config)
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(t.Context())) }()
		result := conn.ExecParams(t.Context(), `SELECT * FROM t ORDER BY id`, nil, nil, nil, []int16{1}).Read()
		require.NoError(t, result.Err)
		var rows, other, keys []decoder.Tuple
		for _, row := range result.Rows {
			var tuple decoder.Tuple
			for _, value := range row {
				kind := decoder.Binary
				if value == nil {
					kind = decoder.Null
				}
				tuple = append(tuple, decoder.Value{Kind: kind, Data: value})
			}
			rows = append(rows, tuple)
		}
		for i := range rows {
			next := append(decoder.Tuple(nil), rows[(i+1)%len(rows)]...)
			next[0] = rows[i][0]
			other = append(other, next)
			if i%3 == 0 {
				keys = append(keys, texts(string(rows[i][0].Data), nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil))
				keys[len(keys)-1][0].Kind = decoder.Binary
			}
		}
		s := openFeedAt(t, uri, far)
		s.options.Binary = true
		feeds := [2]*feed{}
		for k, name := range []string{"runs", "singles"} {
			relation := relationOf(t, uri, name, decoder.IdentityDefault)
			for i, base := range map[int]uint32{0: 23, 7: 1043} { // the publisher's domains travel as what they are
				relation.Columns[i].TypeOID = base
			}
			feeds[k] = &feed{t: t, s: s, relation: relation, single: name == "singles"}
		}
		step := func(op operation, tuples []decoder.Tuple) {
			t.Helper()
			for _, f := range feeds {
				require.NoError(t, f.apply(op, tuples...))
			}
			require.Equal(t, feeds[1].ask(`SELECT * FROM public.singles ORDER BY id`), feeds[0].ask(`SELECT * FROM public.runs ORDER BY id`))
		}
		step(opInsert, rows)
		require.Equal(t, feeds[0].ask(`SELECT * FROM public.t ORDER BY id`), feeds[0].ask(`SELECT * FROM public.runs ORDER BY id`))
		step(opUpdate, other)
		require.Equal(t, "t", feeds[0].ask(`SELECT count(DISTINCT cmin::text) < 10 FROM public.runs`))
		step(opDelete, keys)
		require.Equal(t, "667", feeds[0].ask(`SELECT count(*) FROM public.runs`))
		require.Len(t, s.tables[feeds[0].relation.ID].nets, 3, "an insert, an update, a delete")
		require.Empty(t, s.tables[feeds[1].relation.ID].nets)
	})
}

// TestBatchesDoubt: what a run cannot do as its changes would is found out by the count.
func TestBatchesDoubt(t *testing.T) {
	eachDistance(t, func(t *testing.T, far bool) {
		uri := pgtest.Database(t, pgtest.SharedServer(t))
		pgtest.Exec(t, uri, `CREATE EXTENSION citext; CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
		s := openFeedAt(t, uri, far)
		for i, c := range []struct {
			key    string
			values []any // the first two are equal and spelt differently
		}{
			{`numeric PRIMARY KEY`, []any{`1.0`, `1.00`, `2`, `3`}},
			{`float8 PRIMARY KEY`, []any{`0`, `-0`, `2`, `NaN`}},
			{`citext PRIMARY KEY`, []any{`a`, `A`, `b`, `c`}},
			{`text COLLATE loose PRIMARY KEY`, []any{`a`, `A`, `b`, `c`}},
			{`interval PRIMARY KEY`, []any{`1 day`, `24:00:00`, `2 days`, `3 days`}},
			{`char(3) PRIMARY KEY`, []any{`a`, `a `, `b`, `c`}},
			{`timestamptz PRIMARY KEY`, []any{`2024-01-01 00:00:00+00`, `2024-01-01 01:00:00+01`, `infinity`, `-infinity`}},
		} {
			name := fmt.Sprintf("t%d", i)
			pgtest.Exec(t, uri, fmt.Sprintf(`CREATE TABLE %s (k %s, v int)`, name, c.key))
			pgtest.Query(t, uri, fmt.Sprintf(`INSERT INTO %s VALUES ($1, 0), ($2, 0), ($3, 0) RETURNING 1`, name), c.values[1:]...)
			f := &feed{t: t, s: s, relation: relationOf(t, uri, name, decoder.IdentityDefault)}
			for _, op := range []operation{opUpdate, opDelete} {
				var all []decoder.Tuple
				for n, value := range c.values {
					all = append(all, texts(value, n))
				}
				require.ErrorIs(t, f.apply(op, all...), f.doubts(), c.key)
				require.NotEmpty(t, s.tables[f.relation.ID].nets, c.key)
				f.abandon()
				// A fourth row that is there, and all is well: they are found as they are spelt.
				require.NoError(t, f.apply(opInsert, texts(map[bool]any{true: `9`, false: `2000-01-01`}[i != 6], 0)))
				all[1] = texts(map[bool]any{true: `9`, false: `2000-01-01`}[i != 6], 1)
				require.NoError(t, f.apply(op, all...), c.key)
				f.abandon()
			}
		}
	})
}

// TestBatchesFindRowsByKey however small the table was when the statement was planned, which
// happens once.
func TestBatchesFindRowsByKey(t *testing.T) {
	eachDistance(t, func(t *testing.T, far bool) {
		uri := pgtest.Database(t, pgtest.SharedServer(t))
		pgtest.Exec(t, uri, `CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`,
			`CREATE DOMAIN code AS text; CREATE TYPE mood AS ENUM ('1', '2', '3', '4')`,
			`CREATE TABLE one (id int PRIMARY KEY, v text); CREATE TABLE two (a code, v text, b varchar(5), PRIMARY KEY (b, a)); CREATE TABLE en (k mood PRIMARY KEY, v text)`,
			`CREATE TABLE spans (k int4range PRIMARY KEY, v text); CREATE TABLE domains (k code PRIMARY KEY, v text)`,
			`CREATE TABLE own (k text NOT NULL, v text); CREATE UNIQUE INDEX own_key ON own (k COLLATE loose); ALTER TABLE own REPLICA IDENTITY USING INDEX own_key`,
			`CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE leaf PARTITION OF root DEFAULT; CREATE TABLE other PARTITION OF root FOR VALUES FROM (3) TO (9);
				CREATE TABLE lonely (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE only_leaf PARTITION OF lonely DEFAULT`)
		s := openFeedAt(t, uri, far)
		const (
			each  = `(?s)Nested Loop.*ProjectSet.*Index (Only )?Scan.*Index Cond: .*= ANY \(+ARRAY`
			array = `(?s)Delete.*Index Scan.*Index Cond: .*= ANY \(+\$[12]`
			hash  = `(?s)Hash Join.*Hash Cond: .*Index Scan.*Index Cond: .*= ANY \(+\$[12].*Hash.*ProjectSet`
		)
		for name, plans := range map[string][2]string{
			"one": {hash, array}, "two": {each, each}, "en": {hash, array}, "own": {hash, array}, "root": {each, each}, "lonely": {each, each},
			"spans": {each, array}, "domains": {hash, array},
		} {
			relation := relationOf(t, uri, name, decoder.IdentityDefault)
			row := func(n int) decoder.Tuple {
				row := texts(n, "v", n)[:len(relation.Columns)]
				if name == "spans" {
					row[0].Data = fmt.Appendf(nil, "[%d,%[1]d]", n)
				}
				return row
			}
			if name == "own" {
				relation.ReplicaIdentity, relation.Columns[0].Key = decoder.IdentityIndex, true
			}
			f := &feed{t: t, s: s, relation: relation}
			require.NoError(t, f.apply(opInsert, row(1), row(2), row(3), row(4)), name)
			require.NoError(t, f.s.control(opCommit, commitStatement))
			require.NoError(t, f.s.finish())
			f.s.running.open = false
			pgtest.Exec(t, uri, `ANALYZE`)
			for i, op := range []operation{opUpdate, opDelete} {
				require.NoError(t, f.apply(op, row(1), row(2), row(3), row(4)), name)
				list := s.tables[relation.ID].nets
				p := list[len(list)-1]
				arguments := strings.TrimSuffix(strings.Repeat("'{}', ", len(p.parameters)), ", ")
				plan := f.ask(fmt.Sprintf("EXPLAIN (COSTS off) EXECUTE %s(%s)", p.name, arguments))
				require.Regexp(t, plans[i], plan, name)
				require.NotContains(t, plan, "Seq Scan", name)
				f.abandon()
			}
		}
	})
}

// TestBatchesEndWhereTheTableNotices: a trigger that came after the table was bound.
func TestBatchesEndWhereTheTableNotices(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE leaf PARTITION OF root DEFAULT`,
		`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$`,
		`CREATE TRIGGER see BEFORE INSERT ON leaf FOR EACH ROW EXECUTE FUNCTION see()`)
	f := &feed{t: t, s: openFeed(t, uri), relation: relationOf(t, uri, "root", decoder.IdentityDefault)}
	rows := []decoder.Tuple{texts(1, "a"), texts(2, "a"), texts(3, "a"), texts(4, "a")}
	require.NoError(t, f.apply(opInsert, rows...))
	require.Len(t, f.s.tables[f.relation.ID].nets, 1)
	require.NoError(t, f.s.control(opOther, rollbackStatement))
	require.NoError(t, f.s.finish())
	f.s.running.open = false
	pgtest.Exec(t, uri, `ALTER TABLE leaf ENABLE ALWAYS TRIGGER see`)
	require.ErrorIs(t, f.apply(opInsert, rows...), errNotSure)
	f.abandon()
	require.NoError(t, f.apply(opInsert, rows...))
	require.Empty(t, f.s.tables[f.relation.ID].nets)
	require.Equal(t, "4", f.ask(`SELECT count(DISTINCT cmin::text) FROM public.root`))
	f.abandon()
}

// TestBatchesAndFunctionsThatLook: a check or a default may look at the table, and finds in
// it the rows that came before.
func TestBatchesAndFunctionsThatLook(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `CREATE TABLE t (id int PRIMARY KEY, n int)`,
		`CREATE FUNCTION next() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT coalesce(max(n), 0) + 1 FROM public.t); END'`,
		`CREATE FUNCTION room() RETURNS bool LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(*) < 5 FROM public.t); END'`,
		`ALTER TABLE t ALTER n SET DEFAULT next(), ADD CHECK (id > 0 AND room())`)
	relation := relationOf(t, uri, "t", decoder.IdentityDefault)
	relation.Columns = relation.Columns[:1]
	f := &feed{t: t, s: openFeed(t, uri), relation: relation}
	require.NoError(t, f.apply(opInsert, texts(4), texts(3), texts(2), texts(1), texts(5)))
	require.Equal(t, "1|4\n2|3\n3|2\n4|1\n5|5", f.ask(`SELECT id, n FROM public.t ORDER BY id`))
	f.abandon()
	require.Error(t, f.apply(opInsert, texts(4), texts(3), texts(2), texts(1), texts(5), texts(6)))
	f.abandon()
}

// TestBatchesThatAreGivenUp: what was taken and not sent is gone with its transaction; what
// stands before a savepoint is sent before it.
func TestBatchesThatAreGivenUp(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `CREATE TABLE t (id int PRIMARY KEY, v text)`)
	s := openFeed(t, uri)
	f := &feed{t: t, s: s, relation: relationOf(t, uri, "t", decoder.IdentityDefault)}
	insert := func(subxid uint32, position int64, ids ...int) {
		t.Helper()
		for _, id := range ids {
			require.NoError(t, s.Change(txn.Change{SubXID: subxid, Relation: f.relation, Message: &decoder.Insert{New: texts(id, "a")}}, position))
		}
	}
	require.NoError(t, f.apply(opInsert))
	insert(7, 0, 1, 2, 3, 4, 5)
	f.abandon()
	require.NoError(t, f.apply(opInsert))
	insert(7, 0, 10, 11, 12, 13)
	insert(8, 4, 1, 2, 3, 4)
	insert(7, 8, 5, 6, 7, 8)
	require.NoError(t, s.Undo(4))
	insert(7, 4, 14, 15, 16, 17)
	insert(9, 12, 20)
	require.NoError(t, s.Undo(12))
	require.NoError(t, s.Settle())
	require.Equal(t, "10,11,12,13,14,15,16,17|2", f.ask(`SELECT string_agg(id::text, ',' ORDER BY id), count(DISTINCT cmin::text) FROM public.t`))
	f.abandon()
}

// TestSavepointsAreBounded: a subtransaction behind too many others has no savepoint of
// its own, and who rolls it back has to roll back everything.
func TestSavepointsAreBounded(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `CREATE TABLE deep (n int)`)
	s := openFeed(t, uri)
	relation := relationOf(t, uri, "deep", decoder.IdentityDefault)
	s.Run(1)
	for n := range mostSavepoints + 1 {
		change := txn.Change{SubXID: uint32(n + 2), Relation: relation, Message: &decoder.Insert{New: texts(n)}}
		require.NoError(t, s.Change(change, int64(n)))
	}
	require.NoError(t, s.Settle())
	require.ErrorIs(t, s.Undo(mostSavepoints), errOutOfTurn)
	require.NoError(t, s.Undo(mostSavepoints-1))
	require.NoError(t, s.Settle())
	rows, err := s.ask(`SELECT count(*) FROM public.deep`, nil)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(mostSavepoints-1), string(rows[0][0]))
	require.NoError(t, s.Abandon())
}

// TestBatchesOfTransactions that are applied together: a run does not end with the one, nor
// does it hold any of them when it is sent.
func TestBatchesOfTransactions(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `CREATE TABLE t (id int PRIMARY KEY)`)
	f := &feed{t: t, s: openFeed(t, uri), relation: relationOf(t, uri, "t", decoder.IdentityDefault)}
	require.NoError(t, f.apply(opInsert))
	for id := range 5 {
		f.s.current, f.s.ordinal = &txn.Transaction{XID: uint32(id)}, 0
		require.NoError(t, f.s.change(txn.Change{Relation: f.relation, Message: &decoder.Insert{New: texts(id)}}))
	}
	b := f.s.tables[f.relation.ID].batch
	require.Equal(t, 5, b.net.Changes())
	last := f.s.current
	require.NoError(t, f.s.Settle())
	require.Same(t, last, f.s.current)
	require.Equal(t, "5|1", f.ask(`SELECT count(*), count(DISTINCT cmin::text) FROM public.t`))
	for _, at := range b.last[:5] {
		require.Nil(t, at.transaction)
	}
	f.abandon()
}

// TestShortBatchesOfEmptyValues: what is empty is not NULL, even where nothing was longer yet.
func TestShortBatchesOfEmptyValues(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `CREATE TABLE t (v text)`)
	f := &feed{t: t, s: openFeed(t, uri), relation: relationOf(t, uri, "t", decoder.IdentityDefault)}
	require.NoError(t, f.apply(opInsert, texts("")))
	require.Equal(t, "t", f.ask(`SELECT v = '' FROM public.t`))
	f.abandon()
}

// TestBatchesOfWideTables: as wide as tables get, and no more is held than for others.
func TestBatchesOfWideTables(t *testing.T) {
	eachDistance(t, func(t *testing.T, far bool) {
		uri := pgtest.Database(t, pgtest.SharedServer(t))
		pgtest.Exec(t, uri, `SELECT set_config('wide.columns', string_agg('c' || g || ' int', ', ' ORDER BY g), false) FROM generate_series(2, 1600) g;
			DO $$ BEGIN EXECUTE 'CREATE TABLE wide (id int PRIMARY KEY, ' || current_setting('wide.columns') || ')'; END $$`)
		f := &feed{t: t, s: openFeedAt(t, uri, far), relation: relationOf(t, uri, "wide", decoder.IdentityDefault)}
		rows, keys := make([]decoder.Tuple, 45), make([]decoder.Tuple, 45)
		for i := range rows {
			rows[i] = make(decoder.Tuple, 1600)
			for column := range rows[i] {
				rows[i][column] = texts(nil, i)[(column+i)%7&1]
			}
			rows[i][0] = texts(i)[0]
			keys[i] = append(texts(i), make(decoder.Tuple, 1599)...)
			for column := 1; column < 1600; column++ {
				keys[i][column].Kind = decoder.Null
			}
		}
		require.NoError(t, f.apply(opInsert, rows...))
		require.Equal(t, "45|5", f.ask(`SELECT count(*), count(DISTINCT cmin::text) FROM public.wide`))
		require.NoError(t, f.apply(opUpdate, rows...))
		require.Equal(t, "45|5", f.ask(`SELECT count(*), count(DISTINCT cmin::text) FROM public.wide`))
		require.NoError(t, f.apply(opDelete, keys...))
		require.Equal(t, "0", f.ask(`SELECT count(*) FROM public.wide`))
		f.abandon()
	})
}

// TestBatchesAllocateLittle in all, connection and server's answers included.
func TestBatchesAllocateLittle(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	pgtest.Exec(t, uri, `CREATE TABLE t (id int PRIMARY KEY, v text)`)
	f := &feed{t: t, s: openFeed(t, uri), relation: relationOf(t, uri, "t", decoder.IdentityDefault)}
	var rows []decoder.Tuple
	for i := range 2000 {
		rows = append(rows, texts(i, "a value"))
	}
	require.NoError(t, f.apply(opInsert, rows...))
	order := rand.New(rand.NewPCG(1, 1)).Perm(len(rows))
	update := &decoder.Update{}
	change := txn.Change{SubXID: 7, Relation: f.relation, Message: update}
	perRow := testing.AllocsPerRun(3, func() {
		for _, i := range order {
			update.New = rows[i]
			if err := f.s.Change(change, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.s.Settle(); err != nil {
			t.Fatal(err)
		}
	}) / float64(len(rows))
	require.Less(t, perRow, 0.1)
	f.abandon()
}

// TestManyElements are several statements, each of which must find all of its rows.
func TestManyElements(t *testing.T) {
	eachDistance(t, func(t *testing.T, far bool) {
		uri := pgtest.Database(t, pgtest.SharedServer(t))
		pgtest.Exec(t, uri, `CREATE TABLE t (id int PRIMARY KEY, v text)`)
		f := &feed{t: t, s: openFeedAt(t, uri, far), relation: relationOf(t, uri, "t", decoder.IdentityDefault)}
		var before, after []decoder.Tuple
		for i := range 2*mostElements + 1 {
			before, after = append(before, texts(i, "before")), append(after, texts(i, i))
		}
		require.NoError(t, f.apply(opInsert, before...))
		require.NoError(t, f.apply(opUpdate, after...))
		require.Equal(t, fmt.Sprint(len(after)), f.ask(`SELECT count(*) FROM public.t WHERE v = id::pg_catalog.text`))
		require.NoError(t, f.apply(opDelete, after[mostElements+10]))
		require.ErrorIs(t, f.apply(opDelete, after...), f.doubts(), "one of the second part is not there")
		f.abandon()
	})
}

// TestWatchedTablesTakeBatchesAgain after a while without foreign rows, also where a
// foreign row would be an error, and is not looked for.
func TestWatchedTablesTakeBatchesAgain(t *testing.T) {
	for _, policy := range []string{"apply_remote", "error"} {
		s, table := &Session{options: Options{MaxBatch: 1000}}, mergeableTable()
		require.NoError(t, s.options.Policies.Set("update_origin_differs="+policy))
		s.watch(table)
		row := texts(1, "a", nil)
		for range lookAhead {
			require.False(t, s.mergeable(table, opUpdate, row, row))
			_, watched := s.watched(table, opUpdate)
			require.Equal(t, policy != "error", watched)
		}
		require.True(t, s.mergeable(table, opUpdate, row, row), policy)
	}
}
