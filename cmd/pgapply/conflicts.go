package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/apply/state"
	"pgapply/operate"
)

func newConflicts() *cobra.Command {
	command := &cobra.Command{
		Use:   "conflicts",
		Short: "List, show and clear recorded conflicts",
		Long: `Every conflict is recorded on the target, in table pgapply.conflict, with what was
done about it and all the values of its rows; so are the rows of skipped transactions.`,
		Args:                       knownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		DisableFlagsInUseLine:      true,
		SuggestionsMinimumDistance: suggestionDistance,
	}
	command.AddCommand(newConflictsList(), newConflictsShow(), newConflictsClear())
	return command
}

func newConflictsList() *cobra.Command {
	ends, asJSON := defaultEndpoints(), false
	filter := state.ConflictFilter{Limit: 50}
	var since moment
	v := newVerb(&cobra.Command{
		Use:   "list",
		Short: "List conflicts, newest first, without the values of rows",
		Example: `  pgapply conflicts list --table orders --since 7d
  pgapply conflicts list --json --limit 0 | jq '.conflicts[].conflict_type'`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, ends.Target); err != nil {
			return err
		}
		if filter.Limit < 0 {
			return usageError(cmd, "--limit %d is less than nothing: 0 lists all", filter.Limit)
		}
		filter.Since = since.before(time.Now())
		list, err := operate.ListConflicts(cmd.Context(), ends, filter)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		say(cmd.OutOrStdout(), list.Text())
		return nil
	})
	v.endpoints(&ends)
	v.group("Which conflicts", func(flags *pflag.FlagSet) {
		filterFlags(flags, &filter, &since)
		flags.IntVar(&filter.Limit, "limit", filter.Limit, "the newest `N` of them; 0 for all")
	})
	v.group("Output", func(flags *pflag.FlagSet) { jsonFlag(flags, &asJSON) })
	return v.Command
}

func filterFlags(flags *pflag.FlagSet, filter *state.ConflictFilter, since *moment) {
	flags.StringVar(&filter.Table, "table", "", "those on this `TABLE`, with or without its schema")
	flags.Var(conflictType{&filter.Type}, "type", "those of this `TYPE`, such as update_missing, or skipped for rows of skipped transactions")
	flags.Var(since, "since", "those not older than a `TIME`, such as 7d or 90m, or recorded since a date or an RFC 3339 time")
}

func newConflictsShow() *cobra.Command {
	ends, asJSON := defaultEndpoints(), false
	v := newVerb(&cobra.Command{
		Use:     "show ID",
		Short:   "Show one conflict with all values of its rows",
		Example: `  pgapply conflicts show 12`,
		Args: func(cmd *cobra.Command, arguments []string) error {
			if len(arguments) != 1 {
				return usageError(cmd, "one conflict's number is wanted, and %d are given", len(arguments))
			}
			return nil
		},
	}, func(cmd *cobra.Command) error {
		id, err := strconv.ParseInt(cmd.Flags().Arg(0), 10, 64)
		if err != nil {
			return usageError(cmd, "%q is not the number of a conflict", cmd.Flags().Arg(0))
		}
		if err := targetGiven(cmd, ends.Target); err != nil {
			return err
		}
		view, err := operate.ShowConflict(cmd.Context(), ends, id)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), view)
		}
		say(cmd.OutOrStdout(), view.Text())
		return nil
	})
	v.endpoints(&ends)
	v.group("Output", func(flags *pflag.FlagSet) { jsonFlag(flags, &asJSON) })
	return v.Command
}

func newConflictsClear() *cobra.Command {
	options := operate.ClearOptions{Endpoints: defaultEndpoints()}
	var since moment
	v := newVerb(&cobra.Command{
		Use:   "clear",
		Short: "Delete recorded conflicts",
		Long: `Deletes recorded conflicts, all of the subscription unless flags pick some. Their
values may exist nowhere else. On a terminal it asks for the subscription's name;
elsewhere it wants --yes. Old ones go by themselves: see --conflict-retention of run.`,
		Example: `  pgapply conflicts clear --type update_missing --yes`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, options.Target); err != nil {
			return err
		}
		options.Filter.Since = since.before(time.Now())
		number, err := operate.ClearConflicts(cmd.Context(), options)
		if err != nil && number > 0 && !options.Confirmed {
			fmt.Fprintf(cmd.ErrOrStderr(), "This deletes recorded conflicts: %d\n", number)
			if !confirmed(cmd, options.Name) {
				return err
			}
			options.Confirmed = true
			number, err = operate.ClearConflicts(cmd.Context(), options)
		}
		switch {
		case err != nil:
			return err
		case number == 0 && options.Filter != (state.ConflictFilter{}):
			say(cmd.OutOrStdout(), "no conflicts match\n")
		default:
			say(cmd.OutOrStdout(), fmt.Sprintf("deleted recorded conflicts: %d\n", number))
		}
		return nil
	})
	v.endpoints(&options.Endpoints)
	v.group("Which conflicts", func(flags *pflag.FlagSet) { filterFlags(flags, &options.Filter, &since) })
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.BoolVar(&options.Confirmed, "yes", false, "do not ask")
	})
	return v.Command
}
