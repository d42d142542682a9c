package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// File is a configuration file: a YAML mapping from names of settings to their values.
type File struct {
	path    string
	entries map[string]entry
}

type entry struct {
	line  int
	value *yaml.Node
}

// Names say which keys a file may have.
type Names struct {
	// Known are the settings of every command: one file serves them all.
	Known []string
	// Refused are settings that do not belong into a file, with the reason.
	Refused map[string]string
}

// Read reads a file. It always returns one, with the keys that it understood.
func Read(path string, names Names) (*File, []error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return &File{path: path}, []error{fmt.Errorf("the configuration file cannot be read: %w", err)}
	}
	return Parse(path, text, names)
}

// Parse is Read for the text of a file; path is what messages call it.
func Parse(path string, text []byte, names Names) (*File, []error) {
	f := &File{path: path, entries: make(map[string]entry)}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return f, nil // nothing, or nothing but comments
	case err != nil:
		return f, []error{f.syntax(err)}
	}
	var faults []error
	switch err := decoder.Decode(&second); {
	case err == nil:
		faults = append(faults, f.fault(second.Line, "a second document begins here: a configuration file has one"))
	case !errors.Is(err, io.EOF):
		return f, []error{f.syntax(err)}
	}
	root := resolve(document.Content[0])
	switch {
	case root.Kind == yaml.ScalarNode && root.Tag == "!!null":
		return f, faults
	case root.Kind != yaml.MappingNode:
		return f, append(faults, f.fault(root.Line, "this is %s: a configuration file has lines such as `workers: 4`", kind(root)))
	}
	for key, value := range pairs(root) {
		if err := f.add(key, value, names); err != nil {
			faults = append(faults, err)
		}
	}
	return f, faults
}

// add takes a key in, unless it is wrong.
func (f *File) add(key, value *yaml.Node, names Names) error {
	name := key.Value
	if key.Kind != yaml.ScalarNode {
		return f.fault(key.Line, "a setting's name is wanted here, not %s", kind(key))
	}
	if first, twice := f.entries[name]; twice {
		return f.fault(key.Line, "%s is set a second time, after line %d", name, first.line)
	}
	f.entries[name] = entry{key.Line, resolve(value)}
	if reason := names.Refused[name]; reason != "" {
		return f.fault(key.Line, "%s does not belong into a file: %s", name, reason)
	}
	if slices.Contains(names.Known, name) {
		return nil
	}
	suggestion := ""
	if near := Nearest(name, names.Known); near != "" {
		suggestion = fmt.Sprintf(": did you mean %s?", near)
	}
	return f.fault(key.Line, "unknown setting %q%s", name, suggestion)
}

// Kind implements Source.
func (f *File) Kind() Kind { return InFile }

// Lookup implements Source.
func (f *File) Lookup(setting *Setting) ([]Value, bool, error) {
	found, is := f.entries[setting.Name]
	if !is {
		return nil, false, nil
	}
	values, err := f.values(setting, found.value)
	return values, true, err
}

func (f *File) values(setting *Setting, node *yaml.Node) ([]Value, error) {
	switch {
	case node.Kind == yaml.ScalarNode && node.Tag == "!!null":
		return nil, f.wrong(setting, node, "it has no value: give one, or remove the line")
	case !setting.List && node.Kind == yaml.ScalarNode:
		return []Value{f.value(node.Value, node)}, nil
	case !setting.List:
		return nil, f.wrong(setting, node, "one value is wanted, not %s", kind(node))
	case node.Kind == yaml.SequenceNode:
		return f.items(setting, node)
	case node.Kind == yaml.MappingNode && setting.Pairs:
		return f.pairs(setting, node)
	case setting.Pairs:
		return nil, f.wrong(setting, node, "a mapping or a list is wanted, not %s", kind(node))
	}
	return nil, f.wrong(setting, node, "a list is wanted, not %s: write `%s: [VALUE]`, or a line `- VALUE` for each", kind(node), setting.Name)
}

func (f *File) value(text string, node *yaml.Node) Value {
	return Value{text, fmt.Sprintf("%s:%d", f.path, node.Line)}
}

func (f *File) items(setting *Setting, list *yaml.Node) ([]Value, error) {
	var values []Value
	var faults []error
	for _, item := range list.Content {
		item = resolve(item)
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			faults = append(faults, f.wrong(setting, item, "each item is a single value, not %s", kind(item)))
			continue
		}
		values = append(values, f.value(item.Value, item))
	}
	return values, errors.Join(faults...)
}

// pairs flattens a mapping, and the mappings in it.
func (f *File) pairs(setting *Setting, mapping *yaml.Node) ([]Value, error) {
	var values []Value
	var faults []error
	seen := make(map[string]int)
	add := func(place string, key, value *yaml.Node) {
		if line, twice := seen[place]; twice {
			faults = append(faults, f.wrong(setting, key, "%s is set a second time, after line %d", place, line))
			return
		}
		seen[place] = key.Line
		values = append(values, f.value(place+"="+value.Value, value))
	}
	single := func(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag != "!!null" }
	for key, value := range pairs(mapping) {
		value = resolve(value)
		if single(value) {
			add(key.Value, key, value)
			continue
		}
		if value.Kind != yaml.MappingNode {
			faults = append(faults, f.wrong(setting, value, "a value or a mapping is wanted for %s, not %s", key.Value, kind(value)))
			continue
		}
		for inner, value := range pairs(value) {
			value = resolve(value)
			if !single(value) {
				faults = append(faults, f.wrong(setting, value, "a value is wanted for %s, not %s", inner.Value, kind(value)))
				continue
			}
			add(key.Value+":"+inner.Value, inner, value)
		}
	}
	return values, errors.Join(faults...)
}

func (f *File) fault(line int, format string, arguments ...any) error {
	return fmt.Errorf("%s:%d: %s", f.path, line, fmt.Sprintf(format, arguments...))
}

// wrong is a fault in the form of a setting's value.
func (f *File) wrong(setting *Setting, node *yaml.Node, format string, arguments ...any) error {
	return &Fault{setting.Name, fmt.Sprintf("%s:%d: %s", f.path, node.Line, setting.Name), fmt.Errorf(format, arguments...)}
}

var syntaxError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntax moves the line of a YAML error to where editors look for it.
func (f *File) syntax(err error) error {
	found := syntaxError.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	switch {
	case found == nil:
		return fmt.Errorf("%s: %w", f.path, err)
	case found[1] == "":
		return fmt.Errorf("%s: %s", f.path, found[2])
	}
	return fmt.Errorf("%s:%s: %s", f.path, found[1], found[2])
}

// resolve follows an alias to what it stands for.
func resolve(node *yaml.Node) *yaml.Node {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	return node
}

// pairs are the keys and values of a mapping.
func pairs(mapping *yaml.Node) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			if !yield(mapping.Content[i], mapping.Content[i+1]) {
				return
			}
		}
	}
}

// kind names what somebody has written.
func kind(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.MappingNode:
		return "a mapping"
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case node.Tag == "!!null":
		return "nothing"
	}
	return "a single value"
}
