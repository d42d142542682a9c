package tablesync

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply/target"
	"pgapply/internal/source"
)

// Side is an end of the copy.
type Side string

// The ends.
const (
	Publisher Side = "publisher"
	Target    Side = "target"
)

// TableError says why a table could not be copied. Others are not concerned.
type TableError struct {
	Table Table
	// Part is what was being copied where that is not the whole table.
	Part string
	Side Side
	// Line of the part's rows that the target refused, from 1 on, and the column; 0 and
	// empty where the server does not tell.
	Line   int64
	Column string
	// Lost tells that the connection broke, so that the copy may even have succeeded.
	Lost bool
	Err  error
	// Hint is the remedy, or empty.
	Hint string
}

// Error shows no values of rows.
func (e *TableError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, `copy table "%s"`, e.Table)
	if e.Part != "" {
		fmt.Fprintf(&text, ", %s", e.Part)
	}
	if e.Line > 0 {
		fmt.Fprintf(&text, ", line %d", e.Line)
	}
	if e.Column != "" {
		fmt.Fprintf(&text, ", column %q", e.Column)
	}
	if e.Side != "" {
		fmt.Fprintf(&text, ": %s", e.Side)
	}
	fmt.Fprintf(&text, ": %s", target.Describe(e.Err))
	return strings.ToValidUTF8(text.String(), "?")
}

// Unwrap returns the cause.
func (e *TableError) Unwrap() error { return e.Err }

// RecorderError is the Recorder's. It ends the whole copy.
type RecorderError struct{ Err error }

func (e *RecorderError) Error() string { return "record the state of a table: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *RecorderError) Unwrap() error { return e.Err }

// ErrSnapshotLost tells, with errors.Is, that the snapshot is gone: no table that is not
// finished can be copied with it.
var ErrSnapshotLost = errors.New("the exported snapshot is lost")

// place finds line and column in the context that COPY FROM gives to an error
// (copyfrom.c, CopyFromErrorCallback): COPY t, line 3, column a: "value". The value is
// nobody's business.
var place = regexp.MustCompile(`^COPY .*?, \D*(\d+)(?:, \S+ ([^:"]+))?`)

// failed makes a TableError of what went wrong on a side.
func failed(table Table, p *part, side Side, err error) *TableError {
	var known *TableError
	if errors.As(err, &known) {
		return known
	}
	e := &TableError{Table: table, Side: side, Err: err, Lost: lost(err)}
	if p != nil && (p.pages || p.table.Schema != table.Schema || p.table.Name != table.Name) {
		e.Part = p.String()
	}
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if ok && side == Target {
		if match := place.FindStringSubmatch(refusal.Where); match != nil {
			e.Line, _ = strconv.ParseInt(match[1], 10, 64)
			e.Column = match[2]
		}
	}
	e.Hint = hint(side, err, refusal)
	return e
}

func hint(side Side, err error, refusal *pgconn.PgError) string {
	if _, ok := errors.AsType[*source.RewrittenError](err); ok {
		return "it is copied again on another snapshot: avoid ALTER TABLE, TRUNCATE and VACUUM FULL meanwhile"
	}
	if _, ok := errors.AsType[*source.ColumnListsError](err); ok {
		return "give the table the same column list in every publication"
	}
	if mismatch, ok := errors.AsType[*MismatchError](err); ok {
		if mismatch.Missing {
			return "create the table on the target, or start with --copy-schema"
		}
		return "change the target's table; `pgapply check` names the remedy"
	}
	if refusal == nil {
		return ""
	}
	switch code := refusal.Code; {
	case code == "23505" && side == Target:
		return "the target has such a row already: empty the table there, or drop the unique index that the publisher does not have"
	case code == "53100":
		return fmt.Sprintf("make room on the %s's disk", side)
	case code == "42501" && side == Publisher:
		return "grant SELECT on the table to the role of --source"
	case code == "42501":
		return "grant INSERT on the table, and TRUNCATE or DELETE where it is to be emptied, to the role of --target"
	case (code == "22P05" || code == "22021") && side == Publisher:
		return "the target's database has another encoding than the publisher's, and lacks a character: use a target in UTF8"
	case side == Target && (strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23")):
		return "the target's column or constraint does not take what the publisher's holds: make them alike"
	}
	return ""
}

// lost tells an error of the connection from the server's verdict.
func lost(err error) bool {
	if err == nil {
		return false
	}
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refusal.Severity == "FATAL" || refusal.Severity == "PANIC"
	}
	_, mismatch := errors.AsType[*MismatchError](err)
	_, rewritten := errors.AsType[*source.RewrittenError](err)
	_, lists := errors.AsType[*source.ColumnListsError](err)
	return !mismatch && !rewritten && !lists
}
