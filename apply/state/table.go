package state

import (
	"cmp"
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

// Member is the name of a table in the encoding of the target's database, as the
// publisher sends it.
type Member struct{ Schema, Name string }

// Table is one table of the subscription.
type Table struct {
	Member
	// Text is its name for people to read, quoted where SQL wants that.
	Text  string
	State TableState
	// StateLSN belongs to State as srsublsn does; 0 for none.
	StateLSN    lsn.LSN
	RowsCopied  int64
	BytesCopied int64
	CopySeconds float64
	LastError   string
	// Existing says what becomes of the rows that the target has when a copy begins.
	Existing ExistingRows
}

// ExistingRows says what becomes of the rows that the target's table holds when its
// copy begins.
type ExistingRows string

const (
	// ExistingRefused: they are somebody's, and the table is not copied.
	ExistingRefused ExistingRows = "refuse"
	// ExistingRemoved: they are of an earlier copy, or somebody has agreed.
	ExistingRemoved ExistingRows = "remove"
	// ExistingKept: those of the copy come beside them, in one transaction.
	ExistingKept ExistingRows = "keep"
	// ExistingMixed: such a copy was committed, so that another one would repeat its
	// rows. It needs somebody's decision.
	ExistingMixed ExistingRows = "kept"
)

// RegisterTables adds the tables that the state does not know yet, in one
// transaction. It leaves those that it knows as they are.
func (s *Store) RegisterTables(ctx context.Context, tables []Table) error {
	if len(tables) == 0 {
		return nil
	}
	schemas, names := make([][]byte, len(tables)), make([][]byte, len(tables))
	states, positions, existing := make([]string, len(tables)), make([]string, len(tables)), make([]string, len(tables))
	for i, table := range tables {
		schemas[i], names[i] = []byte(table.Schema), []byte(table.Name)
		states[i], positions[i] = string(rune(table.State)), table.StateLSN.String()
		existing[i] = string(cmp.Or(table.Existing, ExistingRefused))
	}
	_, err := s.exec(ctx, "register the tables", `
		INSERT INTO pgapply.subscription_table (subscription, schema_name, table_name, state, state_lsn, existing_rows)
		SELECT $1, `+fromBytes("t.schema_name")+`, `+fromBytes("t.table_name")+`, t.state::"char", nullif(t.position, '0/0')::pg_lsn, t.existing_rows
		FROM ROWS FROM (pg_catalog.unnest($2::bytea[]), pg_catalog.unnest($3::bytea[]), pg_catalog.unnest($4::text[]),
		                pg_catalog.unnest($5::text[]), pg_catalog.unnest($6::text[])) AS t (schema_name, table_name, state, position, existing_rows)
		ON CONFLICT DO NOTHING`, schemas, names, states, positions, existing)
	return err
}

// Tables lists the tables of the subscription in the order of their names.
func (s *Store) Tables(ctx context.Context) ([]Table, error) {
	return rows(ctx, s, "list the tables", func(row pgx.CollectableRow) (Table, error) {
		var table Table
		var schema, name, text []byte
		var state, position string
		err := row.Scan(&schema, &name, &text, &state, &position, &table.RowsCopied, &table.BytesCopied, &table.CopySeconds, &table.LastError, &table.Existing)
		if err != nil {
			return table, err
		}
		table.Schema, table.Name, table.Text, table.State = string(schema), string(name), readable(text), TableState(state[0])
		table.StateLSN, err = lsn.Parse(position)
		return table, err
	}, `SELECT pg_catalog.convert_to(schema_name, pg_catalog.getdatabaseencoding()), pg_catalog.convert_to(table_name, pg_catalog.getdatabaseencoding()),
			`+toText("pg_catalog.format('%I.%I', schema_name, table_name)")+`, state::text, coalesce(state_lsn, '0/0')::text, rows_copied, bytes_copied, copy_seconds, coalesce(last_error, ''), existing_rows
		FROM pgapply.subscription_table WHERE subscription = $1 ORDER BY schema_name, table_name`)
}
