package state

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/lsn"
)

// TableState is the state of a table in a subscription, with the letters of
// srsubstate in pg_subscription_rel.
type TableState byte

// The states of a table.
const (
	TableInit         TableState = 'i'
	TableDataSync     TableState = 'd'
	TableFinishedCopy TableState = 'f'
	TableSyncDone     TableState = 's'
	TableReady        TableState = 'r'
)

func (s TableState) String() string {
	switch s {
	case TableInit:
		return "initializing"
	case TableDataSync:
		return "copying"
	case TableFinishedCopy:
		return "copied"
	case TableSyncDone:
		return "synchronized"
	case TableReady:
		return "ready"
	}
	return fmt.Sprintf("unknown state %q", byte(s))
}

// Table is one table of the subscription.
type Table struct {
	Schema, Name string
	State        TableState
	// StateLSN belongs to State as srsublsn does; 0 for none.
	StateLSN    lsn.LSN
	RowsCopied  int64
	BytesCopied int64
	LastError   string
}

// RegisterTables adds the tables that the state does not know yet, in one
// transaction. It leaves those that it knows as they are. Names are in the encoding
// of the target's database, as the publisher sends them.
func (s *Store) RegisterTables(ctx context.Context, tables []Table) error {
	if len(tables) == 0 {
		return nil
	}
	schemas, names := make([][]byte, len(tables)), make([][]byte, len(tables))
	states, positions := make([]string, len(tables)), make([]string, len(tables))
	for i, table := range tables {
		schemas[i], names[i] = []byte(table.Schema), []byte(table.Name)
		states[i], positions[i] = string(rune(table.State)), table.StateLSN.String()
	}
	_, err := s.exec(ctx, "register the tables", `
		INSERT INTO pgapply.subscription_table (subscription, schema_name, table_name, state, state_lsn)
		SELECT $1, `+fromBytes("t.schema_name")+`, `+fromBytes("t.table_name")+`, t.state::"char", nullif(t.position, '0/0')::pg_lsn
		FROM ROWS FROM (pg_catalog.unnest($2::bytea[]), pg_catalog.unnest($3::bytea[]),
		                pg_catalog.unnest($4::text[]), pg_catalog.unnest($5::text[])) AS t (schema_name, table_name, state, position)
		ON CONFLICT DO NOTHING`, schemas, names, states, positions)
	return err
}

// Member is the name of a table in the encoding of the target's database, as the
// publisher sends it.
type Member struct{ Schema, Name string }

// Members lists the names of the subscription's tables.
func (s *Store) Members(ctx context.Context) ([]Member, error) {
	return rows(ctx, s, "list the tables", func(row pgx.CollectableRow) (Member, error) {
		var schema, name []byte
		err := row.Scan(&schema, &name)
		return Member{string(schema), string(name)}, err
	}, `SELECT pg_catalog.convert_to(schema_name, pg_catalog.getdatabaseencoding()), pg_catalog.convert_to(table_name, pg_catalog.getdatabaseencoding())
		FROM pgapply.subscription_table WHERE subscription = $1`)
}

// Tables lists the tables of the subscription in the order of their names.
func (s *Store) Tables(ctx context.Context) ([]Table, error) {
	return rows(ctx, s, "list the tables", func(row pgx.CollectableRow) (Table, error) {
		var table Table
		var state, position string
		err := row.Scan(&table.Schema, &table.Name, &state, &position, &table.RowsCopied, &table.BytesCopied, &table.LastError)
		if err != nil {
			return table, err
		}
		table.State = TableState(state[0])
		table.StateLSN, err = lsn.Parse(position)
		return table, err
	}, `SELECT schema_name, table_name, state::text, coalesce(state_lsn, '0/0')::text, rows_copied, bytes_copied, coalesce(last_error, '')
		FROM pgapply.subscription_table WHERE subscription = $1 ORDER BY schema_name, table_name`)
}
