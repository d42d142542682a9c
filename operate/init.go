package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/apply"
	"pgapply/apply/privilege"
	"pgapply/apply/state"
	"pgapply/internal/plain"
	"pgapply/internal/source"
)

// InitOptions say whom to grant what.
type InitOptions struct {
	Endpoints
	// Role is the one that will apply.
	Role string
	// Publications name the tables, or Tables, as schema.table, and Schemas do.
	Publications, Tables, Schemas []string
	// CopySchema also grants what creates tables.
	CopySchema bool
	// Print plans, and executes nothing.
	Print bool
}

// Initialization is what an administrator has to execute, or has executed.
type Initialization struct {
	Role, Database string
	// Superuser: there is nothing to grant to one.
	Superuser bool
	// Steps on the target, in order, as SQL; Executed tells that they are done.
	Steps    []string
	Executed bool
	// Missing are tables that the target does not have, so that nothing can be granted.
	Missing []string
	// Publisher are the steps there, for the role of --source; Unasked is why it could not
	// be asked.
	Publisher []string
	Unasked   error
	// asked: there was a publisher to ask.
	asked bool
}

// Init grants a role on the target what `run` needs and it lacks, and makes schema pgapply,
// in one transaction; or plans that. It may be run over and over.
func Init(ctx context.Context, options InitOptions) (*Initialization, error) {
	target, err := options.openTarget(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	i := &Initialization{}
	published, err := i.tables(ctx, target, options)
	if err != nil {
		return nil, err
	}
	if err := i.plan(ctx, target, published, options); err != nil {
		return nil, err
	}
	if len(i.Steps) == 0 || options.Print {
		return i, nil
	}
	if err := target.writable(); err != nil {
		return nil, err
	}
	err = pgx.BeginFunc(ctx, target.conn, func(tx pgx.Tx) error {
		for _, step := range i.Steps {
			if _, err := tx.Exec(ctx, step, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("%s: %w", firstLine(step), err)
			}
		}
		// Who may grant nothing of what is asked for is told so by a mere warning.
		left := &Initialization{}
		if err := left.plan(ctx, target, published, options); err != nil || len(left.Steps) == 0 {
			return err
		}
		return &notGrantedError{left.Steps}
	})
	if err != nil {
		return nil, initError(err, target.server.Role, options.Role)
	}
	i.Executed = true
	return i, nil
}

// notGrantedError says that the server has granted nothing where it was to.
type notGrantedError struct{ steps []string }

func (e *notGrantedError) Error() string {
	return "the server has not done " + firstLine(strings.Join(e.steps, "; "))
}

// initError tells an administrator what he lacks.
func initError(err error, administrator, role string) error {
	typed := apply.TargetError(err)
	if _, not := errors.AsType[*notGrantedError](err); not || typed.Class == apply.Refused {
		return refused(fmt.Sprintf("run this as a superuser, or as a role that may grant it; to make the schema the role's own one must be a member of it: GRANT %s TO %s. --print shows all of the SQL",
			privilege.Quote(role), privilege.Quote(administrator)), "nothing was granted: %w", err)
	}
	return typed
}

func firstLine(sql string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(sql), "\n")
	return line
}

// tables are those to grant, and asks the publisher what is missing there.
func (i *Initialization) tables(ctx context.Context, target *targetSession, options InitOptions) (published []source.Published, err error) {
	if options.Source != "" {
		i.asked = true
		if published, err = i.askPublisher(ctx, target.server.Encoding, options); err != nil && len(options.Publications) > 0 {
			return nil, err
		}
		i.Unasked = err
	}
	named, err := namedTables(ctx, target.conn, options)
	if err != nil {
		return nil, err
	}
	for _, table := range named {
		if !slices.ContainsFunc(published, func(p source.Published) bool { return p.Table == table }) {
			published = append(published, source.Published{Table: table, Inserts: true, Updates: true, Deletes: true, Truncates: true})
		}
	}
	return published, nil
}

// namedTables are those of --table and --schema.
func namedTables(ctx context.Context, conn *pgx.Conn, options InitOptions) (tables []source.Table, err error) {
	for _, name := range options.Tables {
		schema, table, qualified := strings.Cut(name, ".")
		if !qualified {
			return nil, &apply.Error{Class: apply.Configuration, Err: fmt.Errorf("--table %q is not of the form SCHEMA.TABLE", name)}
		}
		tables = append(tables, source.Table{Schema: schema, Name: table})
	}
	if len(options.Schemas) == 0 {
		return tables, nil
	}
	rows, err := conn.Query(ctx, `SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = ANY ($1) AND c.relkind IN ('r', 'p') ORDER BY 1, 2`, options.Schemas)
	if err == nil {
		var found []source.Table
		if found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[source.Table]); err == nil {
			return append(tables, found...), nil
		}
	}
	return nil, apply.TargetError(fmt.Errorf("list the tables of schemas: %w", err))
}

// plan lists what the role lacks on the target.
func (i *Initialization) plan(ctx context.Context, target *targetSession, published []source.Published, options InitOptions) error {
	rights, err := privilege.Look(ctx, target.conn, options.Role)
	if errors.Is(err, privilege.ErrNoRole) {
		return refused("make it first: CREATE ROLE "+privilege.Quote(options.Role)+" LOGIN", "the target has no role %q", options.Role)
	}
	if err != nil {
		return apply.TargetError(err)
	}
	i.Role, i.Database, i.Superuser = rights.Role, rights.Database, rights.Superuser
	if i.Superuser {
		return nil
	}
	i.grant(rights.ForDatabase(options.CopySchema))
	rights.MayCreate = rights.MayCreate || options.CopySchema // by what was just granted
	steps, err := state.InitSteps(ctx, target.conn, rights.Role)
	if err != nil {
		return apply.TargetError(err)
	}
	i.Steps = append(i.Steps, steps...)
	i.grant(rights.ForStamping())
	i.grant(rights.ForQuiet())
	local, err := gatherLocal(ctx, target.conn, rights.Role, true, published)
	if err != nil {
		return apply.TargetError(err)
	}
	opened, creating := map[string]bool{}, map[string]bool{}
	for p := range published {
		name := published[p].Table
		table := local[name]
		if table == nil {
			i.Missing = append(i.Missing, name.Schema+"."+name.Name)
			if options.CopySchema && !creating[name.Schema] {
				creating[name.Schema] = true
				steps, err := creatingIn(ctx, target.conn, name.Schema, rights)
				if err != nil {
					return apply.TargetError(err)
				}
				i.grant(steps)
			}
			continue
		}
		if !table.UsesSchema && !opened[name.Schema] {
			opened[name.Schema] = true
			i.grant([]privilege.Grant{privilege.On("USAGE", "SCHEMA "+privilege.Quote(name.Schema), rights.Role)})
		}
		if len(table.MissingRights) > 0 {
			i.grant([]privilege.Grant{privilege.On(strings.Join(table.MissingRights, ", "), "TABLE "+privilege.Quote(name.Schema, name.Name), rights.Role)})
		}
	}
	return nil
}

func (i *Initialization) grant(grants []privilege.Grant) {
	i.Steps = append(i.Steps, privilege.Statements(grants)...)
}

// askPublisher reads what the publications publish, and lists what the role of --source
// lacks there. A role that may not replicate may not even ask.
func (i *Initialization) askPublisher(ctx context.Context, encoding string, options InitOptions) ([]source.Published, error) {
	conn, identity, err := options.openSourceIn(ctx, encoding)
	if err != nil {
		return nil, err
	}
	defer closeSource(conn)
	if missing, err := conn.MissingPublications(ctx, options.Publications); err != nil {
		return nil, apply.SourceError(err)
	} else if len(missing) > 0 {
		return nil, refused("create it on the publisher first", "the publisher's database %q has no publication %s", identity.Database, quoted(missing))
	}
	if len(options.Publications) == 0 {
		return nil, nil
	}
	published, err := conn.Published(ctx, options.Publications)
	if err != nil {
		return nil, apply.SourceError(err)
	}
	i.Publisher, err = lackingOnPublisher(ctx, conn, published)
	return published, err
}

// lackingOnPublisher are the steps without which a copy is refused.
func lackingOnPublisher(ctx context.Context, conn *source.Conn, published []source.Published) (steps []string, err error) {
	rights, err := gatherPublishedRights(ctx, conn, published)
	if err != nil {
		return nil, apply.SourceError(err)
	}
	for i := range rights {
		lacks := &rights[i]
		if step := lacks.grantUsage(); lacks.lacksUsage && !slices.Contains(steps, step) {
			steps = append(steps, step)
		}
		if lacks.lacksSelect {
			steps = append(steps, lacks.grantSelect())
		}
		if step := lacks.bypassRowSecurity(); lacks.rowSecurity && !slices.Contains(steps, step) {
			steps = append(steps, step)
		}
	}
	return steps, nil
}

// Text is what the command says: SQL that can be executed as it is, and comments.
func (i *Initialization) Text() string {
	var text strings.Builder
	switch {
	case i.Superuser:
		fmt.Fprintf(&text, "-- role %s is a superuser: nothing to do\n", privilege.Quote(i.Role))
	case len(i.Steps) == 0:
		fmt.Fprintf(&text, "-- on the target, role %s in database %s: nothing to do\n", privilege.Quote(i.Role), privilege.Quote(i.Database))
	case i.Executed:
		fmt.Fprintf(&text, "-- on the target, role %s in database %s: done\n", privilege.Quote(i.Role), privilege.Quote(i.Database))
	default:
		fmt.Fprintf(&text, "-- on the target, as an administrator, in database %s\n", privilege.Quote(i.Database))
	}
	if len(i.Steps) > 0 && !i.Executed {
		text.WriteString("BEGIN;\n")
	}
	for _, step := range i.Steps {
		if i.Executed {
			step = firstLine(step)
		}
		text.WriteString(strings.TrimRight(strings.TrimSpace(step), ";") + ";\n")
	}
	if len(i.Steps) > 0 && !i.Executed {
		text.WriteString("COMMIT;\n")
	}
	for _, table := range i.Missing {
		fmt.Fprintf(&text, "-- table %s is not on the target yet: repeat this when it is\n", table)
	}
	switch {
	case i.Unasked != nil:
		fmt.Fprintf(&text, "-- the publisher could not be asked: %s\n", plain.Line(i.Unasked.Error()))
		text.WriteString("-- there, as an administrator, in the database of --source, for its role: ALTER ROLE ... REPLICATION, GRANT CONNECT ON DATABASE, and USAGE and SELECT for the tables\n")
	case !i.asked:
	case len(i.Publisher) == 0:
		text.WriteString("-- on the publisher, the role of --source: nothing to do\n")
	default:
		text.WriteString("-- on the publisher, as an administrator\n")
		for _, step := range i.Publisher {
			text.WriteString(step + ";\n")
		}
	}
	return text.String()
}
