package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/operate"
)

func newInit() *cobra.Command {
	options := operate.InitOptions{Endpoints: defaultEndpoints()}
	v := newVerb(&cobra.Command{
		Use:   "init",
		Short: "Grant the role that will apply what it needs, and make the state",
		Long: `An administrator of the target runs this, for a role that is no superuser. It makes
schema pgapply, the role's own, and grants what run needs and the role lacks: the functions
of replication origins, session_replication_role, and the tables. --print shows the SQL
and changes nothing: anybody may do that. A second time there is nothing to do.

The tables are those that --publication has on the publisher, or those of --table and
--schema. With --source it also says, as SQL, what the role of --source lacks there; that is
never executed.`,
		Example: `  pgapply init --target "$ADMIN" --role shop --source "$SOURCE" --publication shop
  pgapply init --target "$TARGET" --role shop --schema public --print > grants.sql`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, options.Target); err != nil {
			return err
		}
		if options.Role == "" {
			return usageError(cmd, "no role given: set --role or %s to the one that `pgapply run` will have on the target", variable("role"))
		}
		if len(options.Publications) > 0 && options.Source == "" {
			return usageError(cmd, "--publication asks the publisher which tables it has: set --source or %s", variable("source"))
		}
		done, err := operate.Init(cmd.Context(), options)
		if err != nil {
			return err
		}
		say(cmd.OutOrStdout(), done.Text())
		return nil
	})
	v.endpoints(&options.Endpoints)
	v.group("What to grant", func(flags *pflag.FlagSet) {
		flags.StringVar(&options.Role, "role", "", "`ROLE` on the target that run will have")
		flags.StringArrayVar(&options.Publications, "publication", nil, "`NAME` of a publication, whose tables are granted; repeat it for several")
		flags.StringArrayVar(&options.Tables, "table", nil, "`SCHEMA.TABLE` to grant; repeat it for several")
		flags.StringArrayVar(&options.Schemas, "schema", nil, "`NAME` of a schema, all of whose tables are granted; repeat it for several")
		flags.BoolVar(&options.CopySchema, "copy-schema", false, "also what run --copy-schema needs, which creates tables")
		flags.BoolVar(&options.Print, "print", false, "print the SQL instead of executing it")
	})
	return v.Command
}
