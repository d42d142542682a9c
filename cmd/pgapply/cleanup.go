package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"pgapply/operate"
)

func newCleanup() *cobra.Command {
	options := operate.CleanupOptions{Endpoints: defaultEndpoints()}
	v := newVerb(&cobra.Command{
		Use:   "cleanup",
		Short: "Take a subscription away: slot, origins and state, not the rows",
		Long: `Drops the replication slot on the publisher, then the replication origins and the
state on the target. Replicated rows stay. It refuses while a runner lives, and while
the target holds prepared transactions of the subscription: --prepared says how they
end. What became of them on the publisher decides which way is right.

On a terminal it shows what it would drop and asks for the subscription's name;
elsewhere it wants --yes. After a failure it can be run again.`,
		Example: `  pgapply cleanup --source "$SOURCE" --target "$TARGET" --yes
  pgapply cleanup --prepared=rollback`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, options.Target); err != nil {
			return err
		}
		if options.Source == "" && !options.KeepSlot {
			return usageError(cmd, "no publisher given: set --source or %s, or leave its slot with --keep-slot", variable("source"))
		}
		if options.Prepared != "" && options.Prepared != operate.CommitPrepared && options.Prepared != operate.RollbackPrepared {
			return usageError(cmd, "--prepared %q is not one of %s, %s", options.Prepared, operate.CommitPrepared, operate.RollbackPrepared)
		}
		removal, err := operate.Cleanup(cmd.Context(), options)
		if err != nil && removal != nil && !options.Confirmed {
			fmt.Fprintf(cmd.ErrOrStderr(), "This drops: %s\n", removal.Plan())
			if !confirmed(cmd, options.Name) {
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
	v.endpoints(&options.Endpoints)
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.BoolVar(&options.KeepSlot, "keep-slot", false, "leave the publisher alone; --source is not needed then")
		flags.StringVar(&options.Prepared, "prepared", "", "`ACTION` for prepared transactions on the target: commit or rollback")
		flags.BoolVar(&options.Confirmed, "yes", false, "do not ask")
	})
	return v.Command
}

// onTerminal tells whether a person sits at this stream.
func onTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// confirmed lets a person on a terminal type the name of what is about to go.
func confirmed(cmd *cobra.Command, name string) bool {
	return typed(cmd, fmt.Sprintf("Type the name %q to go on: ", name), name)
}

// typed lets a person on a terminal type a word.
func typed(cmd *cobra.Command, prompt, word string) bool {
	if !onTerminal(cmd.InOrStdin()) {
		return false
	}
	fmt.Fprint(cmd.ErrOrStderr(), prompt)
	// Ctrl-C must end the question, but nothing ends a read from a terminal: the
	// reader is left behind, and the process is about to end.
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		answer <- line
	}()
	select {
	case line := <-answer:
		return strings.TrimSpace(line) == word
	case <-cmd.Context().Done():
		fmt.Fprintln(cmd.ErrOrStderr())
		return false
	}
}
