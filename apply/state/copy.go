package state

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/lsn"
)

// A copy set is the tables that are copied on one snapshot of the publisher. The first
// one is copied on the snapshot of the subscription's own slot, so that its tables are
// ready when they are copied. Each later one has a slot for the time being, whose
// changes its tables get until the subscription's stream can go on with them. There is
// one at a time.
//
//	init ─ CopyStarting ─► copying ─ CopiedSQL ─► ready                       (first set)
//	  ▲                       │  └── CopiedSQL ─► copied ─ SetReady ─► ready   (later ones)
//	  └───── CopyFailed, CatchUpFailed, AbandonSet ┘

// ForgetTables takes all tables off the list, for a subscription that begins.
func (s *Store) ForgetTables(ctx context.Context) error {
	_, err := s.exec(ctx, "forget the tables", `DELETE FROM pgapply.subscription_table WHERE subscription = $1`)
	return err
}

// BeginSet records that the slot of a copy set is about to be created.
func (s *Store) BeginSet(ctx context.Context, slot string) error {
	return s.execOne(ctx, "record the slot to be created for copying", `UPDATE pgapply.subscription
		SET sync_slot = $2, sync_lsn = NULL, updated_at = pg_catalog.now() WHERE name = $1`, slot)
}

// SetReached records that the tables of the set have everything that committed before
// the position: at first the slot's consistent point. It never goes back.
func (s *Store) SetReached(ctx context.Context, position lsn.LSN) error {
	return s.execOne(ctx, "record the position of the copied tables", `UPDATE pgapply.subscription
		SET sync_lsn = greatest(sync_lsn, $2::text::pg_lsn), updated_at = pg_catalog.now() WHERE name = $1`, position.String())
}

// CopyStarting records that a table is about to be copied. In several transactions it
// leaves rows behind when it is interrupted, which are ours to remove.
func (s *Store) CopyStarting(ctx context.Context, table Member, severalTransactions bool) error {
	_, err := s.exec(ctx, "record the copy of a table", `UPDATE pgapply.subscription_table
		SET state = 'd', last_error = NULL, rows_copied = 0, bytes_copied = 0,
			existing_rows = CASE WHEN $4 AND existing_rows = 'refuse' THEN 'remove' ELSE existing_rows END
		WHERE subscription = $1 AND schema_name = `+fromBytes("$2")+` AND table_name = `+fromBytes("$3"),
		[]byte(table.Schema), []byte(table.Name), severalTransactions)
	return err
}

// CopyFailed records why a table could not be copied; it is wanted as before. One that
// was copied nevertheless, as far as the target knows, stays so.
func (s *Store) CopyFailed(ctx context.Context, table Member, reason string) error {
	_, err := s.exec(ctx, "record the failed copy of a table", `UPDATE pgapply.subscription_table SET state = 'i', last_error = $4
		WHERE subscription = $1 AND schema_name = `+fromBytes("$2")+` AND table_name = `+fromBytes("$3")+` AND state IN ('i', 'd')`,
		[]byte(table.Schema), []byte(table.Name), strings.ToValidUTF8(reason, "?"))
	return err
}

// CatchUpFailed records why a copied table could not take the changes since then. again
// has it copied once more, so that others of its set need not wait for it.
func (s *Store) CatchUpFailed(ctx context.Context, table Member, reason string, again bool) error {
	_, err := s.exec(ctx, "record the failed changes of a table", `UPDATE pgapply.subscription_table SET last_error = $4,
		state = CASE WHEN $5 THEN 'i' ELSE state END, state_lsn = CASE WHEN $5 THEN NULL ELSE state_lsn END
		WHERE subscription = $1 AND schema_name = `+fromBytes("$2")+` AND table_name = `+fromBytes("$3")+` AND state IN ('f', 's')`,
		[]byte(table.Schema), []byte(table.Name), strings.ToValidUTF8(reason, "?"), again)
	return err
}

// Copied is the outcome of a table's copy.
type Copied struct {
	Table       Member
	Rows, Bytes int64
	Seconds     float64
	// State is TableReady or TableFinishedCopy, as of Position.
	State    TableState
	Position lsn.LSN
}

// CopiedSQL is the statement that records a copied table, for the transaction that
// commits its last rows, on a session whose encoding is that of the target's database.
func (s *Store) CopiedSQL(c Copied) string {
	return fmt.Sprintf(`UPDATE pgapply.subscription_table SET state = '%c', state_lsn = '%s', rows_copied = %d, bytes_copied = %d, copy_seconds = %g,
		last_error = NULL, existing_rows = CASE existing_rows WHEN 'keep' THEN 'kept' ELSE 'remove' END
		WHERE subscription = %s AND schema_name = %s AND table_name = %s AND state = 'd'`,
		c.State, c.Position, c.Rows, c.Bytes, c.Seconds, literal(s.name), literal(c.Table.Schema), literal(c.Table.Name))
}

// literal quotes a string, also where standard_conforming_strings is off.
func literal(text string) string {
	quoted := strings.ReplaceAll(text, `'`, `''`)
	if strings.Contains(quoted, `\`) {
		return ` E'` + strings.ReplaceAll(quoted, `\`, `\\`) + `'`
	}
	return `'` + quoted + `'`
}

// SetReady hands the copied tables over to the subscription's stream, which has
// applied everything before the position, and so have they.
func (s *Store) SetReady(ctx context.Context, position lsn.LSN) error {
	_, err := s.exec(ctx, "hand over the copied tables", `UPDATE pgapply.subscription_table
		SET state = 'r', state_lsn = $2::text::pg_lsn, last_error = NULL WHERE subscription = $1 AND state IN ('f', 's')`, position.String())
	return err
}

// SetSynchronized says that the copied tables have everything before the position, and
// wait for the subscription's stream.
func (s *Store) SetSynchronized(ctx context.Context, position lsn.LSN) error {
	_, err := s.exec(ctx, "record the synchronized tables", `UPDATE pgapply.subscription_table
		SET state = 's', state_lsn = $2::text::pg_lsn WHERE subscription = $1 AND state IN ('f', 's')`, position.String())
	return err
}

// AbandonSet puts the tables that are not ready back to where they are wanted.
func (s *Store) AbandonSet(ctx context.Context) error {
	_, err := s.exec(ctx, "begin again with copying", `UPDATE pgapply.subscription_table
		SET state = 'i', state_lsn = NULL WHERE subscription = $1 AND state IN ('d', 'f', 's')`)
	return err
}

// EndSet forgets the slot of the set, which was dropped.
func (s *Store) EndSet(ctx context.Context) error {
	return s.execOne(ctx, "forget the slot for copying", `UPDATE pgapply.subscription
		SET sync_slot = NULL, sync_lsn = NULL, updated_at = pg_catalog.now() WHERE name = $1`)
}

// ChangeTables adds tables to the subscription, takes others out of it, and has
// others copied again, over rows that are removed then. It tells the runner at the end,
// which goes by what it finds.
func (s *Store) ChangeTables(ctx context.Context, add []Table, remove, again []Member) error {
	if err := s.RegisterTables(ctx, add); err != nil {
		return err
	}
	schemas, names := split(remove)
	if _, err := s.exec(ctx, "take tables out of the subscription", `DELETE FROM pgapply.subscription_table t
		WHERE subscription = $1 AND `+named(), schemas, names); err != nil {
		return err
	}
	schemas, names = split(again)
	if _, err := s.exec(ctx, "have tables copied again", `UPDATE pgapply.subscription_table t
		SET state = 'i', state_lsn = NULL, existing_rows = 'remove', last_error = NULL
		WHERE subscription = $1 AND `+named(), schemas, names); err != nil {
		return err
	}
	_, err := s.command(ctx, "tell of the changed tables", `tables_version = before.tables_version + 1`, "before.tables_version::text")
	return err
}

// named tells whether a table's name is among those in $2 and $3.
func named() string {
	return `(t.schema_name, t.table_name) IN (SELECT ` + fromBytes("n.schema_name") + `, ` + fromBytes("n.table_name") + `
	FROM ROWS FROM (pg_catalog.unnest($2::bytea[]), pg_catalog.unnest($3::bytea[])) AS n (schema_name, table_name))`
}

func split(tables []Member) (schemas, names [][]byte) {
	schemas, names = make([][]byte, len(tables)), make([][]byte, len(tables))
	for i, table := range tables {
		schemas[i], names[i] = []byte(table.Schema), []byte(table.Name)
	}
	return schemas, names
}

// Begun lists the tables that took part, or are copied: their rows are not all to come.
// Names are in the encoding of the control session.
func (s *Store) Begun(ctx context.Context) ([]Member, error) {
	return rows(ctx, s, "list the copied tables", pgx.RowToStructByPos[Member],
		`SELECT schema_name, table_name FROM pgapply.subscription_table WHERE subscription = $1 AND state NOT IN ('i', 'd')`)
}

// Decided lists the tables of which it is known what becomes of the rows that the target
// has, with names as in Begun.
func (s *Store) Decided(ctx context.Context) ([]Member, error) {
	return rows(ctx, s, "list the tables", pgx.RowToStructByPos[Member],
		`SELECT schema_name, table_name FROM pgapply.subscription_table WHERE subscription = $1 AND (state <> 'i' OR existing_rows <> 'refuse')`)
}
