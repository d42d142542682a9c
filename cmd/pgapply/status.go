package main

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/operate"
)

func newStatus() *cobra.Command {
	ends := defaultEndpoints()
	asJSON, tables := false, false
	v := newVerb(&cobra.Command{
		Use:   "status",
		Short: "Show positions, lag, tables and the runner of a subscription",
		Long: `Reads what the runner has recorded on the target, and what the publisher says
about the slot where --source is given. It works while no runner lives, too, and
then says so. What needs attention comes last.

The runner records what it is doing when something in it changes, at most once a
second, and every 10 s while nothing does, as in one long transaction. It does so on
the session that also records acknowledgements, and waits for its turn there: what is
shown may be some seconds old. The heartbeat says how old.

The lag is what a runner that streams has received and not applied. While none
streams it is taken from the slot, or unknown without --source.`,
		Example: `  pgapply status --target 'postgres://bank@new.example/bank'
  pgapply status --tables
  pgapply status --json | jq .problems`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, ends.Target); err != nil {
			return err
		}
		report, err := operate.ReadStatus(cmd.Context(), ends)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), report)
		}
		if tables {
			say(cmd.OutOrStdout(), report.TablesText())
			return nil
		}
		say(cmd.OutOrStdout(), report.Text())
		return nil
	})
	v.endpoints(&ends)
	v.group("Output", func(flags *pflag.FlagSet) {
		flags.BoolVar(&tables, "tables", false, "list the tables that are not ready, with what kept them from that")
		jsonFlag(flags, &asJSON)
	})
	return v.Command
}

func jsonFlag(flags *pflag.FlagSet, asJSON *bool) {
	flags.BoolVar(asJSON, "json", false, "print JSON, whose names stay stable")
}

// say writes text for a reader who may have gone away meanwhile, which is no
// failure of the command.
func say(out io.Writer, text string) { _, _ = io.WriteString(out, text) }

func printJSON(out io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	say(out, string(text)+"\n")
	return nil
}
