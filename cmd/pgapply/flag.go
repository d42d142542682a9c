package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"pgapply/internal/config"
)

// verb is a subcommand whose flags come in groups, each of which can also be given
// in the environment and in a file.
type verb struct {
	*cobra.Command
	groups []flagGroup
	// file is --config.
	file string
	// faults are those of the values on the command line; see given.
	faults []error
	// origins say where each setting came from, once run is called.
	origins map[string]config.Origin
	// validate, unless nil, looks at the options beside what is wrong with their flags.
	validate func() error
}

type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// newVerb makes a subcommand that takes flags only, unless it has Args of its own.
// When run is called, flags hold what the command line says, else the environment, else
// the file, else their defaults. Flag.Changed goes on to mean the command line.
func newVerb(command *cobra.Command, run func(cmd *cobra.Command) error) *verb {
	v := &verb{Command: command}
	if command.Args == nil {
		command.Args = noArguments
	}
	command.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := v.settle(); err != nil {
			return err
		}
		if cmd.Flags().Lookup("log-format") == nil { // otherwise the log says it
			for _, name := range unread(cmd, os.Environ()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "pgapply: warning: %s: %s\n", unreadText, name)
			}
			for _, name := range exposedPasswords(cmd) {
				fmt.Fprintf(cmd.ErrOrStderr(), "pgapply: warning: %s: --%s\n", exposedText(name), name)
			}
		}
		return run(cmd)
	}
	command.Flags().StringVar(&v.file, configFlag, "", "YAML `FILE` with settings by the names of flags; see `pgapply config sample`")
	command.SetUsageFunc(v.usage)
	command.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return v.flagError(err) })
	return v
}

// group adds flags under a title.
func (v *verb) group(title string, define func(*pflag.FlagSet)) {
	flags := pflag.NewFlagSet(title, pflag.ContinueOnError)
	flags.SortFlags = false
	define(flags)
	v.groups = append(v.groups, flagGroup{title, flags})
	v.take(flags)
}

// take has the command line set flags. A value that one of them does not take is kept for
// later, so that all that is wrong is said at once.
func (v *verb) take(flags *pflag.FlagSet) {
	flags.VisitAll(func(flag *pflag.Flag) {
		tolerant := *flag
		tolerant.Value = given{flag, v}
		v.Flags().AddFlag(&tolerant)
	})
}

// given is the value of a flag on the command line.
type given struct {
	flag *pflag.Flag
	verb *verb
}

func (g given) Type() string   { return g.flag.Value.Type() }
func (g given) String() string { return g.flag.Value.String() }

// Set never fails.
func (g given) Set(text string) error {
	if err := g.flag.Value.Set(text); err != nil {
		g.verb.faults = append(g.verb.faults, &config.Fault{Setting: g.flag.Name, Place: "--" + g.flag.Name, Err: misfit(g.flag, text, err)})
	}
	return nil
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
	fmt.Fprintf(&text, "In the file that --%s FILE or %s names it is a line `%s: VALUE`; `pgapply config sample` writes one.\n",
		configFlag, variable(configFlag), example)
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
func variable(flag string) string { return config.Variable(flag) }

// misfit says that a flag does not take a value. The flags of this package say so
// themselves; for those of pflag it does, which shows how Go parses.
func misfit(flag *pflag.Flag, value string, err error) error {
	wants := map[string]string{
		"int":      "a whole number",
		"int64":    "a whole number",
		"bool":     "one of true, false",
		"duration": "a time such as 500ms, 2s or 1m30s",
	}[flag.Value.Type()]
	if wants == "" {
		return err
	}
	return fmt.Errorf("%q is not %s", value, wants)
}

const unreadText = "a variable in the environment stands in for no flag"

// unread returns the PGAPPLY_ variables that no flag of any command reads. Those of
// the tests, and of what finds servers for them and the demo, are not flags.
func unread(cmd *cobra.Command, environment []string) []string {
	read := map[string]bool{tokenVariable: true, "PGAPPLY_CACHE": true, "PGAPPLY_MATRIX": true, "PGAPPLY_FIELD_EXAMPLES": true}
	eachFlag(cmd.Root(), func(flag *pflag.Flag) { read[variable(flag.Name)] = true })
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
