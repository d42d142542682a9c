package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/operate"
)

func newSequences() *cobra.Command {
	options, asJSON := operate.SequencesOptions{Endpoints: defaultEndpoints()}, false
	v := newVerb(&cobra.Command{
		Use:   "sequences",
		Short: "Copy the positions of sequences, which replication does not",
		Long: `Sets the target's sequences to where the publisher's are: those that fill columns of
published tables, by serial, identity or default, or --all of the database. Run it
when applications have stopped writing to the publisher and before they write to the
target; running it earlier, or again, does no harm. It needs no slot, and a runner may
go on meanwhile.

No sequence goes backwards, in the direction in which it counts, unless
--allow-backwards says so. One that the target lacks, that counts by another
increment, or whose value does not fit is reported, and the others are set: exits 3.`,
		Example: `  pgapply sequences --dry-run
  pgapply sequences --all --margin 1000`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, options.Target); err != nil {
			return err
		}
		if options.Source == "" {
			return usageError(cmd, "no publisher given: set --source or %s", variable("source"))
		}
		report, err := operate.Sequences(cmd.Context(), options)
		if report != nil && asJSON {
			if err := printJSON(cmd.OutOrStdout(), report); err != nil {
				return err
			}
		} else if report != nil {
			say(cmd.OutOrStdout(), report.Text())
		}
		if err != nil {
			return err
		}
		return report.Err()
	})
	v.endpoints(&options.Endpoints)
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.StringArrayVar(&options.Publications, "publication", nil, "`NAME` of a publication whose tables' sequences are copied; repeat it for several (default those of the subscription)")
		flags.BoolVar(&options.All, "all", false, "copy every sequence of the database")
		flags.Int64Var(&options.Margin, "margin", 0, "go `N` increments beyond the publisher")
		flags.BoolVar(&options.AllowBackwards, "allow-backwards", false, "set also sequences that are ahead on the target")
		flags.BoolVar(&options.DryRun, "dry-run", false, "say what would be done, and change nothing")
	})
	v.group("Output", func(flags *pflag.FlagSet) { jsonFlag(flags, &asJSON) })
	return v.Command
}
