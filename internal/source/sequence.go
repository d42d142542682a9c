package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Sequence is a sequence of the publisher: how it counts, and where it is.
type Sequence struct {
	Schema, Name string
	// Type is smallint, integer or bigint.
	Type                string
	Increment, Min, Max int64
	Cycle               bool
	// Owner is the column that the sequence belongs to (serial, identity, OWNED BY);
	// its fields are empty for a sequence that belongs to none.
	Owner SequenceOwner
	// Readable tells whether the role may read it. If not, LastValue and Called are
	// not known.
	Readable bool
	// LastValue is the value that was given out last, or the one that comes next
	// when Called is false.
	LastValue int64
	Called    bool
}

// SequenceOwner is a column that owns a sequence.
type SequenceOwner struct{ Schema, Table, Column string }

// Sequences returns the sequences that fill columns of the tables that the
// publications publish: owned by a column, identity, or used by a default. all
// returns every other one of the database too, but for those that an extension keeps
// to itself and those of schema pgapply. They are sorted by name.
//
// A default that names its sequence in a text, or inside a function, is not known to
// the catalogs: only all finds such sequences.
//
// A standby, and a server after a crash, may be ahead of what was given out: the WAL
// records 32 values at a time (sequence.c, SEQ_LOG_VALS). It does not wait long for a
// published table that is locked exclusively, but returns a *TablesLockedError.
func (c *Conn) Sequences(ctx context.Context, publications []string, all bool) ([]Sequence, error) {
	rows, err := c.Query(ctx, "SELECT pg_catalog.set_config('lock_timeout', '"+tableLockTimeout+"', true); "+c.sequencesSQL(publications, all))
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && server.Code == "55P03" {
		return nil, &TablesLockedError{Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("list the sequences of the publisher: %w", err)
	}
	list := make([]Sequence, len(rows))
	for row := range rows {
		s := &list[row]
		*s = Sequence{
			Schema: text(rows, row, 0), Name: text(rows, row, 1), Type: text(rows, row, 2),
			Cycle: text(rows, row, 6) == "t", Readable: text(rows, row, 7) == "t",
			Owner: SequenceOwner{Schema: text(rows, row, 8), Table: text(rows, row, 9), Column: text(rows, row, 10)},
		}
		for column, number := range map[int]*int64{3: &s.Increment, 4: &s.Min, 5: &s.Max} {
			if *number, err = strconv.ParseInt(text(rows, row, column), 10, 64); err != nil {
				return nil, fmt.Errorf("list the sequences of the publisher: %w", err)
			}
		}
	}
	for batch := range slices.Chunk(list, sequencesAtOnce) {
		if err := c.readSequences(ctx, batch); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// sequencesAtOnce is how many one statement reads: each takes a lock until its end.
const sequencesAtOnce = 200

// readSequences asks the sequences themselves. The view pg_sequences has no value of
// one whose is_called is false, although it need not be its start.
func (c *Conn) readSequences(ctx context.Context, list []Sequence) error {
	var parts []string
	for i := range list {
		if list[i].Readable {
			parts = append(parts, fmt.Sprintf("SELECT %d, last_value, is_called FROM %s.%s", i, identifier(list[i].Schema), identifier(list[i].Name)))
		}
	}
	if len(parts) == 0 {
		return nil
	}
	rows, err := c.Query(ctx, strings.Join(parts, " UNION ALL "))
	if err != nil {
		return fmt.Errorf("read the sequences of the publisher: %w", err)
	}
	for row := range rows {
		place, err := strconv.Atoi(text(rows, row, 0))
		if err != nil {
			return fmt.Errorf("read the sequences of the publisher: %w", err)
		}
		if list[place].LastValue, err = strconv.ParseInt(text(rows, row, 1), 10, 64); err != nil {
			return fmt.Errorf("read the sequences of the publisher: %w", err)
		}
		list[place].Called = text(rows, row, 2) == "t"
	}
	return nil
}

// sequencesSQL follows the catalogs from published tables to sequences. Above and
// below a published table stand its partitions and their roots, whose columns are
// filled by the same sequences.
func (c *Conn) sequencesSQL(publications []string, all bool) string {
	names := "NULL"
	if len(publications) > 0 {
		names = literals(publications)
	}
	return `
		WITH RECURSIVE published (oid) AS (
			SELECT c.oid FROM pg_catalog.pg_publication_tables t
			JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
			JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
			WHERE t.pubname IN (` + names + `)
		), above (oid) AS (
			SELECT oid FROM published UNION SELECT i.inhparent FROM above a JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.oid
		), tables (oid) AS (
			SELECT oid FROM above UNION SELECT i.inhrelid FROM tables a JOIN pg_catalog.pg_inherits i ON i.inhparent = a.oid
		), owners (oid, owner, number) AS (
			SELECT objid, refobjid, refobjsubid FROM pg_catalog.pg_depend
			WHERE classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND refclassid = classid AND refobjsubid > 0 AND deptype IN ('a', 'i')
		), used (oid) AS (
			SELECT o.oid FROM owners o JOIN tables t ON t.oid = o.owner
			UNION
			SELECT d.refobjid FROM tables t JOIN pg_catalog.pg_attrdef f ON f.adrelid = t.oid
			JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.objid = f.oid
				AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
			UNION
			SELECT d.refobjid FROM tables t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND NOT a.attisdropped
			JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = a.atttypid
				AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
		)
		SELECT n.nspname, c.relname, pg_catalog.format_type(s.seqtypid, NULL), s.seqincrement, s.seqmin, s.seqmax, s.seqcycle,
			pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_sequence_privilege(c.oid, 'SELECT'),
			tn.nspname, t.relname, a.attname
		FROM pg_catalog.pg_sequence s
		JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		LEFT JOIN (owners o
			JOIN pg_catalog.pg_class t ON t.oid = o.owner
			JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
			JOIN pg_catalog.pg_attribute a ON a.attrelid = o.owner AND a.attnum = o.number) ON o.oid = c.oid
		WHERE c.relpersistence <> 't' AND n.nspname <> 'pgapply' AND (c.oid IN (SELECT oid FROM used) OR ` + strconv.FormatBool(all) + ` AND NOT EXISTS (
			SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e'))
		ORDER BY 1, 2`
}
