package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/apply"
	"pgapply/internal/conninfo"
	"pgapply/operate"
)

// connectionFlags are the flags by which every command finds a subscription.
func connectionFlags(flags *pflag.FlagSet, name, source, target, sourcePassfile, targetPassfile *string) {
	flags.StringVar(name, "name", *name, "`NAME` of the subscription, of a-z, 0-9 and _")
	flags.StringVar(source, "source", *source, "`URI` or keyword string of the publisher, as libpq takes it")
	flags.StringVar(target, "target", *target, "`URI` or keyword string of the target")
	flags.StringVar(sourcePassfile, "source-passfile", *sourcePassfile, "password `FILE` for the publisher, in the format of ~/.pgpass")
	flags.StringVar(targetPassfile, "target-passfile", *targetPassfile, "password `FILE` for the target")
}

func defaultEndpoints() operate.Endpoints {
	return operate.Endpoints{Name: apply.DefaultOptions().Name}
}

// endpoints adds the group of flags by which a command finds a subscription.
func (v *verb) endpoints(ends *operate.Endpoints) {
	v.group("Which subscription", func(flags *pflag.FlagSet) {
		connectionFlags(flags, &ends.Name, &ends.Source, &ends.Target, &ends.SourcePassfile, &ends.TargetPassfile)
	})
}

// targetGiven asks for --target. Where it were empty, the PG* variables alone would
// decide which database is meant.
func targetGiven(cmd *cobra.Command, target string) error {
	if target == "" {
		return usageError(cmd, "no target given: set --target or %s to its connection URI", variable("target"))
	}
	return nil
}

// subscription is the name that a command was called with; empty for one that has none.
func subscription(cmd *cobra.Command) string {
	if flag := cmd.Flags().Lookup("name"); flag != nil {
		return flag.Value.String()
	}
	return ""
}

// exposedText is what is said of such a flag.
func exposedText(name string) string {
	return "the command line shows a password to everyone on this machine; use a password file or " + variable(name)
}

// exposedPasswords names the flags whose value on the command line holds a
// password, which everyone on the machine can read there.
func exposedPasswords(cmd *cobra.Command) []string {
	var names []string
	for _, name := range []string{"source", "target", "primary"} {
		flag := cmd.Flags().Lookup(name)
		if flag != nil && flag.Changed && conninfo.Masked(flag.Value.String()) != flag.Value.String() {
			names = append(names, name)
		}
	}
	return names
}
