package target

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply/catalog"
	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/internal/pgpipe"
)

// integrityClass is what the SQLSTATEs of rows begin with that a constraint refuses.
const integrityClass = "23"

// uniqueViolation is the SQLSTATE of a second row with one key.
const uniqueViolation = "23505"

// savepoint surrounds a statement that may be refused while its transaction goes on.
const savepoint = "pgapply_change"

// run runs one statement of the transaction in work and waits for it. A refusal by
// the server leaves the transaction as it was before the statement.
func (s *Session) run(sql string, parameters []pgpipe.Parameter) (result *pgconn.Result, refusal *pgconn.PgError, err error) {
	if _, err := s.pipe.Query("SAVEPOINT " + savepoint); err != nil {
		return nil, nil, verdict(err)
	}
	result, err = s.pipe.Run(sql, parameters)
	end := "RELEASE SAVEPOINT " + savepoint
	if err != nil {
		server, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || lost(err) {
			return nil, nil, verdict(err)
		}
		refusal = server
		if err := s.pipe.Recover(); err != nil {
			return nil, nil, verdict(err)
		}
		if _, err := s.pipe.Query("ROLLBACK TO SAVEPOINT " + savepoint); err != nil {
			return nil, nil, verdict(err)
		}
	}
	if _, err := s.pipe.Query(end); err != nil {
		return nil, nil, verdict(err)
	}
	return result, refusal, nil
}

// ask runs a query of the transaction in work. A refusal is an error like any other.
func (s *Session) ask(sql string, parameters []pgpipe.Parameter) ([][][]byte, error) {
	result, err := s.pipe.Run(sql, parameters)
	if err != nil {
		return nil, verdict(err)
	}
	return result.Rows, nil
}

// parameters makes the values of a statement, and extra ones as text behind them.
func (s *Session) parameters(t *table, statement *statement, search, newer decoder.Tuple, extra ...[]byte) ([]pgpipe.Parameter, error) {
	list := make([]pgpipe.Parameter, 0, len(statement.types))
	for i, p := range statement.parameters {
		tuple := newer
		if p.search {
			tuple = search
		}
		value := tuple[p.column]
		binary := value.Kind == decoder.Binary
		if binary && !t.bound.Columns[p.column].Takes(value.Data) {
			return nil, binaryError(t, p.column)
		}
		list = append(list, pgpipe.Parameter{Value: value.Data, Type: statement.types[i], Binary: binary})
	}
	for i, value := range extra {
		list = append(list, pgpipe.Parameter{Value: value, Type: statement.types[len(statement.parameters)+i]})
	}
	return list, nil
}

// perform runs a statement for the change in work.
func (s *Session) perform(t *table, statement statement, search, newer decoder.Tuple, extra ...[]byte) (rows int64, refusal *pgconn.PgError, err error) {
	parameters, err := s.parameters(t, &statement, search, newer, extra...)
	if err != nil {
		return 0, nil, err
	}
	result, refusal, err := s.run(statement.sql, parameters)
	if err != nil || refusal != nil {
		return 0, refusal, err
	}
	return result.CommandTag.RowsAffected(), nil, nil
}

// certain waits until the outcome of every change before the one in work is known to
// be as expected: what the target holds decides a conflict only then.
func (s *Session) certain() error {
	if err := s.drain(0); err != nil {
		return err
	}
	if s.doubt {
		return errNotSure
	}
	return nil
}

// exactInsert inserts a row and, where a unique index has its place taken, resolves
// the conflict.
func (s *Session) exactInsert(t *table, newer decoder.Tuple) error {
	if err := s.certain(); err != nil {
		return err
	}
	return s.insertOrResolve(t, newer, conflict.InsertExists)
}

// insertOrResolve inserts the row; found says what a taken key is called.
func (s *Session) insertOrResolve(t *table, newer decoder.Tuple, found conflict.Type) error {
	rows, refusal, err := s.perform(t, insertStatement(t.bound), nil, newer)
	if err != nil {
		return err
	}
	if refusal == nil {
		s.outcome.Inserts += rows
		return nil
	}
	if refusal.Code != uniqueViolation {
		return refusal
	}
	return s.resolveExisting(t, opInsert, found, refusal, nil, newer, nil)
}

// exactChange updates or, without a new tuple, deletes the row that search means:
// it finds and locks the row, looks at who wrote it, and changes it where it is.
func (s *Session) exactChange(t *table, op operation, search, newer decoder.Tuple) error {
	if err := s.certain(); err != nil {
		return err
	}
	row, err := s.findRow(t, search)
	if err != nil {
		return err
	}
	if row == nil {
		return s.resolveMissing(t, op, search, newer)
	}
	if s.foreign(row) {
		proceed, err := s.resolveForeign(t, op, search, newer, row)
		if err != nil || !proceed {
			return err
		}
	}
	return s.changeFound(t, op, search, newer, row)
}

// changeFound changes the row that was found and locked.
func (s *Session) changeFound(t *table, op operation, search, newer decoder.Tuple, row *localRow) error {
	change := deleteFoundStatement(t.bound)
	if op == opUpdate {
		kept, err := s.withoutKeptIdentity(t, newer, row)
		if err != nil {
			return err
		}
		change = updateFoundStatement(t.bound, search, kept)
		newer = kept
	}
	rows, refusal, err := s.perform(t, change, search, newer, row.tableOID, row.ctid)
	if err != nil {
		return err
	}
	if refusal != nil {
		if refusal.Code != uniqueViolation || op != opUpdate {
			return refusal
		}
		return s.resolveExisting(t, op, conflict.UpdateExists, refusal, search, newer, row)
	}
	// A BEFORE trigger that returns NULL is the target's own decision: 0 rows.
	if op == opUpdate {
		s.outcome.Updates += rows
	} else {
		s.outcome.Deletes += rows
	}
	return nil
}

// withoutKeptIdentity marks as unchanged the identity columns GENERATED ALWAYS whose
// value in the row is the new one: an UPDATE must not name them.
func (s *Session) withoutKeptIdentity(t *table, newer decoder.Tuple, row *localRow) (decoder.Tuple, error) {
	kept := newer
	for i := range t.bound.Columns {
		column := &t.bound.Columns[i]
		if !column.IdentityAlways || newer[i].Kind == decoder.Unchanged || column.Equality == "" {
			continue
		}
		rows, err := s.ask(fmt.Sprintf("SELECT %s %s $3 FROM %s WHERE tableoid = $1 AND ctid = $2", quote(column.Name), column.Equality, reference(t.bound)),
			[]pgpipe.Parameter{
				{Value: row.tableOID, Type: oidType},
				{Value: row.ctid, Type: tidType},
				{Value: newer[i].Data, Type: column.TypeOID, Binary: newer[i].Kind == decoder.Binary},
			})
		if err != nil {
			return nil, err
		}
		if len(rows) != 1 || string(rows[0][0]) != "t" {
			return nil, &catalog.MismatchError{
				Schema: t.bound.Schema, Table: t.bound.Name,
				Reason: fmt.Sprintf(`column "%s" changes its value, and on the target it is an identity column GENERATED ALWAYS, which cannot be updated`, column.Name),
				Hint:   "ALTER TABLE ... ALTER COLUMN ... SET GENERATED BY DEFAULT on the target",
			}
		}
		if &kept[0] == &newer[0] {
			kept = append(decoder.Tuple(nil), newer...)
		}
		kept[i] = decoder.Value{Kind: decoder.Unchanged}
	}
	return kept, nil
}
