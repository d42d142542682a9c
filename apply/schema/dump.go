package schema

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"pgapply/internal/source"
)

// ProgramError says that pg_dump is missing, too old, or has failed.
type ProgramError struct {
	Reason string
	Hint   string
	Err    error
}

func (e *ProgramError) Error() string { return e.Reason }

// Unwrap returns the cause.
func (e *ProgramError) Unwrap() error { return e.Err }

// lockWait bounds pg_dump's wait for a table that somebody has locked exclusively.
const lockWait = 30 * time.Second

// dump returns the entries that create the objects, in the order in which they can be
// created. version is the publisher's server_version_num.
func dump(ctx context.Context, options Options, version int, objects []source.Object) ([]entry, error) {
	p, err := findProgram(ctx, options, version/10000)
	if err != nil {
		return nil, err
	}
	var entries []entry
	others := make(map[source.Object]bool)
	var relations []string
	for _, object := range objects {
		switch object.Kind {
		case source.TableObject, source.SequenceObject:
			// In double quotes a pattern stands for itself.
			relations = append(relations, "--table="+quote(object.Schema)+"."+quote(object.Name))
		case source.SchemaObject: // made without pg_dump
		default:
			others[asShown(object)] = true
		}
	}
	if len(others) > 0 {
		all, err := p.run(ctx, "--exclude-table=*")
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			if others[e.object()] {
				entries = append(entries, e)
			}
		}
	}
	if len(relations) == 0 {
		return entries, nil
	}
	tables, err := p.run(ctx, relations...)
	return append(entries, tables...), err
}

// asShown is an object as the header of its entry shows it: on one line (dumputils.c,
// sanitize_line). Two may look the same, and then both are created.
func asShown(object source.Object) source.Object {
	line := strings.NewReplacer("\n", " ", "\r", " ")
	object.Schema, object.Name = line.Replace(object.Schema), line.Replace(object.Name)
	return object
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// object is what an entry creates, in the words of package source.
func (e *entry) object() source.Object {
	o := source.Object{Schema: e.Schema, Name: e.Name}
	switch e.Type {
	case "TYPE", "SHELL TYPE", "DOMAIN":
		o.Kind = source.TypeObject
	case "FUNCTION", "PROCEDURE", "AGGREGATE":
		o.Kind = source.FunctionObject
		if arguments := strings.LastIndex(e.Name, "("); arguments >= 0 { // a name may hold others
			o.Name = e.Name[:arguments]
		}
	case "OPERATOR CLASS":
		o.Kind = source.OperatorClassObject
	case "OPERATOR FAMILY":
		o.Kind = source.OperatorFamilyObject
	default:
		o.Kind = source.ObjectKind(strings.ToLower(e.Type))
	}
	return o
}

// program is a pg_dump that can read the publisher.
type program struct {
	path  string
	major int
	// connection has no secret: the command line of a process is public.
	connection string
	password   string
	passfile   string
}

var versionLine = regexp.MustCompile(`^pg_dump \(PostgreSQL\) (\d+)`)

// findProgram finds pg_dump and looks at its version: it refuses servers that are newer.
func findProgram(ctx context.Context, options Options, major int) (*program, error) {
	name := options.Program
	if name == "" {
		name = "pg_dump"
	}
	const install = "install the PostgreSQL client programs of major %d or later here, or create the schema on the target by hand: pg_dump --schema-only | psql"
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, &ProgramError{Reason: "the schema is to be copied, and pg_dump is not on the path", Hint: fmt.Sprintf(install, major), Err: err}
	}
	said, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return nil, &ProgramError{Reason: fmt.Sprintf("%s --version: %v", path, err), Hint: fmt.Sprintf(install, major), Err: err}
	}
	found := versionLine.FindSubmatch(said)
	if found == nil {
		return nil, &ProgramError{Reason: fmt.Sprintf("%s does not say what version of pg_dump it is", path), Hint: fmt.Sprintf(install, major)}
	}
	p := &program{path: path, passfile: options.SourcePassfile}
	if p.major, err = strconv.Atoi(string(found[1])); err != nil {
		return nil, &ProgramError{Reason: fmt.Sprintf("%s does not say what version of pg_dump it is", path), Hint: fmt.Sprintf(install, major), Err: err}
	}
	if p.major < major {
		return nil, &ProgramError{Reason: fmt.Sprintf("%s is of PostgreSQL %d, and the publisher of %d: pg_dump reads no newer servers", path, p.major, major), Hint: fmt.Sprintf(install, major)}
	}
	if p.connection, p.password, err = withoutPassword(options.Source); err != nil {
		return nil, err
	}
	return p, nil
}

// run dumps definitions.
func (p *program) run(ctx context.Context, what ...string) ([]entry, error) {
	arguments := []string{
		"--schema-only", "--no-password", "--encoding=UTF8", "--no-owner", "--no-privileges", "--no-tablespaces", "--no-comments",
		"--no-security-labels", "--no-publications", "--no-subscriptions", "--lock-wait-timeout=" + strconv.FormatInt(lockWait.Milliseconds(), 10),
		"--dbname=" + p.connection,
	}
	if p.major >= 15 {
		arguments = append(arguments, "--no-table-access-method")
	}
	var out, log bytes.Buffer
	command := exec.CommandContext(ctx, p.path, append(arguments, what...)...)
	command.Env = p.environment()
	command.Stdout, command.Stderr = &out, &log
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 5 * time.Second
	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, &ProgramError{Reason: "read the schema of the publisher: " + p.complaint(log.String(), err), Hint: "pg_dump reads it as the role of --source: it must be allowed to lock and read the published tables", Err: err}
	}
	return parseDump(out.String()), nil
}

// environment is that of this process, which fills what the connection string leaves
// open as it does for our own connections, without what is ours alone.
func (p *program) environment() []string {
	list := slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "PGAPPLY_") })
	if p.password != "" {
		list = append(list, "PGPASSWORD="+p.password)
	}
	if p.passfile != "" {
		list = append(list, "PGPASSFILE="+p.passfile)
	}
	return list
}

// complaint is what pg_dump said, in one line.
func (p *program) complaint(log string, err error) string {
	said := strings.Join(strings.Fields(log), " ")
	if exit, is := errors.AsType[*exec.ExitError](err); said == "" || !is || !exit.Exited() {
		said = strings.TrimSpace(said + " " + err.Error())
	}
	if p.password != "" {
		said = strings.ReplaceAll(said, p.password, "********")
	}
	return said
}
