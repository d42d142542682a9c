package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/internal/lsn"
	"pgapply/operate"
)

func newWait() *cobra.Command {
	ends, goal, patience, asJSON := defaultEndpoints(), operate.Goal{}, time.Minute, false
	v := newVerb(&cobra.Command{
		Use:   "wait",
		Short: "Wait until a subscription is ready, or has applied a position",
		Long: `For scripts. It waits until
  --for ready     a runner streams, without an error, and every table takes part
  --for LSN       what committed on the publisher before that position is committed on
                  the target, in every table
  --for current   the same of the publisher's position when the wait begins (--source)

It also waits for what is not there yet: a server that starts, the first runner, one
that is paused. For a position that is applied already no runner is needed.

Exit codes: 0 it is so. When the time is up: 3 no runner lives, so that more patience
is in vain, 4 the publisher and 5 the target cannot be asked, 1 anything else; the
message says what is missing.`,
		Example: `  pgapply run --publication accounts & pgapply wait --for ready --timeout 2h
  pgapply wait --for current && psql "$PGAPPLY_TARGET" -f report.sql`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, ends.Target); err != nil {
			return err
		}
		if goal.Current && ends.Source == "" {
			return usageError(cmd, "no publisher given, whose position --for current is about: set --source or %s", variable("source"))
		}
		if patience < 0 {
			return usageError(cmd, "--timeout %s is less than nothing: 0 waits for ever", patience)
		}
		result, err := operate.Wait(cmd.Context(), ends, goal, patience)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), result)
		}
		say(cmd.OutOrStdout(), result.Text())
		return nil
	})
	v.endpoints(&ends)
	v.group("What to wait for", func(flags *pflag.FlagSet) {
		flags.Var(waitGoal{&goal}, "for", "`WHAT`: ready, current, or a position such as 16/B374D848")
		flags.DurationVar(&patience, "timeout", patience, "longest `TIME` to wait; 0 for ever")
	})
	v.group("Output", func(flags *pflag.FlagSet) { jsonFlag(flags, &asJSON) })
	return v.Command
}

// waitGoal is the flag for what to wait for.
type waitGoal struct{ goal *operate.Goal }

func (w waitGoal) Type() string { return "ready|current|LSN" }

func (w waitGoal) String() string {
	switch {
	case w.goal == nil:
		return ""
	case w.goal.Current:
		return "current"
	case w.goal.Position != 0:
		return w.goal.Position.String()
	}
	return "ready"
}

// Set reads a word or a position.
func (w waitGoal) Set(text string) error {
	switch text {
	case "ready":
		*w.goal = operate.Goal{}
		return nil
	case "current":
		*w.goal = operate.Goal{Current: true}
		return nil
	}
	position, err := lsn.Parse(text)
	if err != nil || position == 0 {
		return fmt.Errorf("%q is none of ready, current, or a position such as 16/B374D848", text)
	}
	*w.goal = operate.Goal{Position: position}
	return nil
}
