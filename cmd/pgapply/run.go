package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"pgapply/apply"
)

// starter runs the engine; it is a parameter so that what the flags come to can be tested
// without one.
type starter func(context.Context, apply.Options, httpOptions) error

// newRun builds `pgapply run`.
func newRun(start starter) *cobra.Command {
	return runVerb(start).Command
}

func runVerb(start starter) *verb {
	var http httpOptions
	options := apply.DefaultOptions()
	log := defaultLogOptions("info")
	v := newVerb(&cobra.Command{
		Use:   "run",
		Short: "Apply the changes of a publication, until it is stopped",
		Long: `Receives the changes of one or more publications and applies them to the target.
It runs until SIGTERM or SIGINT stops it, which it does in order and with exit
code 0: what is being applied has 8 s to finish, and is rolled back else. Started
again, it goes on where it was. A second signal exits at once.

At the first start it copies the tables, which must exist on the target and be
empty there, as they are at one point, and then streams from that point on. Tables
that are published later are copied when pgapply is started again, or told to by
` + "`pgapply refresh`" + `. Where the target has the rows already, say --copy-data=false.

Exit codes: 0 done or asked to stop, 1 other, 2 usage or configuration, also an
address of --http that is taken, 3 refused by the state or the servers' set-up, 4
publisher, 5 target, 6 an apply error that needs a person (--on-error stop), 7 slot
lost: only a new copy can help.`,
		Example: `  pgapply run --publication accounts \
    --source 'postgres://replicator@old.example/bank' \
    --target 'postgres://bank@new.example/bank'`,
	}, func(cmd *cobra.Command) error {
		out := cmd.ErrOrStderr()
		if file, ok := out.(*os.File); ok && onTerminal(file) && log.format == "console" {
			terminal := &screen{file: file}
			out, options.ShowCopy = terminal, terminal.showCopy
		}
		logger, err := log.logger(out, options.Name)
		if err = errors.Join(err, http.validate()); err != nil {
			return &apply.Error{Class: apply.Configuration, Err: errors.Join(err, options.Validate())}
		}
		warnAboutPasswords(logger, exposedPasswords(cmd))
		warnAboutVariables(logger, unread(cmd, os.Environ()))
		options.Log, options.Version = logger, version
		return start(cmd.Context(), options, http)
	})
	v.engineFlags(&options)
	v.group("HTTP", http.flags)
	v.group("Logs", log.flags)
	v.validate = func() error { return errors.Join(options.Validate(), http.validate()) }
	return v
}

// engineFlags adds the flags for what the engine is to do.
func (v *verb) engineFlags(options *apply.Options) {
	v.group("Which subscription", func(flags *pflag.FlagSet) {
		connectionFlags(flags, &options.Name, &options.Source, &options.Target, &options.SourcePassfile, &options.TargetPassfile)
		flags.StringVar(&options.Primary, "primary", "", "`URI` of the primary of a publisher that is a standby: has it record its running transactions, for which a slot on a standby waits")
		flags.StringVar(&options.PrimaryPassfile, "primary-passfile", "", "password `FILE` for the primary")
		flags.BoolVar(&options.Wait, "wait", options.Wait, "wait for a slot or an origin that somebody else holds")
	})
	v.group("What to receive", func(flags *pflag.FlagSet) {
		flags.StringArrayVar(&options.Publications, "publication", nil, "`NAME` of a publication; repeat it for several")
		flags.StringVar(&options.Slot, "slot", "", "`NAME` of the replication slot (default that of the subscription)")
		flags.BoolVar(&options.CreateSlot, "create-slot", options.CreateSlot, "create the slot at the first start; false adopts an existing one")
		flags.BoolVar(&options.Failover, "failover", options.Failover, "let standbys of the publisher keep the slot, so that one that is promoted goes on (17 and later); can be changed at a later start")
		flags.BoolVar(&options.TwoPhase, "two-phase", options.TwoPhase, "prepare on the target what the publisher prepares, instead of waiting for its COMMIT PREPARED (15 and later)")
		flags.StringArrayVar(&options.Tables.Include, "include-table", nil, "`PATTERN` SCHEMA.TABLE, with * for any characters, of the only published tables to replicate; repeat it for several")
		flags.StringArrayVar(&options.Tables.Exclude, "exclude-table", nil, "`PATTERN` of published tables to leave out; repeat it for several")
		flags.BoolVar(&options.AutoRefresh, "auto-refresh", options.AutoRefresh, "take in a table that is published later when its first change comes, instead of at the next start or refresh")
		flags.StringVar(&options.Streaming, "streaming", options.Streaming, "receive transactions in progress: `MODE` off, on or parallel, as far as the publisher can")
		flags.BoolVar(&options.Binary, "binary", options.Binary, "receive values in binary form (14 and later)")
		flags.StringVar(&options.Origin, "origin", options.Origin, "`ORIGIN` any, or none for changes that were not replicated themselves (16 and later)")
		flags.Var(endpos{options}, "endpos", "apply everything that committed before this `POSITION`, an LSN or the word current, then exit 0")
	})
	v.group("Initial copy", func(flags *pflag.FlagSet) {
		flags.BoolVar(&options.CopyData, "copy-data", options.CopyData, "copy each table when it enters the subscription; false takes the target's rows for the publisher's")
		flags.BoolVar(&options.CopySchema, "copy-schema", options.CopySchema, "create on the target what it lacks of the published tables, through pg_dump")
		flags.IntVar(&options.TableJobs, "table-jobs", options.TableJobs, "`N` tables, or parts of large ones, are copied at a time")
		flags.Var(size{&options.SplitLargerThan}, "split-tables-larger-than", "`SIZE` on the publisher (14 and later) from which on a table is copied in parts; 0 for never")
		flags.StringVar(&options.IfNotEmpty, "if-not-empty", options.IfNotEmpty, "`ACTION` where the target's table has rows: error, truncate (with --yes), or append")
		flags.BoolVar(&options.Confirmed, "yes", options.Confirmed, "confirm --if-not-empty truncate")
		flags.BoolVar(&options.DeferIndexes, "defer-indexes", options.DeferIndexes, "drop secondary indexes and unique constraints of empty tables, but for partitioned ones, for the time of their copy, and make them again with --table-jobs")
		flags.BoolVar(&options.Analyze, "analyze", options.Analyze, "collect the planner's statistics of each copied table")
	})
	v.group("How to apply", func(flags *pflag.FlagSet) {
		flags.StringVar(&options.OnError, "on-error", options.OnError, "`ACTION` after an apply error: retry, pause or stop")
		flags.StringVar(&options.MissingTable, "missing-table", options.MissingTable, "`ACTION` for a published table that the target lacks: error, or skip its changes")
		flags.StringVar(&options.Messages, "messages", options.Messages, "`ACTION` for logical messages: none, count, or table for table pgapply.message, which turns --streaming off (14 and later)")
		flags.IntVar(&options.Workers, "workers", options.Workers, "`N` sessions that apply: one in order of commit, the others ahead of it what does not meet")
		flags.StringVar(&options.Progress, "progress", options.Progress, "`WHERE` the target keeps how far it is: origin, table, or auto for origins where the role may use them; docs/managed-clouds.md says what a table lacks")
		flags.BoolVar(&options.FireTriggers, "fire-triggers", options.FireTriggers, "where the role may not set session_replication_role, go on although triggers, rules or foreign keys of the tables fire")
		flags.StringVar(&options.SynchronousCommit, "synchronous-commit", options.SynchronousCommit, "`VALUE` of synchronous_commit in the apply sessions; off loses nothing")
		flags.DurationVar(&options.TargetTimeout, "target-timeout", options.TargetTimeout, "`TIME` after which a target is given up that neither answers nor works on what it was asked")
		flags.IntVar(&options.MaxGroup.Transactions, "max-group-transactions", options.MaxGroup.Transactions, "at most `N` transactions share a target transaction while behind; 1 for none")
		flags.IntVar(&options.MaxGroup.Rows, "max-group-rows", options.MaxGroup.Rows, "at most `N` rows in such a group")
		flags.Var(size{&options.MaxGroup.Bytes}, "max-group-bytes", "at most `SIZE` of changes in such a group")
		flags.Var(size{&options.MaxBatch}, "max-batch", "at most `SIZE` of changes that become one statement for each table and kind; 0 sends each by itself")
		flags.DurationVar(&options.MaxGroup.Age, "max-group-age", options.MaxGroup.Age, "longest `TIME` between the first and the last commit of such a group")
	})
	v.group("Conflicts", func(flags *pflag.FlagSet) {
		flags.Var(policies{&options.OnConflict}, "on-conflict", "`TYPE=POLICY`, or SCHEMA.TABLE:TYPE=POLICY for one table; repeat it for several. The README has the table of both")
		flags.Var(age{&options.ConflictRetention}, "conflict-retention", "how long recorded conflicts are kept, a `TIME` such as 30d or 12h")
		flags.BoolVar(&options.LogRows, "log-rows", options.LogRows, "show the values of conflicting rows in the log")
	})
	v.group("Limits", func(flags *pflag.FlagSet) {
		flags.Var(size{&options.MemoryLimit}, "memory-limit", "`SIZE` of the changes held in memory")
		flags.StringVar(&options.SpoolDir, "spool-dir", options.SpoolDir, "`DIRECTORY` for what does not fit (default the system's temporary one)")
		flags.Var(size{&options.SpoolLimit}, "spool-limit", "most `SIZE` of what is spooled there; each transaction by itself must fit, or it is never applied")
	})
}

// runEngine runs until the engine is done, or ctx stops it.
func runEngine(ctx context.Context, options apply.Options, http httpOptions) error {
	if http.address != "" {
		return runWatched(ctx, options, http)
	}
	engine, err := newEngine(options)
	if err != nil {
		return err
	}
	return runAsService(ctx, options.Log, engine)
}

// newEngine is an engine that has this process to itself.
func newEngine(options apply.Options) (*apply.Engine, error) {
	engine, err := apply.New(options)
	if err != nil {
		return nil, err
	}
	apply.TuneCollector(options.MemoryLimit)
	return engine, nil
}

func warnAboutPasswords(log *zap.Logger, flags []string) {
	for _, name := range flags {
		log.Warn(exposedText(name), zap.String("flag", "--"+name))
	}
}

func warnAboutVariables(log *zap.Logger, names []string) {
	for _, name := range names {
		log.Warn(unreadText, zap.String("variable", name))
	}
}
