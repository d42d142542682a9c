package target

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/apply/catalog"
	"pgapply/decoder"
	"pgapply/decoder/txn"
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
