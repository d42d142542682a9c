// Command pgapply is a logical-replication subscriber for PostgreSQL.
//
// It binds flags, environment and file to the options of the packages below, and turns
// their errors into messages and exit codes. What it does is done elsewhere.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	// A reader that has gone away, as in `pgapply status | head -1`, ends the
	// output and not the replication.
	signal.Ignore(syscall.SIGPIPE)
	ctx := untilSignal(context.Background(), os.Exit, signalEcho)
	command := newRoot(runEngine)
	command.SetArgs(os.Args[1:])
	called, err := command.ExecuteContextC(ctx)
	report(os.Stderr, err, subscription(called))
	os.Exit(exitCode(err))
}

// newRoot builds the whole command. start runs the engine.
func newRoot(start starter) *cobra.Command {
	root := &cobra.Command{
		Use:   "pgapply",
		Short: "Logical replication for PostgreSQL, outside the server",
		Long: `pgapply receives the changes of a PostgreSQL publication and applies them to
another PostgreSQL server, exactly once and in commit order.

  try it         pgapply demo
  get the rights pgapply init --target URI --role ROLE
  prepare        pgapply check --source URI --target URI --publication NAME
  replicate      pgapply run --source URI --target URI --publication NAME
  look at it     pgapply status --source URI --target URI`,
		Version:       version,
		SilenceErrors: true, // main prints the error, once
		SilenceUsage:  true, // and not the usage: it would scroll the error away
		Args:          knownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError(cmd, "%w", err) })
	root.SetVersionTemplate("pgapply {{.Version}}\n")
	root.DisableFlagsInUseLine = true
	root.SuggestionsMinimumDistance = suggestionDistance
	root.AddCommand(newInit(), newRun(start), newCheck(), newStatus(), newPause(), newResume(), newSkip(), newRefresh(), newResync(), newConflicts(), newSequences(), newVerify(), newCutover(), newWait(), newCleanup(), newConfig(), newDemo(), newVersion())
	root.CompletionOptions.DisableNoDescFlag = true // which would be a setting like the others
	completeFlags(root)
	return root
}

// suggestionDistance is how many letters may be wrong in a command's name for it to
// be suggested.
const suggestionDistance = 2
