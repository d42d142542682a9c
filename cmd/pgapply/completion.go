package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/conflict"
)

// choices are the words that flags take, by the flag's name, which means the same in
// every command that has it. Shells complete them; what a flag accepts is decided
// elsewhere.
func choices() map[string][]string {
	types := []string{}
	pairs := []string{}
	for _, t := range conflict.Types() {
		types = append(types, string(t))
		for _, policy := range []conflict.Policy{conflict.ApplyRemote, conflict.Error, conflict.KeepLocal, conflict.LastUpdateWins, conflict.Skip} {
			var policies conflict.Policies
			if pair := string(t) + "=" + string(policy); policies.Set(pair) == nil {
				pairs = append(pairs, pair)
			}
		}
	}
	return map[string][]string{
		"endpos":             {"current"},
		"for":                {"ready", "current"},
		"if-not-empty":       {"error", "truncate", "append"},
		"log-format":         {"console", "json"},
		"log-level":          {"debug", "info", "warn", "error"},
		"lsn":                {"none"},
		"messages":           {"none", "count", "table"},
		"missing-table":      {"error", "skip"},
		"on-conflict":        pairs,
		"on-error":           {"retry", "pause", "stop"},
		"origin":             {"any", "none"},
		"progress":           {"auto", "origin", "table"},
		"prepared":           {"commit", "rollback"},
		"repair":             {"print", "apply"},
		"sequences":          {"all", "published", "none"},
		"streaming":          {"off", "on", "parallel"},
		"synchronous-commit": {"on", "off", "local", "remote_write", "remote_apply"},
		"type":               append(types, "skipped"),
		"verify":             {"full", "sample", "none"},
	}
}

// completeFlags has shells complete the flags of a command and of those below it: words
// from choices, files and directories where they are meant, and nothing else.
func completeFlags(command *cobra.Command) {
	words := choices()
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		complete := cobra.NoFileCompletions
		switch {
		case words[flag.Name] != nil:
			complete = cobra.FixedCompletions(words[flag.Name], cobra.ShellCompDirectiveNoFileComp)
		case flag.Name == configFlag:
			complete = cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt)
		case strings.HasSuffix(flag.Name, "-dir"):
			complete = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
		case strings.HasSuffix(flag.Name, "file"):
			return // any file
		}
		// It fails only for a flag that is not there, or has it already.
		_ = command.RegisterFlagCompletionFunc(flag.Name, complete)
	})
	for _, below := range command.Commands() {
		completeFlags(below)
	}
	if command.ValidArgsFunction == nil && !slices.ContainsFunc(command.Commands(), (*cobra.Command).IsAvailableCommand) {
		command.ValidArgsFunction = cobra.NoFileCompletions
	}
}
