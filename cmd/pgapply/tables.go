package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/internal/plain"
	"pgapply/operate"
)

func newRefresh() *cobra.Command {
	ends, copyData := defaultEndpoints(), true
	v := newVerb(&cobra.Command{
		Use:   "refresh",
		Short: "Take in tables that were published since, and let go of those that are not any more",
		Long: `Compares the tables of the subscription with those that its publications have now.
New ones are copied beside the stream, which goes on with the others, and then take
part in it. Of those that are not published any more the rows stay. A runner that
lives acts on it at once, else the next one does.`,
		Example: `  pgapply refresh --source "$SOURCE" --target "$TARGET"
  pgapply refresh --copy-data=false`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, ends.Target); err != nil {
			return err
		}
		if ends.Source == "" {
			return usageError(cmd, "no publisher given: set --source or %s", variable("source"))
		}
		done, err := operate.Refresh(cmd.Context(), ends, copyData)
		if err != nil {
			return err
		}
		say(cmd.OutOrStdout(), done.Text())
		return nil
	})
	v.endpoints(&ends)
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.BoolVar(&copyData, "copy-data", copyData, "copy the new tables; false takes the target's rows for the publisher's")
	})
	return v.Command
}

func newResync() *cobra.Command {
	ends, yes := defaultEndpoints(), false
	v := newVerb(&cobra.Command{
		Use:   "resync TABLE...",
		Short: "Copy tables again, without stopping the others",
		Long: `Has tables of the subscription copied again: what the target has of them is removed
when the copy begins, and comes back with it. The stream goes on with the other tables
meanwhile. On a terminal it asks for the subscription's name; elsewhere it wants --yes.`,
		Example: `  pgapply resync public.orders --yes`,
		Args:    cobra.MinimumNArgs(1),
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, ends.Target); err != nil {
			return err
		}
		tables := cmd.Flags().Args()
		done, err := operate.Resync(cmd.Context(), ends, tables, yes)
		if err != nil && done != nil && !yes {
			fmt.Fprintf(cmd.ErrOrStderr(), "This removes the rows that the target has in %s, and copies them again\n", plain.Line(strings.Join(done.Again, ", ")))
			if !confirmed(cmd, ends.Name) {
				return err
			}
			done, err = operate.Resync(cmd.Context(), ends, tables, true)
		}
		if err != nil {
			return err
		}
		say(cmd.OutOrStdout(), done.Text())
		return nil
	})
	v.endpoints(&ends)
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.BoolVar(&yes, "yes", false, "do not ask")
	})
	return v.Command
}
