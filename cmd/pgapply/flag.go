package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// verb is a subcommand whose flags come in groups, each of which can also be given
// in the environment.
type verb struct {
	*cobra.Command
	groups []flagGroup
}

type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// newVerb makes a subcommand that takes flags only, unless it has Args of its own.
// When run is called, flags hold what the command line says, else the environment,
// else their defaults.
func newVerb(command *cobra.Command, run func(cmd *cobra.Command) error) *verb {
	v := &verb{Command: command}
	if command.Args == nil {
		command.Args = noArguments
	}
	command.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := fromEnvironment(cmd, os.LookupEnv); err != nil {
			return err
		}
		if cmd.Flags().Lookup("log-format") == nil { // otherwise the log says it
			for _, name := range unread(cmd, os.Environ()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "pgapply: warning: %s: %s\n", unreadText, name)
			}
		}
		return run(cmd)
	}
	command.SetUsageFunc(v.usage)
	return v
}

// group adds flags under a title.
func (v *verb) group(title string, define func(*pflag.FlagSet)) {
	flags := pflag.NewFlagSet(title, pflag.ContinueOnError)
	flags.SortFlags = false
	define(flags)
	v.groups = append(v.groups, flagGroup{title, flags})
	v.Flags().AddFlagSet(flags)
}

func (v *verb) usage(cmd *cobra.Command) error {
	var text strings.Builder
	fmt.Fprintf(&text, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasExample() {
		fmt.Fprintf(&text, "\nExamples:\n%s\n", cmd.Example)
	}
	out := cmd.OutOrStderr()
	example := ""
	for _, g := range v.groups {
		fmt.Fprintf(&text, "\n%s:\n%s", g.title, g.flags.FlagUsagesWrapped(width(out)))
		g.flags.VisitAll(func(flag *pflag.Flag) {
			if example == "" {
				example = flag.Name
			}
		})
	}
	fmt.Fprintf(&text, "\nEach flag can also be given in the environment: --%s is %s.\n", example, variable(example))
	_, err := io.WriteString(out, text.String())
	return err
}

// width is that of the terminal, within what reads well, or 100 elsewhere.
func width(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return 100
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 100
	}
	return min(max(columns, 60), 120)
}

// variable is the environment variable that stands in for a flag.
func variable(flag string) string {
	return "PGAPPLY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets the flags that the command line leaves open. A variable
// that is empty counts as not set. Lists are separated by commas, with quotes as in
// CSV around what contains one. Flag.Changed goes on to mean the command line.
func fromEnvironment(cmd *cobra.Command, lookup func(string) (string, bool)) error {
	var faults []error
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		value, _ := lookup(variable(flag.Name))
		if value == "" || flag.Changed || flag.Name == "help" {
			return
		}
		values := []string{value}
		if flag.Value.Type() == listType {
			fields, err := csv.NewReader(strings.NewReader(value)).Read()
			if err != nil {
				faults = append(faults, fmt.Errorf("%s is not a list separated by commas, with quotes only around a whole item", variable(flag.Name)))
				return
			}
			values = fields
		}
		for _, value := range values {
			if err := flag.Value.Set(value); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", variable(flag.Name), misfit(flag, value, err)))
			}
		}
	})
	if len(faults) > 0 {
		return usageError(cmd, "%w", errors.Join(faults...))
	}
	return nil
}

// misfit says that a flag does not take a value. The flags of this package say so
// themselves; for those of pflag it does, which shows how Go parses.
func misfit(flag *pflag.Flag, value string, err error) error {
	wants := map[string]string{
		"int":      "a whole number",
		"bool":     "one of true, false",
		"duration": "a time such as 500ms, 2s or 1m30s",
	}[flag.Value.Type()]
	if wants == "" {
		return err
	}
	return fmt.Errorf("%q is not %s", value, wants)
}

// flagError is a mistake in the flags of a command line.
func flagError(cmd *cobra.Command, err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		flag := wrong.GetFlag()
		return usageError(cmd, "--%s: %w", flag.Name, misfit(flag, wrong.GetValue(), errors.Unwrap(wrong)))
	}
	return usageError(cmd, "%w", err)
}

const unreadText = "a variable in the environment stands in for no flag"

// unread returns the PGAPPLY_ variables that no flag of any command reads. Those of
// the tests, and of what finds servers for them and the demo, are not flags.
func unread(cmd *cobra.Command, environment []string) []string {
	read := map[string]bool{"PGAPPLY_CACHE": true, "PGAPPLY_MATRIX": true, "PGAPPLY_FIELD_EXAMPLES": true}
	var look func(*cobra.Command)
	look = func(command *cobra.Command) {
		command.Flags().VisitAll(func(flag *pflag.Flag) { read[variable(flag.Name)] = true })
		for _, sub := range command.Commands() {
			look(sub)
		}
	}
	look(cmd.Root())
	var names []string
	for _, setting := range environment {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasPrefix(name, "PGAPPLY_") && !read[name] &&
			!strings.HasPrefix(name, "PGAPPLY_TEST_") && !strings.HasPrefix(name, "PGAPPLY_PG_DIR_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// listType is how pflag calls a repeatable string.
const listType = "stringArray"
