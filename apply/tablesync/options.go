package tablesync

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"pgapply/apply/target"
	"pgapply/internal/source"
)

// Options of a copy.
type Options struct {
	// Source and Target are libpq connection URIs or keyword strings, the others name
	// password files, empty for the usual one.
	Source, SourcePassfile string
	Target, TargetPassfile string
	// ApplicationName is what both servers show for the copying sessions. It must not be
	// the stream's, which synchronous_standby_names may mean.
	ApplicationName string
	// Publications decide which columns and rows of a table are copied.
	Publications []string
	// Snapshot is the name of an exported one, which the caller holds until Copy returns.
	Snapshot string
	// Jobs is how many parts are copied at a time: each takes a session on either server.
	Jobs int
	// SplitLargerThan is the size in bytes on the publisher's disk from which on a table
	// is copied in several parts of about that size; 0 never splits.
	SplitLargerThan int64
	// Binary copies in binary form the tables of which every column is of the same
	// built-in type on both ends.
	Binary bool
	// Analyze collects the planner's statistics of each table that is copied.
	Analyze bool
	// Subscription names it, for the fence.
	Subscription string
	// Origin is the name of the replication origin of a job, 0 to Jobs-1: it exists, and
	// nobody else uses it meanwhile. A nil func copies without origins.
	Origin func(job int) string
	// Fires lets triggers, rules and foreign keys of the target fire.
	Fires bool
	// Fence keeps the sessions from writing beside a later runner's.
	Fence target.Fence
	// State hears of every table.
	State Recorder
	// Indexes keeps the definitions of the secondary indexes that are dropped before a
	// table is copied; with nil none are. [BuildIndexes] makes them again.
	Indexes IndexRecorder
	Log     *zap.Logger
}

// Clean says what happens to the rows that the target has before the copy.
type Clean uint8

// The ways to begin with a table.
const (
	// None leaves them, to find them gone already or to copy beside them.
	None Clean = iota
	// Truncate removes them by TRUNCATE, or by DELETE where a foreign key refers to the
	// table.
	Truncate
)

// Table is a table to copy.
type Table struct {
	Schema, Name string
	Clean        Clean
	// Whole keeps the table in one part: all of its rows come with one transaction.
	Whole bool
}

func (t Table) String() string { return t.Schema + "." + t.Name }

// Exec runs one statement in the target transaction that it is handed out for. Parameters
// are text.
type Exec func(sql string, parameters ...string) error

// Recorder keeps what becomes of the tables. Its methods are called from several
// goroutines, for one table by one after another: Starting, then Copied or Failed. A
// table of which nothing was written may fail without having started. An error ends the
// whole copy.
type Recorder interface {
	// Starting is called before anything is written. What it records must be durable when
	// it returns, or commit on the target before it returns. With one part a copy leaves
	// all rows or none; with more, whoever copies the table again must clean it first.
	Starting(ctx context.Context, table Table, parts int) error
	// Copied is called within the target transaction that makes the copy complete: what
	// exec does commits with it, durably. With one part that is the transaction of the
	// rows, with more one of its own after those of all parts.
	Copied(ctx context.Context, table Table, rows, bytes int64, exec Exec) error
	// Failed is called when the table is given up for this time. Where a connection was
	// lost the transaction of Copied may have committed nevertheless: a table that is
	// recorded as copied must be left so.
	Failed(ctx context.Context, table Table, err error) error
}

func (o *Options) validate() error {
	var faults []error
	refuse := func(wrong bool, format string, arguments ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, arguments...))
		}
	}
	refuse(o.Jobs < 1, "jobs must be at least 1, not %d", o.Jobs)
	refuse(o.SplitLargerThan < 0, "the size from which on tables are split must not be negative")
	refuse(o.Snapshot == "", "there is no snapshot")
	refuse(len(o.Publications) == 0, "there are no publications")
	refuse(o.State == nil, "there is no recorder")
	return errors.Join(faults...)
}

func (o *Options) source(encoding string) source.Options {
	return source.Options{
		URI: o.Source, Passfile: o.SourcePassfile, ApplicationName: o.ApplicationName, ClientEncoding: encoding, Log: o.Log,
	}
}
