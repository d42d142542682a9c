package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/operate"
)

func newCutover() *cobra.Command {
	options, yes, asJSON := operate.DefaultCutoverOptions(), false, false
	v := newVerb(&cobra.Command{
		Use:   "cutover",
		Short: "Move applications from the publisher to the target, step by step",
		Long: `Checks whether it is safe, and waits until the target is near. Then writes to the
publisher stop: --set-read-only makes its database read-only and ends its sessions;
without it you stop the applications and say so. When the last change is applied it
sets the sequences, compares rows, and pauses the subscription: applications may write
to the target. Each step is printed with its time. Whatever interrupts it, it can be
run again.

--reverse prepares the way back before that: a publication and a slot on the target,
which keep what applications write there until ` + "`pgapply run`" + ` takes it back.

--dry-run changes nothing and says whether it is safe now, and why not. On a terminal
it asks; elsewhere it wants --yes, which also says that writes have stopped. Exits 3
where it is not safe or not confirmed, 8 where rows differ.`,
		Example: `  pgapply cutover --dry-run
  pgapply cutover --set-read-only --reverse
  pgapply cutover --verify full --yes    # writes have stopped before`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, options.Target); err != nil {
			return err
		}
		if options.Source == "" {
			return usageError(cmd, "no publisher given: set --source or %s", variable("source"))
		}
		options.Confirm = askUnless(cmd, &yes)
		if !asJSON {
			options.Tell = func(step operate.Step) { say(cmd.OutOrStdout(), step.String()+"\n") }
		}
		report, err := operate.Cutover(cmd.Context(), options)
		switch {
		case report == nil:
		case asJSON:
			if err := printJSON(cmd.OutOrStdout(), report); err != nil {
				return err
			}
		default:
			say(cmd.OutOrStdout(), report.Text())
		}
		return err
	})
	v.endpoints(&options.Endpoints)
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.BoolVar(&options.DryRun, "dry-run", false, "say whether it is safe now, and change nothing")
		flags.Var(size{&options.MaxLag}, "max-lag", "stop writes when the target is less than `SIZE` behind")
		flags.DurationVar(&options.Timeout, "timeout", options.Timeout, "longest `TIME` of each wait: for a small lag, for writes to end, for the last change")
		flags.BoolVar(&options.SetReadOnly, "set-read-only", false, "make the publisher's database read-only, and end its sessions")
		flags.StringVar(&options.Sequences, "sequences", options.Sequences, "`WHICH` sequences to copy: all, published, none")
		flags.StringVar(&options.Verify, "verify", options.Verify, "`WHAT` to compare while writes rest: full, sample (one row in 16), none")
		flags.IntVar(&options.Jobs, "jobs", options.Jobs, "`N` sessions read each server to compare")
		flags.BoolVar(&options.Reverse, "reverse", false, "prepare to replicate back from the target")
		flags.StringVar(&options.ReverseName, "reverse-name", "", "`NAME` of publication, slot and subscription back (default the name with _reverse)")
		flags.BoolVar(&yes, "yes", false, "do not ask; without --set-read-only: writes have stopped")
	})
	v.group("Output", func(flags *pflag.FlagSet) { jsonFlag(flags, &asJSON) })
	return v.Command
}

// askUnless asks a person on a terminal, unless yes was said before.
func askUnless(cmd *cobra.Command, yes *bool) func(operate.Question) bool {
	return func(question operate.Question) bool {
		if *yes {
			return true
		}
		fmt.Fprintln(cmd.ErrOrStderr(), question.Text)
		return typed(cmd, fmt.Sprintf("Type %q to go on: ", question.Word), question.Word)
	}
}
