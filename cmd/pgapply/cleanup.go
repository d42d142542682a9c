package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"pgapply/apply"
	"pgapply/operate"
)

func newCleanup() *cobra.Command {
	options := operate.CleanupOptions{Endpoints: operate.Endpoints{Name: apply.DefaultOptions().Name}}
	v := newVerb(&cobra.Command{
		Use:   "cleanup",
		Short: "Take a subscription away: slot, origins and state, not the rows",
		Long: `Drops the replication slot on the publisher, then the replication origins and the
state on the target. Replicated rows stay. It refuses while a runner lives.

On a terminal it shows what it would drop and asks for the subscription's name;
elsewhere it wants --yes. After a failure it can be run again.`,
		Example: `  pgapply cleanup --source "$SOURCE" --target "$TARGET" --yes`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, options.Target); err != nil {
			return err
		}
		if options.Source == "" && !options.KeepSlot {
			return usageError(cmd, "no publisher given: set --source or %s, or leave its slot with --keep-slot", variable("source"))
		}
		removal, err := operate.Cleanup(cmd.Context(), options)
		if err != nil && removal != nil && !options.Confirmed && onTerminal(cmd.InOrStdin()) {
			fmt.Fprintf(cmd.ErrOrStderr(), "This drops %s\nType the name %q to go on: ", removal.Plan(), options.Name)
			if !confirmed(cmd.InOrStdin(), options.Name) {
				return err
			}
			options.Confirmed = true
			removal, err = operate.Cleanup(cmd.Context(), options)
		}
		if removal != nil {
			for _, done := range removal.Done {
				say(cmd.OutOrStdout(), done+"\n")
			}
			for _, remains := range removal.Remains {
				say(cmd.OutOrStdout(), "remains: "+remains+"\n")
			}
		}
		return err
	})
	v.group("Which subscription", func(flags *pflag.FlagSet) {
		connectionFlags(flags, &options.Name, &options.Source, &options.Target, &options.SourcePassfile, &options.TargetPassfile)
	})
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.BoolVar(&options.KeepSlot, "keep-slot", false, "leave the publisher alone; --source is not needed then")
		flags.BoolVar(&options.Confirmed, "yes", false, "do not ask")
	})
	return v.Command
}

// onTerminal tells whether a person sits at this stream.
func onTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// confirmed reads one line and compares it.
func confirmed(in io.Reader, want string) bool {
	line, _ := bufio.NewReader(in).ReadString('\n')
	return strings.TrimSpace(line) == want
}
