package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// The Makefile sets both with -ldflags -X. A build without it still knows its
// commit where the Go tool has stamped it.
var (
	version = "devel"
	commit  = ""
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and Go version",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			say(cmd.OutOrStdout(), fmt.Sprintf("pgapply %s\ncommit  %s\ngo      %s %s/%s\n",
				version, cmp.Or(commit, stampedCommit(), "unknown"), runtime.Version(), runtime.GOOS, runtime.GOARCH))
			return nil
		},
	}
}

// stampedCommit is the commit that the Go tool recorded, or the empty string.
func stampedCommit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	revision, modified := "", ""
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			revision = setting.Value
		case "vcs.modified":
			if setting.Value == "true" {
				modified = " with local changes"
			}
		}
	}
	if revision == "" {
		return ""
	}
	return revision + modified
}
