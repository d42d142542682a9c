package state

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// DeferredIndex is an index that was dropped for the time of its table's copy, or a
// constraint that one stands behind. All texts are in the encoding of the target's
// database.
type DeferredIndex struct {
	Table Member
	Name  string
	// Definition makes it again: one or more SQL statements.
	Definition string
}

// DeferIndexSQL is the statement that records an index, for the transaction that drops
// it, on a session whose encoding is that of the target's database.
func (s *Store) DeferIndexSQL(index DeferredIndex) string {
	return fmt.Sprintf(`INSERT INTO pgapply.deferred_index AS d (subscription, schema_name, table_name, index_name, definition) VALUES (%s, %s, %s, %s, %s)
		ON CONFLICT (subscription, schema_name, table_name, index_name) DO UPDATE SET definition = EXCLUDED.definition`,
		literal(s.name), literal(index.Table.Schema), literal(index.Table.Name), literal(index.Name), literal(index.Definition))
}

// IndexBuiltSQL is DeferIndexSQL for the transaction that makes the index again.
func (s *Store) IndexBuiltSQL(index DeferredIndex) string {
	return fmt.Sprintf(`DELETE FROM pgapply.deferred_index WHERE subscription = %s AND schema_name = %s AND table_name = %s AND index_name = %s`,
		literal(s.name), literal(index.Table.Schema), literal(index.Table.Name), literal(index.Name))
}

// DeferredIndexes lists the indexes to be made again. Those of tables that are to be
// copied yet wait for that.
func (s *Store) DeferredIndexes(ctx context.Context) ([]DeferredIndex, error) {
	return rows(ctx, s, "list the indexes that wait for the end of a copy", func(row pgx.CollectableRow) (DeferredIndex, error) {
		var schema, table, name, definition []byte
		err := row.Scan(&schema, &table, &name, &definition)
		return DeferredIndex{Table: Member{Schema: string(schema), Name: string(table)}, Name: string(name), Definition: string(definition)}, err
	}, `SELECT `+toBytes("schema_name")+`, `+toBytes("table_name")+`, `+toBytes("index_name")+`, `+toBytes("definition")+`
		FROM pgapply.deferred_index d WHERE subscription = $1 AND NOT EXISTS (
			SELECT FROM pgapply.subscription_table t WHERE t.subscription = d.subscription AND t.schema_name = d.schema_name
				AND t.table_name = d.table_name AND t.state IN ('i', 'd'))
		ORDER BY schema_name, table_name, index_name`)
}

// WaitingIndexes lists all of them for people to read, as index and table.
func (s *Store) WaitingIndexes(ctx context.Context) ([]string, error) {
	return rows(ctx, s, "list the indexes that wait for the end of a copy", func(row pgx.CollectableRow) (string, error) {
		text, err := pgx.RowTo[[]byte](row)
		return readable(text), err
	},
		`SELECT `+toText("pg_catalog.format('%I of %I.%I', index_name, schema_name, table_name)")+` FROM pgapply.deferred_index WHERE subscription = $1
		ORDER BY schema_name, table_name, index_name`)
}

// toBytes is SQL for a text's bytes in the encoding of the database.
func toBytes(text string) string {
	return `pg_catalog.convert_to(` + text + `, pg_catalog.getdatabaseencoding())`
}
