package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/internal/config"
	"pgapply/internal/conninfo"
)

func newConfig() *cobra.Command {
	command := &cobra.Command{
		Use:   "config",
		Short: "Show the settings of run and where they come from, or write a file of them",
		Long: `A setting can be given as a flag, in the environment, or in a YAML file that --config
or PGAPPLY_CONFIG names: --max-group-rows, PGAPPLY_MAX_GROUP_ROWS, max-group-rows. In
this order the first one counts. One file serves all commands: each takes from it the
settings that it has.`,
		Args:                       knownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		DisableFlagsInUseLine:      true,
		SuggestionsMinimumDistance: suggestionDistance,
	}
	command.AddCommand(newConfigPrint(), newConfigSample())
	return command
}

func newConfigPrint() *cobra.Command {
	asJSON, run := false, runVerb(nil)
	var v *verb
	v = newVerb(&cobra.Command{
		Use:   "print",
		Short: "Print every setting of run with its value and where that comes from",
		Long: `Takes the flags of run, and prints what they, the environment and the file come to.
Secrets are masked. Nothing is connected to, and the values are not compared with each
other: pgapply check does that.`,
		Example: `  pgapply config print --config pgapply.yaml
  pgapply config print --json | jq '.[] | select(.origin != "default")'`,
	}, func(cmd *cobra.Command) error {
		shown := v.shown(run.groups)
		if asJSON {
			return printJSON(cmd.OutOrStdout(), shown)
		}
		say(cmd.OutOrStdout(), settingsText(shown))
		return nil
	})
	for _, group := range run.groups {
		v.groups = append(v.groups, group)
		v.take(group.flags)
	}
	v.group("Output", func(flags *pflag.FlagSet) { jsonFlag(flags, &asJSON) })
	return v.Command
}

// shownSetting is a setting as config print shows it. The JSON names are stable.
type shownSetting struct {
	Name string `json:"name"`
	// Value is a string, or for a list those of its items.
	Value any `json:"value"`
	// Origin is flag, environment, file or default; Where the variable, or file and line.
	Origin config.Kind `json:"origin"`
	Where  string      `json:"where,omitempty"`
}

func (v *verb) shown(groups []flagGroup) []shownSetting {
	var list []shownSetting
	for _, group := range groups {
		group.flags.VisitAll(func(flag *pflag.Flag) {
			origin := v.origins[flag.Name]
			shown := shownSetting{Name: flag.Name, Value: masked(flag), Origin: origin.Kind, Where: origin.Where}
			if items, is := flag.Value.(listed); is {
				shown.Value = append([]string{}, items.GetSlice()...)
			}
			list = append(list, shown)
		})
	}
	return list
}

// listed is the value of a repeatable flag.
type listed interface{ GetSlice() []string }

// masked is the value of a flag without what is secret in it.
func masked(flag *pflag.Flag) string {
	text := flag.Value.String()
	switch {
	case text != "" && (strings.HasSuffix(flag.Name, "token") || strings.HasSuffix(flag.Name, "password")):
		return "***"
	case flag.Name == "source" || flag.Name == "target" || flag.Name == "primary":
		return conninfo.Masked(text)
	}
	return text
}

func settingsText(list []shownSetting) string {
	widest, widestValue := 0, 0
	for _, setting := range list {
		widest = max(widest, len(setting.Name))
		widestValue = max(widestValue, min(len(setting.text()), 40)) // a longer one moves its own line only
	}
	var text strings.Builder
	for _, setting := range list {
		fmt.Fprintf(&text, "%-*s  %-*s  %s\n", widest, setting.Name, widestValue, setting.text(), cmp.Or(setting.Where, string(setting.Origin)))
	}
	return text.String()
}

func (s *shownSetting) text() string {
	if items, is := s.Value.([]string); is {
		return "[" + strings.Join(items, ", ") + "]"
	}
	return cmp.Or(fmt.Sprint(s.Value), "-")
}

func newConfigSample() *cobra.Command {
	return newVerb(&cobra.Command{
		Use:   "sample",
		Short: "Write a configuration file with all settings of run, commented out",
		Long: `Writes a YAML file that sets nothing: each setting of run stands there as a comment,
with what it does and its default. Remove the # in front of those that matter.`,
		Example: `  pgapply config sample > pgapply.yaml`,
	}, func(cmd *cobra.Command) error {
		say(cmd.OutOrStdout(), sample(runVerb(nil).groups))
		return nil
	}).Command
}

const sampleHead = `Settings of pgapply, for --config FILE or PGAPPLY_CONFIG.

The command line wins over the environment, and that over this file. An unknown name is an error. One file serves all commands; settings of others than run may stand here, too.

Keep passwords out of it: name a password file, or give PGAPPLY_SOURCE and PGAPPLY_TARGET in the environment. Policies for conflicts may be a list as of the flag, or a mapping:
  on-conflict:
    insert_exists: apply_remote
    public.orders: {insert_exists: keep_local, update_missing: error}`

func sample(groups []flagGroup) string {
	var sections []config.Section
	for _, group := range groups {
		section := config.Section{Title: group.title}
		group.flags.VisitAll(func(flag *pflag.Flag) {
			if fileRefuses()[flag.Name] != "" {
				return
			}
			_, usage := pflag.UnquoteUsage(flag)
			section.Settings = append(section.Settings, config.Description{
				Name: flag.Name, Usage: usage, Default: flag.DefValue, List: flag.Value.Type() == listType,
			})
		})
		sections = append(sections, section)
	}
	return config.Sample(sampleHead, sections)
}
