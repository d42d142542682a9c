package apply

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/apply/stream"
	"pgapply/apply/tablesync"
	"pgapply/conflict"
	"pgapply/internal/lsn"
)

// Options say what to replicate and how. The zero value of a field is not its
// default: start from DefaultOptions.
type Options struct {
	// Name of the subscription. Origins, state rows and, unless Slot says
	// otherwise, the slot carry it. One to 63 of [a-z0-9_].
	Name string
	// Source and Target are libpq connection URIs or keyword strings.
	Source, Target string
	// SourcePassfile and TargetPassfile name a password file for one end, each
	// in the format of ~/.pgpass; empty means the usual one.
	SourcePassfile, TargetPassfile string

	// Primary is the connection URI or keyword string of the publisher's primary, for a
	// publisher that is a standby. It is told to record its running transactions when a
	// slot is made on the standby, which waits for such a record. PrimaryPassfile is as
	// SourcePassfile.
	Primary, PrimaryPassfile string

	// Publications on the publisher, at least one.
	Publications []string
	// Slot on the publisher; empty means Name.
	Slot string
	// CreateSlot makes the slot at the first start. Without it an existing one
	// is adopted at its confirmed position.
	CreateSlot bool
	// CopyData copies each table when it enters the subscription. Without it the target's
	// rows are taken for the publisher's.
	CopyData bool
	// CopySchema creates on the target, through pg_dump, what it lacks of the published
	// tables.
	CopySchema bool
	// Tables chooses among the published ones.
	Tables TableFilter
	// AutoRefresh takes in a table that is published later, when its first change comes.
	AutoRefresh bool
	// IfNotEmpty says what becomes of the rows that the target has in a table that is to
	// be copied: "error" refuses it, "truncate" removes them, which needs Confirmed, and
	// "append" copies beside them.
	IfNotEmpty string
	Confirmed  bool
	// TableJobs is how many tables, or parts of large ones, are copied at a time.
	TableJobs int
	// SplitLargerThan is the size in bytes on the publisher from which on a table is
	// copied in parts; 0 never splits.
	SplitLargerThan int64
	// ShowCopy, unless nil, shows how far a copy of tables is, in place of the log. It is
	// called when one begins, and what it returns when it has ended.
	ShowCopy func(*tablesync.Progress) (ended func())
	// DeferIndexes drops the secondary indexes of empty tables that are copied, and makes
	// them again afterwards.
	DeferIndexes bool
	// Analyze collects the planner's statistics of each copied table.
	Analyze bool
	// Streaming of transactions in progress: "off", "on" or "parallel". What the
	// publisher's major does not know is lowered to what it does. It is off while
	// logical messages are kept or handled.
	Streaming string
	// Binary asks for values in binary form.
	Binary bool
	// Origin is "any", or "none" for changes that have no replication origin.
	Origin string
	// TwoPhase has prepared transactions sent at PREPARE, and prepared here (publishers
	// 15 and later). Without it they come with their COMMIT PREPARED, as any other. It
	// may change from start to start; but before 18 a slot that was a two-phase one
	// remains one, and goes on to send them at PREPARE.
	TwoPhase bool
	// Failover makes the slot one that standbys of the publisher keep (17 and later). It
	// may change from start to start.
	Failover bool

	// Progress says where the target keeps how far it is: "origin" stamps each transaction
	// with a replication origin, "table" does not, and "auto" does where the role may.
	Progress string
	// FireTriggers goes on where the role may not set session_replication_role although
	// triggers, rules or foreign keys of the tables fire.
	FireTriggers bool

	// Workers is how many sessions apply: one in the order of commits, and the others ahead
	// of their turn, transactions that are still running on the publisher and groups that
	// do not meet those before them.
	Workers int
	// SynchronousCommit of the apply sessions, any value of the setting.
	SynchronousCommit string
	// OnConflict decides conflicts; the zero value does as the native subscription does.
	OnConflict conflict.Policies
	// ConflictRetention is how long resolved conflicts are kept on the target.
	ConflictRetention time.Duration
	// MissingTable is what a published table that the target does not have means:
	// "error" or "skip".
	MissingTable string
	// Messages is what becomes of logical messages: "none" does not ask for them,
	// "count" counts them, "table" keeps them in pgapply.message.
	Messages string
	// MessageHandler, unless nil, receives them as well, also where Messages is "none".
	MessageHandler MessageHandler
	// LogRows lets rows of conflicts appear in the log.
	LogRows bool
	// OnError is what follows an apply error: "retry", "pause" or "stop".
	OnError string
	// Wait for a held origin or slot instead of giving up.
	Wait bool
	// EndLSN, when set, ends the run once everything that committed before it is
	// applied and acknowledged. EndAtCurrent takes the publisher's position at the start.
	EndLSN       lsn.LSN
	EndAtCurrent bool

	// MaxGroup limits how many transactions share a target transaction while behind.
	MaxGroup stream.Limits
	// MaxBatch bounds, in bytes, the changes of a group that are merged before they are
	// sent, as one statement for each table and kind. 0 sends each change by itself.
	MaxBatch int64
	// MemoryLimit bounds the changes held in memory, in bytes.
	MemoryLimit int64
	// SpoolDir holds what does not fit, at most SpoolLimit bytes of it. A single
	// transaction that fits into neither is never applied.
	SpoolDir   string
	SpoolLimit int64

	// TargetTimeout is for how long the target may leave the control session without an
	// answer, and show no sign that it works on one, before its connections are given up.
	TargetTimeout time.Duration

	// ReadRecords has the engine read every few seconds what the state says about its
	// tables and conflicts, for who watches it in this process: see Engine.Records.
	ReadRecords bool

	// Version of this program, for people who look at the runner.
	Version string
	// Log receives what happens; nil logs nothing.
	Log *zap.Logger
}

// DefaultOptions are the defaults of `pgapply run`; where the native subscription
// has the option, the default is its own.
func DefaultOptions() Options {
	return Options{
		Name:              "pgapply",
		CreateSlot:        true,
		CopyData:          true,
		IfNotEmpty:        "error",
		TableJobs:         2,
		SplitLargerThan:   128 << 20,
		Analyze:           true,
		Streaming:         "parallel",
		Origin:            "any",
		Progress:          "auto",
		Workers:           4,
		SynchronousCommit: "off",
		ConflictRetention: 30 * 24 * time.Hour,
		MissingTable:      "error",
		Messages:          "none",
		OnError:           "retry",
		Wait:              true,
		MaxGroup:          stream.Limits{Transactions: 10_000, Rows: 50_000, Bytes: 16 << 20, Age: time.Second},
		MaxBatch:          4 << 20,
		MemoryLimit:       128 << 20,
		SpoolLimit:        16 << 30,
		TargetTimeout:     45 * time.Second,
		Log:               zap.NewNop(),
	}
}

// mostBatch bounds what each connection holds, and the target for each.
const mostBatch = 64 << 20

// mostWorkers bounds the connections that one mistyped digit can open.
const mostWorkers = 64

// leastTargetTimeout is no time for a look at a target that is far away; tests are near.
const leastTargetTimeout = 100 * time.Millisecond

var (
	nameForm = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	slotForm = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
)

// Validate reports everything that is wrong with the options, in one error of
// class Configuration.
func (o *Options) Validate() error {
	var faults []error
	fault := func(format string, arguments ...any) { faults = append(faults, fmt.Errorf(format, arguments...)) }
	oneOf := func(flag, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			fault("--%s %q is not one of %s", flag, value, strings.Join(allowed, ", "))
		}
	}
	if !nameForm.MatchString(o.Name) {
		fault("--name %q must be one to 63 of the characters a-z, 0-9 and _", o.Name)
	}
	if o.Slot != "" && !slotForm.MatchString(o.Slot) {
		fault("--slot %q must be one to 63 of the characters a-z, 0-9 and _", o.Slot)
	}
	if o.Source == "" {
		fault("no publisher given: set --source or PGAPPLY_SOURCE to its connection URI")
	}
	if o.Target == "" {
		fault("no target given: set --target or PGAPPLY_TARGET to its connection URI")
	}
	if len(o.Publications) == 0 {
		fault("no publication given: set --publication, once for each publication to receive")
	}
	if o.TableJobs < 1 || o.TableJobs > mostWorkers {
		fault("--table-jobs must be between 1 and %d", mostWorkers)
	}
	if o.SplitLargerThan != 0 && o.SplitLargerThan < 1<<20 {
		fault("--split-tables-larger-than must be at least 1MiB, or 0 for never")
	}
	oneOf("if-not-empty", o.IfNotEmpty, "error", "truncate", "append")
	if o.TwoPhase && o.MessageHandler != nil {
		fault("--two-phase does not go with a handler of logical messages: %s", whyNoHandler)
	}
	oneOf("streaming", o.Streaming, "off", "on", "parallel")
	oneOf("origin", o.Origin, "any", "none")
	oneOf("progress", o.Progress, "auto", string(state.InOrigins), string(state.InTable))
	oneOf("missing-table", o.MissingTable, "error", "skip")
	oneOf("messages", o.Messages, "none", "count", "table")
	if o.ConflictRetention < time.Hour {
		fault("--conflict-retention must be at least 1h")
	}
	if o.TargetTimeout < leastTargetTimeout {
		fault("--target-timeout must be at least %s", leastTargetTimeout)
	}
	oneOf("on-error", o.OnError, "retry", "pause", "stop")
	oneOf("synchronous-commit", o.SynchronousCommit, "off", "local", "remote_write", "on", "remote_apply")
	for flag, value := range map[string]int64{
		"max-group-transactions": int64(o.MaxGroup.Transactions),
		"max-group-rows":         int64(o.MaxGroup.Rows),
		"max-group-bytes":        o.MaxGroup.Bytes,
		"max-group-age":          int64(o.MaxGroup.Age),
	} {
		if value < 1 {
			fault("--%s must be at least 1", flag)
		}
	}
	if o.MaxBatch < 0 || o.MaxBatch > mostBatch {
		fault("--max-batch must be between 0 and 64MiB")
	}
	if o.Workers < 1 || o.Workers > mostWorkers {
		fault("--workers must be between 1 and %d", mostWorkers)
	}
	if o.MemoryLimit < 1<<20 {
		fault("--memory-limit must be at least 1MiB")
	}
	if o.SpoolLimit < 1<<20 {
		fault("--spool-limit must be at least 1MiB")
	}
	if len(faults) == 0 {
		return nil
	}
	return &Error{Class: Configuration, Err: errors.Join(faults...)}
}

// whyNoHandler is why prepared transactions and a handler exclude each other.
const whyNoHandler = "the handler hears of a message just before its transaction commits, and whether a prepared one does is not known when its messages arrive"

// wantsMessages tells whether the publisher is asked for logical messages.
func (o *Options) wantsMessages() bool { return o.Messages != "none" || o.MessageHandler != nil }

// streaming is the mode to ask for. In a streamed transaction the publisher does not say
// which subtransaction a logical message belongs to (pgoutput_message, up to 18): one
// that was taken back with its savepoint could not be told from the others. A
// transaction that arrives at its commit has only those that count.
func (o *Options) streaming() string {
	if o.Messages == "table" || o.MessageHandler != nil {
		return "off"
	}
	return o.Streaming
}

// Sessions is how many sessions on the target apply, each under a replication origin of
// its own.
func (o *Options) Sessions() int { return o.Workers }

// SlotName is the slot to use: Slot, or Name where that is empty.
func (o *Options) SlotName() string {
	if o.Slot != "" {
		return o.Slot
	}
	return o.Name
}
