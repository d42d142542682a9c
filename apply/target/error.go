package target

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply/catalog"
	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
)

// TransactionError says that one of the publisher's transactions cannot be applied.
// The target is as it was before that transaction.
type TransactionError struct {
	XID    uint32
	EndLSN lsn.LSN
	// Operation and Relation (schema.table) name the change, where it is known.
	Operation decoder.Type
	Relation  string
	Err       error
	// Hint is the remedy, or empty.
	Hint string
	// Conflict is what the change met on the target, nil for any other error.
	Conflict *conflict.Conflict
	// Prepared says that the publisher has prepared the transaction: it may have rolled it
	// back since.
	Prepared bool
}

func (e *TransactionError) Error() string {
	where := fmt.Sprintf("transaction %d, finished at %s", e.XID, e.EndLSN)
	if e.Relation != "" {
		where = fmt.Sprintf("%s on %s in %s", e.Operation, e.Relation, where)
	}
	what := describe(e.Err, isChange(e.Operation))
	if e.Conflict != nil {
		what = fmt.Sprintf("conflict %s: %s", e.Conflict.Type, what)
	}
	return fmt.Sprintf("apply %s: %s", where, what)
}

// Unwrap returns the cause.
func (e *TransactionError) Unwrap() error { return e.Err }

var (
	// quoted takes in the quotation marks of the languages that the server speaks.
	quoted = regexp.MustCompile(`(?s)["“”„«»「].*["“”„«»」]`)
	colon  = regexp.MustCompile(`(?s): .*`)
)

// withValue stands where there was a value.
const withValue = `"..."`

// isChange tells the operations that give the server values of a row.
func isChange(operation decoder.Type) bool {
	return operation == decoder.TypeInsert || operation == decoder.TypeUpdate || operation == decoder.TypeDelete
}

// describe renders a server's error without the values of a row: without its detail, and
// without what its message may quote of them.
func describe(err error, change bool) string {
	_, elsewhere := errors.AsType[*MessageError](err) // whatever server it may speak of
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || elsewhere {
		return err.Error()
	}
	text := fmt.Sprintf("%s (SQLSTATE %s)", withoutValues(refusal, change), refusal.Code)
	if refusal.ConstraintName != "" && !strings.Contains(text, `"`+refusal.ConstraintName+`"`) {
		text += fmt.Sprintf(", constraint %q", refusal.ConstraintName)
	}
	if refusal.ColumnName != "" && !strings.Contains(text, `"`+refusal.ColumnName+`"`) {
		text += fmt.Sprintf(", column %q", refusal.ColumnName)
	}
	return text
}

// withoutValues is the refusal's message. The input function of a type refuses a value
// with what SQLSTATE it likes: that of regclass says of a relation that it does not
// exist, that of tsquery speaks of a syntax error.
func withoutValues(refusal *pgconn.PgError, change bool) string {
	class := refusal.Code[:min(2, len(refusal.Code))]
	switch class {
	case "22": // data exceptions quote the value, and only the value
		return quoted.ReplaceAllString(refusal.Message, withValue)
	case "08", "23", "25", "40", "53", "55", "57", "58": // of constraints, and of the server's state
		return refusal.Message
	}
	if !change {
		return refusal.Message
	}
	message := quoted.ReplaceAllString(refusal.Message, withValue)
	if class != "P0" { // what a function raises is a person's own text
		message = colon.ReplaceAllString(message, ": "+withValue) // the value of regoper is not quoted
	}
	return message
}

// transactionError gives err its place in the stream.
func transactionError(t *txn.Transaction, operation decoder.Type, relation *decoder.Relation, err error) *TransactionError {
	failed := &TransactionError{XID: t.XID, EndLSN: t.EndLSN, Operation: operation, Err: err, Prepared: t.Kind == txn.Prepare}
	if relation != nil {
		failed.Relation = relation.Namespace + "." + relation.Name
	}
	if _, ok := errors.AsType[*MessageError](err); ok {
		failed.Hint = "mend what the handler of messages complains about, or " + leaveOut(t.EndLSN)
		return failed
	}
	if mismatch, ok := catalog.AsMismatch(err); ok {
		failed.Hint = mismatch.Hint
	}
	if _, ok := errors.AsType[*NotPreparedError](err); ok {
		failed.Hint = "bring the rows of the transaction to the target by hand if they are wanted, then " + leaveOut(t.EndLSN)
	}
	if refused, ok := errors.AsType[*SkipError](err); ok {
		failed.Hint = refused.hint()
	}
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		failed.Hint = remedy(refusal, t.EndLSN)
	}
	return failed
}

// leaveOut is the last resort.
func leaveOut(position lsn.LSN) string {
	return fmt.Sprintf("leave the transaction out with `pgapply skip --lsn %s`", position)
}

// conflictRemedy says what a person can do about a conflict that no policy resolves.
func conflictRemedy(met conflict.Type, position lsn.LSN) string {
	var mend string
	switch met {
	case conflict.InsertExists, conflict.UpdateExists, conflict.MultipleUnique:
		mend = "remove or change the row on the target that holds the key, "
	case conflict.UpdateMissing, conflict.DeleteMissing:
		mend = "put the row on the target, "
	}
	return fmt.Sprintf("%sstart with another policy (--on-conflict %s=...), or %s", mend, met, leaveOut(position))
}

// remedy says what helps against the errors that operators meet most. What follows on
// it, a new try or a new start, is not for here to say.
func remedy(refusal *pgconn.PgError, position lsn.LSN) string {
	if strings.Contains(refusal.Hint, "max_prepared_transactions") {
		return "raise max_prepared_transactions on the target, which must allow for all that the publisher has prepared at a time, and restart it"
	}
	switch refusal.Code {
	case "23505":
		return "remove or change the row on the target that holds the key, or " + leaveOut(position)
	case "23502", "23503", "23514", "23P01":
		return "change the constraint on the target, or the rows there that it is about, or " + leaveOut(position)
	case "42501":
		return PrivilegeRemedy(refusal)
	case "55000":
		// CheckCmdReplicaIdentity (execReplication.c). The hint is the part that is not translated.
		if strings.Contains(refusal.Hint, "REPLICA IDENTITY") {
			return "a publication of the target has this table, and it has no replica identity there: on the target, ALTER TABLE ... REPLICA IDENTITY USING INDEX or FULL (in BEGIN READ WRITE where that database is read-only), or take the table out of the target's publications"
		}
	case "0A000":
		// The server would suggest TRUNCATE ... CASCADE, which nobody can add here.
		if strings.Contains(refusal.Hint, "CASCADE") {
			return "publish the tables that refer to this one too, or drop the foreign key on the target"
		}
	case "53100":
		return "free disk space on the target"
	case "53200", "53300", "53400":
		return "raise the limit that the target's message names"
	}
	if strings.HasPrefix(refusal.Code, "22") {
		return "give the target's column a type that takes the value, or " + leaveOut(position)
	}
	return refusal.Hint
}

// PrivilegeRemedy says what helps where the target refuses something for want of a
// privilege.
func PrivilegeRemedy(refusal *pgconn.PgError) string {
	switch {
	case strings.Contains(refusal.Message, "row-level security"):
		return "let the apply role be one that row-level security does not apply to: ALTER ROLE ... BYPASSRLS, or the table's owner where it is not forced"
	case strings.HasPrefix(refusal.Message, "permission denied for database"):
		return "as an administrator: GRANT CONNECT ON DATABASE ... TO the role, which `pgapply init --role ROLE` does"
	}
	return "grant it to the apply role: `pgapply check` names what is missing, and `pgapply init --role ROLE` grants it"
}

// ConnectionError says that the connection is gone, and with it what was not
// committed. Whether a commit that was on its way came through, only the origin
// knows.
type ConnectionError struct{ Err error }

func (e *ConnectionError) Error() string { return "connection to the target: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ConnectionError) Unwrap() error { return e.Err }

// errNotSure says that a statement was refused, or did not change as many rows as it
// should, where a closer look may: it may have missed the row, or the table may have got
// another key.
var errNotSure = errors.New("a statement did not have the expected outcome")

// verdict tells errors of the connection, which it wraps, from the server's
// verdict on a statement and from our own on a change.
func verdict(err error) error {
	if err == nil || !lost(err) {
		return err
	}
	return &ConnectionError{Err: err}
}

func lost(err error) bool {
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refusal.Severity == "FATAL" || refusal.Severity == "PANIC"
	}
	_, ours := catalog.AsMismatch(err)
	return !ours && !placed(err)
}

// placed tells errors that say already where they belong.
func placed(err error) bool {
	_, transaction := errors.AsType[*TransactionError](err)
	_, connection := errors.AsType[*ConnectionError](err)
	return transaction || connection || errors.Is(err, errNotSure)
}
