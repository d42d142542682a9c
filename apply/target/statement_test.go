package target

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/apply/catalog"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/pgtest"
)

func example() *catalog.Table {
	equal := "OPERATOR(pg_catalog.=)"
	return &catalog.Table{
		Schema: `s"x`, Name: "t",
		Columns: []catalog.Column{
			{Name: "id", TypeOID: 23, Equality: equal, Key: true, IdentityAlways: true},
			{Name: `a"b`, TypeOID: 25, Equality: equal},
			{Name: "j", TypeOID: 114},
		},
	}
}

func tuple(kinds string) decoder.Tuple {
	var result decoder.Tuple
	for _, kind := range []byte(kinds) {
		result = append(result, decoder.Value{Kind: decoder.ValueKind(kind), Data: []byte("x")})
	}
	return result
}

func TestStatements(t *testing.T) {
	table := example()
	newer := tuple("ttt")

	insert := insertStatement(table)
	require.Equal(t, `INSERT INTO "s""x"."t" ("id", "a""b", "j") OVERRIDING SYSTEM VALUE VALUES ($1, $2, $3)`, insert.sql)
	require.Equal(t, []uint32{23, 25, 114}, insert.types)
	require.Equal(t, `INSERT INTO "s""x"."t" DEFAULT VALUES`, insertStatement(&catalog.Table{Schema: `s"x`, Name: "t"}).sql)

	update := updateStatement(table, nil, newer, newer)
	require.Equal(t, `UPDATE ONLY "s""x"."t" SET "a""b" = $1, "j" = $2 WHERE "id" OPERATOR(pg_catalog.=) $3`, update.sql,
		"an identity column that is always generated keeps its value without being named")
	require.Equal(t, []parameter{{false, 1}, {false, 2}, {true, 0}}, update.parameters)
	old := tuple("tnn")
	old[0].Data = []byte("other")
	require.Equal(t, `UPDATE ONLY "s""x"."t" SET "id" = $1, "a""b" = $2 WHERE "id" OPERATOR(pg_catalog.=) $3`,
		updateStatement(table, nil, old, tuple("ttu")).sql)
	require.Equal(t, `DELETE FROM ONLY "s""x"."t" WHERE "id" OPERATOR(pg_catalog.=) $1`, deleteStatement(table, nil, tuple("tnn")).sql)
	unchanged := tuple("tuu")
	require.Equal(t, `UPDATE ONLY "s""x"."t" SET "a""b" = "a""b" WHERE "id" OPERATOR(pg_catalog.=) $1`, updateStatement(table, nil, unchanged, unchanged).sql)

	table.Search = catalog.ByRow
	require.Equal(t, `DELETE FROM ONLY "s""x"."t" WHERE ctid = (SELECT ctid FROM ONLY "s""x"."t" WHERE "id" OPERATOR(pg_catalog.=) $1 AND "a""b" IS NULL `+
		`AND pg_catalog.record_image_eq(ROW("j"), ROW($2)) LIMIT 1 FOR UPDATE)`, deleteStatement(table, nil, tuple("tnt")).sql)
	table.Partitioned = true
	require.Equal(t, `DELETE FROM "s""x"."t" WHERE (tableoid, ctid) = (SELECT tableoid, ctid FROM "s""x"."t" WHERE "id" OPERATOR(pg_catalog.=) $1 AND "a""b" IS NULL `+
		`AND "j" IS NULL LIMIT 1 FOR UPDATE) AND ours`, deleteStatement(table, func(b *builder) { b.WriteString(" AND ours") }, tuple("tnn")).sql)
	require.Equal(t, `DELETE FROM "s""x"."t" WHERE tableoid = $1 AND ctid = $2`, deleteFoundStatement(table).sql)
	found := updateFoundStatement(table, tuple("tnn"), tuple("utt"))
	require.Equal(t, `UPDATE "s""x"."t" SET "a""b" = $1, "j" = $2 WHERE tableoid = $3 AND ctid = $4`, found.sql)
	require.Equal(t, []uint32{25, 114, 26, 27}, found.types)
}

// TestShape: changes that need different SQL have different shapes.
func TestShape(t *testing.T) {
	table := example()
	table.Search = catalog.ByRow
	newer, old := tuple("ttt"), tuple("ttt")
	old[0].Data = []byte("other")
	shapes := map[string]string{}
	for name, s := range map[string]shape{
		"kept identity":  appendShape(nil, table, tuple("ttt"), newer),
		"by an old row":  appendShape(nil, table, old, newer),
		"unchanged":      appendShape(nil, table, old, tuple("ttu")),
		"null in search": appendShape(nil, table, tuple("tnt"), newer),
		"delete":         appendShape(nil, table, tuple("ttt"), nil),
	} {
		require.NotContains(t, shapes, string(s), name)
		shapes[string(s)] = name
	}
	require.True(t, appendShape(nil, table, newer, newer).equal(appendShape(nil, table, newer, newer)))
}

// TestErrorsHideValues: what an error says goes to logs.
func TestErrorsHideValues(t *testing.T) {
	relation := &decoder.Relation{Namespace: "public", Name: "t"}
	transaction := &txn.Transaction{XID: 7, EndLSN: 0x10}
	err := transactionError(transaction, decoder.TypeInsert, relation,
		&pgconn.PgError{Severity: "ERROR", Code: "22P02", Message: `invalid input syntax for type integer: "secret "quoted""`, Detail: "secret"})
	require.Equal(t, `apply INSERT on public.t in transaction 7, finished at 0/10: invalid input syntax for type integer: "..." (SQLSTATE 22P02)`, err.Error())
	err = transactionError(transaction, decoder.TypeInsert, relation,
		&pgconn.PgError{Severity: "ERROR", Code: "23505", Message: `duplicate key value violates unique constraint "t_pkey"`, Detail: "Key (id)=(secret)", ConstraintName: "t_pkey"})
	require.NotContains(t, err.Error(), "secret")
	require.Contains(t, err.Error(), "t_pkey")
	require.NotEmpty(t, err.Hint)
}

// TestErrorsHideValuesOfEveryType: what input functions make of a value, as the server
// says it, and what is not about a value at all.
func TestErrorsHideValuesOfEveryType(t *testing.T) {
	for _, c := range []struct{ code, message, want string }{
		{"42601", `syntax error in tsquery: "topsecret (("`, `syntax error in tsquery: "..."`},
		{"42601", `syntax error at or near "topsecret" of jsonpath input`, `syntax error at or near "..." of jsonpath input`},
		{"42601", `improper qualified name (too many dotted names): topsecret.b.c.d`, `improper qualified name (too many dotted names): "..."`},
		{"42P01", `relation "topsecret" does not exist`, `relation "..." does not exist`},
		{"42P01", "Relation »topsecret« existiert nicht", `Relation "..." existiert nicht`},
		{"42704", `role "topsecret" does not exist`, `role "..." does not exist`},
		{"42883", `operator does not exist: topsecret`, `operator does not exist: "..."`},
		{"3F000", `schema "topsecret" does not exist`, `schema "..." does not exist`},
		{"0A000", `cross-database references are not implemented: "topsecret.b.c"`, `cross-database references are not implemented: "..."`},
		{"54000", `word is too long in tsquery: "topsecret"`, `word is too long in tsquery: "..."`},
		{"XX000", `unknown unit "topsecret"`, `unknown unit "..."`},
		{"P0001", `refused by the shop: "topsecret" is sold`, `refused by the shop: "..." is sold`},
		{"23502", `null value in column "v" violates not-null constraint`, `null value in column "v" violates not-null constraint`},
		{"53100", `could not extend file "base/1/2": no space left`, `could not extend file "base/1/2": no space left`},
	} {
		refusal := &pgconn.PgError{Severity: "ERROR", Code: c.code, Message: c.message, Detail: "topsecret"}
		require.Equal(t, c.want+" (SQLSTATE "+c.code+")", describe(refusal, true))
	}
	held := &pgconn.PgError{Severity: "ERROR", Code: "23505", Message: `duplicate key value violates unique constraint "t_pkey"`, ConstraintName: "t_pkey"}
	require.Equal(t, held.Message+" (SQLSTATE 23505)", describe(held, true), "the constraint is named once")
	held.Message = "eine andere Sprache"
	require.Contains(t, describe(held, true), `(SQLSTATE 23505), constraint "t_pkey"`)
	taken := &pgconn.PgError{Code: "42710", Message: `transaction identifier "x" is already in use`}
	require.Equal(t, taken.Message+" (SQLSTATE 42710)", (&TransactionError{Operation: decoder.TypePrepare, Err: taken}).Error()[len("apply transaction 0, finished at 0/0: "):])
}

// TestErrorsHideWhatTheServerQuotes: the real messages, of a change and of a run.
func TestErrorsHideWhatTheServerQuotes(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	for _, c := range []struct{ kind, value string }{
		{"int", "topsecret"},
		{"date", "topsecret"},
		{"boolean", "topsecret"},
		{"uuid", "topsecret"},
		{"bytea", `\xtopsecret`},
		{"bit(3)", "topsecret"},
		{"json", "topsecret"},
		{"jsonpath", "topsecret ("},
		{"xml", "<topsecret"},
		{"tsquery", "topsecret (("},
		{"tsvector", "topsecret:'"},
		{"inet", "topsecret"},
		{"money", "topsecret"},
		{"regclass", "topsecret"},
		{"regclass", "topsecret.a"},
		{"regclass", "topsecret.a.b"},
		{"regclass", "topsecret.a.b.c"},
		{"regtype", "topsecret"},
		{"regtype", "topsecret.a"},
		{"regtype", "topsecret ("},
		{"regproc", "topsecret"},
		{"regproc", "topsecret.a"},
		{"regproc", "topsecret.a.b"},
		{"regproc", "topsecret.a.b.c"},
		{"regprocedure", "topsecret"},
		{"regprocedure", "topsecret(int)"},
		{"regoper", "topsecret"},
		{"regoperator", "topsecret(int,int)"},
		{"regrole", "topsecret"},
		{"regrole", "topsecret.a"},
		{"regnamespace", "topsecret"},
		{"regconfig", "topsecret"},
		{"regdictionary", "topsecret"},
		{"regcollation", "topsecret"},
		{"aclitem", "topsecret"},
		{"aclitem", "topsecret=r/postgres"},
		{"aclitem", "=topsecret/postgres"},
		{"pg_lsn", "topsecret"},
		{"int4range", "[topsecret,1]"},
	} {
		pgtest.Exec(t, uri, `CREATE TABLE t (id int PRIMARY KEY, v `+c.kind+`)`)
		for _, rows := range [][]decoder.Tuple{
			{texts(1, c.value)},
			{texts(1, nil), texts(2, nil), texts(3, nil), texts(4, c.value)},
		} {
			f := &feed{t: t, s: openFeed(t, uri), relation: relationOf(t, uri, "t", decoder.IdentityDefault)}
			err := f.apply(opInsert, rows...)
			require.ErrorIs(t, err, errNotSure, c.kind)
			require.NotContains(t, err.Error(), "topsecret", c.kind)
			f.s.Close()
		}
		pgtest.Exec(t, uri, `DROP TABLE t`)
	}
}

func TestVerdict(t *testing.T) {
	refusal := &pgconn.PgError{Severity: "ERROR", Code: "23505"}
	require.Equal(t, error(refusal), verdict(refusal))
	_, gone := errors.AsType[*ConnectionError](verdict(&pgconn.PgError{Severity: "FATAL", Code: "57P01"}))
	require.True(t, gone)
	_, gone = errors.AsType[*ConnectionError](verdict(errors.New("broken pipe")))
	require.True(t, gone)
	mismatch := &catalog.MismatchError{Reason: "x"}
	require.Equal(t, error(mismatch), verdict(mismatch))
	require.NoError(t, verdict(nil))
}

// The server does not say that it is a publication of its own that keeps it from the change.
func TestRemedyOfWhatTheTargetPublishes(t *testing.T) {
	refusal := &pgconn.PgError{
		Code: "55000", Message: `cannot update table "t" because it does not have a replica identity and publishes updates`,
		Hint: "To enable updating the table, set REPLICA IDENTITY using ALTER TABLE.",
	}
	require.Contains(t, remedy(refusal, 0), "a publication of the target has this table")
	require.Equal(t, "another", remedy(&pgconn.PgError{Code: "55000", Hint: "another"}, 0))
}
