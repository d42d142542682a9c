package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"pgapply/apply"
	"pgapply/cmd/pgapply/demo"
	"pgapply/internal/plain"
	"pgapply/operate"
)

// Exit codes, beside 128 + the number of a signal. They are part of the interface:
// supervisors decide by them whether to start the process again.
const (
	exitDone          = 0
	exitOther         = 1
	exitConfiguration = 2
	exitRefused       = 3
	exitSource        = 4
	exitTarget        = 5
	exitConflict      = 6
	exitSlotLost      = 7
	exitDifferent     = 8
)

func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if _, ok := errors.AsType[*demo.DifferenceError](err); ok || operate.Different(err) {
		return exitDifferent
	}
	switch apply.ClassOf(err) {
	case apply.Configuration:
		return exitConfiguration
	case apply.Refused:
		return exitRefused
	case apply.Source:
		return exitSource
	case apply.Target:
		return exitTarget
	case apply.Conflict:
		return exitConflict
	case apply.SlotLost:
		return exitSlotLost
	case apply.Other:
	}
	return exitOther
}

// report prints an error of a command for a subscription, or for none: what happened, then
// the remedy.
func report(to io.Writer, err error, subscription string) {
	if err == nil {
		return
	}
	for what := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(to, "pgapply: %s\n", plain.Line(operate.Named(what, subscription)))
	}
	if hint := apply.HintOf(err); hint != "" {
		fmt.Fprintf(to, "hint: %s\n", plain.Line(operate.Named(hint, subscription)))
	}
}

// usageError is a mistake in how the command was called.
func usageError(cmd *cobra.Command, format string, arguments ...any) error {
	return &apply.Error{
		Class: apply.Configuration,
		Err:   fmt.Errorf(format, arguments...),
		Hint:  fmt.Sprintf("`%s --help` lists what it takes", cmd.CommandPath()),
	}
}

// knownCommand is what a command with subcommands accepts as arguments: none, since
// a subcommand would have been found.
func knownCommand(cmd *cobra.Command, arguments []string) error {
	if len(arguments) == 0 {
		return nil
	}
	err := usageError(cmd, "unknown command %q", arguments[0])
	if alike := cmd.SuggestionsFor(arguments[0]); len(alike) > 0 {
		return &apply.Error{Class: apply.Configuration, Err: err, Hint: fmt.Sprintf("did you mean `%s %s`?", cmd.CommandPath(), strings.Join(alike, "` or `"+cmd.CommandPath()+" "))}
	}
	return err
}

// noArguments is for commands that take flags only.
func noArguments(cmd *cobra.Command, arguments []string) error {
	if len(arguments) > 0 {
		return usageError(cmd, "%q is one argument too many: `%s` takes flags only", arguments[0], cmd.CommandPath())
	}
	return nil
}
