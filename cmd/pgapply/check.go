package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/apply"
	"pgapply/operate"
)

func newCheck() *cobra.Command {
	options, asJSON := apply.DefaultOptions(), false
	log := defaultLogOptions("info")
	v := newVerb(&cobra.Command{
		Use:   "check",
		Short: "Say whether run would work, and what to do where it would not",
		Long: `Looks at both ends as run with the same flags would find them, and changes nothing:
versions, settings, rights, published tables against those of the target, slot and
state. Each finding is ok, a warning or an error, and names its remedy. Without
--publication those are checked that the subscription has. Exits 3 on an error.`,
		Example: `  pgapply check --publication accounts
  pgapply check --json | jq '.findings[] | select(.level != "ok")'`,
	}, func(cmd *cobra.Command) error {
		logger, err := log.logger(cmd.ErrOrStderr(), options.Name)
		if err != nil {
			return &apply.Error{Class: apply.Configuration, Err: errors.Join(err, options.Validate())}
		}
		warnAboutPasswords(logger, exposedPasswords(cmd))
		warnAboutVariables(logger, unread(cmd, os.Environ()))
		checkup, err := operate.Check(cmd.Context(), options)
		if err != nil {
			return err
		}
		if !asJSON {
			say(cmd.OutOrStdout(), checkup.Text())
		} else if err := printJSON(cmd.OutOrStdout(), checkup); err != nil {
			return err
		}
		return checkup.Err()
	})
	v.engineFlags(&options)
	v.group("Output", func(flags *pflag.FlagSet) { jsonFlag(flags, &asJSON) })
	v.group("Logs", log.flags)
	v.validate = options.Validate
	return v.Command
}
