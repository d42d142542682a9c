package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"pgapply/operate"
	"pgapply/operate/verify"
)

func newVerify() *cobra.Command {
	options, asJSON := operate.DefaultVerifyOptions(), false
	v := newVerb(&cobra.Command{
		Use:   "verify",
		Short: "Compare the rows of publisher and target, exactly, while both work",
		Long: `Compares all tables that are ready, in the columns and rows that are published, and
lists every row that is missing on the target, extra there, or different. Both servers
hash their own rows; only what differs is sent. What changes meanwhile is looked at
again until the target has applied it, so that only real differences are left. It
needs a runner for that; without one it compares as it is. Exits 8 on differences.

--repair also prints the SQL that would make the target's rows the publisher's.
--repair=apply does so: it locks each row on the publisher, waits until the target has
what was on its way, and writes under a replication origin of the subscription.`,
		Example: `  pgapply verify --source "$SOURCE" --target "$TARGET"
  pgapply verify --table 'sales.*' --jobs 4 --max-rows-per-second 100000
  pgapply verify --repair > repair.sql`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, options.Target); err != nil {
			return err
		}
		if options.Source == "" {
			return usageError(cmd, "no publisher given: set --source or %s", variable("source"))
		}
		if options.Repair == operate.RepairApply && !options.Confirmed && onTerminal(cmd.InOrStdin()) {
			fmt.Fprintf(cmd.ErrOrStderr(), "Rows of the target that differ will be overwritten or deleted.\n")
			options.Confirmed = confirmed(cmd, options.Name)
		}
		ended := showVerify(cmd.ErrOrStderr(), &options)
		report, err := operate.Verify(cmd.Context(), options)
		ended()
		if err != nil {
			return err
		}
		switch {
		case asJSON:
			if err := printJSON(cmd.OutOrStdout(), report); err != nil {
				return err
			}
		case options.Repair == operate.RepairPrint:
			say(cmd.OutOrStdout(), report.Script())
		default:
			say(cmd.OutOrStdout(), report.Text())
		}
		return report.Err()
	})
	v.endpoints(&options.Endpoints)
	v.group("What to compare", func(flags *pflag.FlagSet) {
		flags.StringArrayVar(&options.Tables.Include, "table", nil, "`PATTERN` such as sales.* of tables to compare; repeat it for several (default all)")
		flags.StringArrayVar(&options.Tables.Exclude, "exclude-table", nil, "`PATTERN` of tables to leave out")
		flags.Int64Var(&options.Sample, "sample", options.Sample, "compare one in `N` rows, chosen by key; a power of two")
		flags.IntVar(&options.Jobs, "jobs", options.Jobs, "`N` sessions read each server")
		flags.Int64Var(&options.RowsPerSecond, "max-rows-per-second", 0, "read no more than `N` rows a second of each server (default no limit)")
		flags.DurationVar(&options.Patience, "settle-timeout", options.Patience, "longest `TIME` that rows that differ may take to settle")
	})
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.StringVar(&options.Repair, "repair", options.Repair, "`ACTION` for differences: print the SQL that repairs them, or apply it (default no)")
		flags.Lookup("repair").NoOptDefVal, flags.Lookup("repair").DefValue = operate.RepairPrint, ""
		flags.BoolVar(&options.Confirmed, "yes", false, "do not ask before --repair=apply")
	})
	v.group("Output", func(flags *pflag.FlagSet) {
		flags.IntVar(&options.Limit, "limit", options.Limit, "list at most `N` differing rows of a table")
		jsonFlag(flags, &asJSON)
	})
	return v.Command
}

// showVerify shows on a terminal how far a comparison is, until ended is called.
func showVerify(out io.Writer, options *operate.VerifyOptions) (ended func()) {
	file, ok := out.(*os.File)
	if !ok || !onTerminal(out) {
		return func() {}
	}
	options.Progress = &verify.Progress{}
	return line(file, func() string { return operate.VerifyLine(options.Progress.Now()) })
}

// line keeps one line of a terminal up to date, and takes it away at the end.
func line(file *os.File, text func() string) (ended func()) {
	const toStart, clear = "\r", "\x1b[K"
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(refresh)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				runes := []rune(text())
				if columns, _, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 {
					runes = runes[:min(len(runes), columns-1)]
				}
				say(file, toStart+string(runes)+clear)
			case <-stop:
				say(file, toStart+clear)
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-done
	}
}
