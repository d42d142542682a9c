package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/internal/lsn"
	"pgapply/operate"
)

func newSkip() *cobra.Command {
	ends, text := defaultEndpoints(), ""
	v := newVerb(&cobra.Command{
		Use:   "skip",
		Short: "Leave out the one transaction that cannot be applied",
		Long: `Makes the runner skip the transaction that finishes at a position, the one that
an apply error names, and no other. What changes it has are kept in the conflict
log: see ` + "`pgapply conflicts`" + `. A COMMIT PREPARED or ROLLBACK PREPARED has none, and
is only passed. A position that is applied already is refused.`,
		Example: `  pgapply skip --lsn 16/B374D848
  pgapply skip --lsn none   # takes it back`,
	}, func(cmd *cobra.Command) error {
		position, err := skipPosition(cmd, text)
		if err != nil {
			return err
		}
		if err := targetGiven(cmd, ends.Target); err != nil {
			return err
		}
		result, err := operate.Skip(cmd.Context(), ends, position)
		if err != nil {
			return err
		}
		say(cmd.OutOrStdout(), result.Text())
		return nil
	})
	v.endpoints(&ends)
	v.group("What to do", func(flags *pflag.FlagSet) {
		flags.StringVar(&text, "lsn", "", "`POSITION` at which the transaction finishes, or the word none")
	})
	return v.Command
}

// skipPosition reads --lsn; 0 stands for none.
func skipPosition(cmd *cobra.Command, text string) (lsn.LSN, error) {
	switch text {
	case "":
		return 0, usageError(cmd, "no transaction given: set --lsn to the position that the error names, `finished at ...`")
	case "none":
		return 0, nil
	}
	position, err := lsn.Parse(text)
	if err != nil || position == 0 {
		return 0, usageError(cmd, "--lsn %q is neither a position such as 16/B374D848 nor the word none", text)
	}
	return position, nil
}
