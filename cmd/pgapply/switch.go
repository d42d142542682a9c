package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/operate"
)

func newPause() *cobra.Command {
	ends, reason := defaultEndpoints(), ""
	v := newVerb(&cobra.Command{
		Use:   "pause",
		Short: "Stop applying until resume, and keep the slot",
		Long: `Makes the runner end its stream after the transaction in work, which is rolled back
if it takes longer than 8 s and comes again after the resume, and waits until it has. The runner goes on living and keeps its lock; the publisher keeps the WAL that
the slot needs. A runner that is started later waits as well.`,
		Example: `  pgapply pause --reason 'new index on orders'`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, ends.Target); err != nil {
			return err
		}
		result, err := operate.Pause(cmd.Context(), ends, reason)
		if err != nil {
			return err
		}
		say(cmd.OutOrStdout(), result.Text())
		return nil
	})
	v.endpoints(&ends)
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.StringVar(&reason, "reason", "", "`TEXT` for those who look at the status")
	})
	return v.Command
}

func newResume() *cobra.Command {
	ends, yes := defaultEndpoints(), false
	v := newVerb(&cobra.Command{
		Use:   "resume",
		Short: "Go on after a pause",
		Long: `Takes back a pause, whether a person or an apply error was the reason, and waits
until the runner streams again. It starts no runner: where none lives, it says so.
Exits 6 where the same or another apply error pauses it again meanwhile.

A subscription that was cut over is resumed only if nothing was written to the target
since: on a terminal it asks for the subscription's name; elsewhere it wants --yes.`,
		Example: `  pgapply resume --target 'postgres://bank@new.example/bank'`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, ends.Target); err != nil {
			return err
		}
		result, err := operate.Resume(cmd.Context(), ends, askUnless(cmd, &yes))
		if err != nil {
			return err
		}
		if err := result.Err(); err != nil {
			return err
		}
		say(cmd.OutOrStdout(), result.Text())
		return nil
	})
	v.endpoints(&ends)
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.BoolVar(&yes, "yes", false, "do not ask before a cutover is undone")
	})
	return v.Command
}
