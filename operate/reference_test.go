package operate

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/json.md")

const reference = "../docs/json.md"

// TestReferenceOfJSON holds docs/json.md to what the code says: names by their tags, and
// what they mean by the comments on the fields.
func TestReferenceOfJSON(t *testing.T) {
	w := &jsonReference{comments: comments(t, ".", "verify", "../apply/state"), seen: make(map[reflect.Type]bool)}
	w.text.WriteString(`# JSON

What the commands print with ` + "`--json`" + `, and what /status serves, which is that of status. This page is made from the code, and a test holds it to that. Names are stable: some may be added, none is renamed or taken away. Times are
RFC 3339, positions as PostgreSQL writes them. What is marked as optional is left out where there is nothing to say. Each
heading names the type of an object; a type is described once.
`)
	for _, root := range []struct {
		command string
		value   any
	}{
		{"status --json", Report{}},
		{"status --all --json", Overview{}},
		{"check --json", Checkup{}},
		{"wait --json", Waiting{}},
		{"sequences --json", SequenceReport{}},
		{"verify --json", Verification{}},
		{"cutover --json", CutoverReport{}},
	} {
		fmt.Fprintf(&w.text, "\n## %s\n", root.command)
		w.object(reflect.TypeOf(root.value))
	}
	if *update {
		require.NoError(t, os.WriteFile(reference, []byte(w.text.String()), 0o644))
	}
	want, err := os.ReadFile(reference)
	require.NoError(t, err)
	require.Equal(t, string(want), w.text.String(), "go test ./operate -run TestReferenceOfJSON -update")
}

type jsonReference struct {
	text     strings.Builder
	comments map[string]string
	seen     map[reflect.Type]bool
}

// object writes a struct, and then those in it.
func (w *jsonReference) object(t reflect.Type) {
	w.seen[t] = true
	fmt.Fprintf(&w.text, "\n### %s\n\n%s\n\n| name | type | meaning |\n|---|---|---|\n", t.Name(), w.comments[typeName(t)])
	for _, part := range w.fields(t) {
		w.object(part)
	}
}

// fields writes those of a struct, and of what is embedded in it, and returns the structs
// in them that are not described yet.
func (w *jsonReference) fields(t reflect.Type) (inside []reflect.Type) {
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "-" {
			continue
		}
		kind, part := describe(field.Type)
		if field.Anonymous {
			inside = append(inside, w.fields(part)...)
			continue
		}
		if strings.Contains(options, "omitempty") {
			kind += ", optional"
		}
		fmt.Fprintf(&w.text, "| `%s` | %s | %s |\n", name, kind, inJSON(t, w.comments[typeName(t)+"."+field.Name]))
		if part != nil && !w.seen[part] {
			w.seen[part] = true
			inside = append(inside, part)
		}
	}
	return inside
}

// typeName is a type with its package, which is called as its directory.
func typeName(t reflect.Type) string { return path.Base(t.PkgPath()) + "." + t.Name() }

// inJSON writes the fields that a comment names as JSON has them.
func inJSON(t reflect.Type, comment string) string {
	return word.ReplaceAllStringFunc(comment, func(w string) string {
		if field, is := t.FieldByName(w); is {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			return "`" + name + "`"
		}
		return w
	})
}

var word = regexp.MustCompile(`\b[A-Z][A-Za-z]*\b`)

// describe names the type of a value, and returns the struct in it.
func describe(t reflect.Type) (string, reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer:
		return describe(t.Elem())
	case reflect.Slice:
		name, part := describe(t.Elem())
		return "list of " + name, part
	case reflect.Map:
		name, part := describe(t.Elem())
		return "object of " + name, part
	case reflect.Bool:
		return "boolean", nil
	case reflect.String:
		return "text", nil
	case reflect.Struct:
		if t.Name() == "Time" {
			return "time", nil
		}
		return t.Name(), t
	}
	if t.Name() == "Position" {
		return "position", nil
	}
	return "number", nil
}

// comments are those of the types and fields in some directories. One that stands above
// several fields is that of the first.
func comments(t *testing.T, directories ...string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, directory := range directories {
		files, err := filepath.Glob(directory + "/*.go")
		require.NoError(t, err)
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			require.NoError(t, err)
			for _, declared := range file.Decls {
				group, is := declared.(*ast.GenDecl)
				if !is || group.Tok != token.TYPE {
					continue
				}
				for _, spec := range group.Specs {
					declared := spec.(*ast.TypeSpec)
					structure, is := declared.Type.(*ast.StructType)
					if !is {
						continue
					}
					name := file.Name.Name + "." + declared.Name.Name
					found[name] = line(group.Doc)
					for _, field := range structure.Fields.List {
						for _, part := range field.Names {
							found[name+"."+part.Name] = line(field.Doc)
						}
					}
				}
			}
		}
	}
	return found
}

// line is a comment in one line, for a cell of a table.
func line(comment *ast.CommentGroup) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(comment.Text()), " "), "|", `\|`)
}
