package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// board takes settings and remembers what they were set to.
type board map[string][]string

func (b board) setting(name string, change ...func(*Setting)) Setting {
	s := Setting{Name: name, Set: func(text string) error {
		b[name] = append(b[name], text)
		return nil
	}}
	for _, c := range change {
		c(&s)
	}
	return s
}

func list(s *Setting)   { s.List = true }
func paired(s *Setting) { s.List, s.Pairs = true, true }
func given(s *Setting)  { s.Given = true }

func number(s *Setting) {
	set := s.Set
	s.Set = func(text string) error {
		if _, err := strconv.Atoi(text); err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		return set(text)
	}
}

func messages(faults []error) []string {
	var list []string
	for _, fault := range faults {
		list = append(list, fault.Error())
	}
	return list
}

func variables(environment map[string]string) Variables {
	return func(name string) (string, bool) { text, is := environment[name]; return text, is }
}

func TestTheFirstPlaceCounts(t *testing.T) {
	b := make(board)
	file, faults := Parse("f.yaml", []byte("one: 1\ntwo: 2\nthree: 3\nlist:\n  - a\n  - b, c\nempty: []\n"), Names{Known: []string{"one", "two", "three", "list", "empty"}})
	require.Empty(t, faults)
	environment := variables(map[string]string{"PGAPPLY_ONE": "x", "PGAPPLY_TWO": "y", "PGAPPLY_THREE": "", "PGAPPLY_THE_LIST": `p,"q, r"`})
	origins, faults := Resolve([]Setting{
		b.setting("one", given), b.setting("two"), b.setting("three"), b.setting("four"), b.setting("list", list), b.setting("the-list", list), b.setting("empty", list),
	}, environment, file)
	require.Empty(t, faults)
	require.Equal(t, board{"two": {"y"}, "three": {"3"}, "list": {"a", "b, c"}, "the-list": {"p", "q, r"}}, b)
	require.Equal(t, map[string]Origin{
		"one": {Kind: Flag}, "two": {Environment, "PGAPPLY_TWO"}, "three": {InFile, "f.yaml:3"}, "four": {Kind: Default},
		"list": {InFile, "f.yaml:5"}, "the-list": {Environment, "PGAPPLY_THE_LIST"}, "empty": {Kind: InFile},
	}, origins)
}

func TestPairsMayBeAMapping(t *testing.T) {
	b := make(board)
	file, faults := Parse("f", []byte(`
base: &orders {a: keep, b: error}
on-conflict:
  a: apply
  "public.a, b": *orders
`), Names{Known: []string{"base", "on-conflict"}})
	require.Empty(t, faults)
	_, faults = Resolve([]Setting{b.setting("on-conflict", paired)}, file)
	require.Empty(t, faults)
	require.Equal(t, []string{"a=apply", "public.a, b:a=keep", "public.a, b:b=error"}, b["on-conflict"])
}

// Everything that is wrong is said, with its line.
func TestFaults(t *testing.T) {
	const text = `workers: many
worker: 4
max_group_rows: 5
publication: shop
name: [a]
name: b
slot:
binary: {x: y}
list: [a, [b], ]
on-conflict:
  a: [b]
  c: {d: {e: f}, g: h}
  i: j
  i: k
"on-conflcit": 4
yes: true
unlike-anything: 1
[a]: b
`
	b := make(board)
	known := []string{"workers", "max-group-rows", "publication", "name", "slot", "binary", "list", "on-conflict", "of-another-command"}
	file, faults := Parse("f.yaml", []byte(text), Names{Known: known, Refused: map[string]string{"yes": "it confirms"}})
	_, more := Resolve([]Setting{
		b.setting("workers", number), b.setting("max-group-rows", number), b.setting("publication", list), b.setting("name"), b.setting("slot"),
		b.setting("binary"), b.setting("list", list), b.setting("on-conflict", paired), b.setting("broken", list),
	}, variables(map[string]string{"PGAPPLY_MAX_GROUP_ROWS": "x", "PGAPPLY_BROKEN": `"a`}), file)
	require.Equal(t, []string{
		`f.yaml:2: unknown setting "worker": did you mean workers?`,
		`f.yaml:3: unknown setting "max_group_rows": did you mean max-group-rows?`,
		`f.yaml:6: name is set a second time, after line 5`,
		`f.yaml:15: unknown setting "on-conflcit": did you mean on-conflict?`,
		`f.yaml:16: yes does not belong into a file: it confirms`,
		`f.yaml:17: unknown setting "unlike-anything"`,
		`f.yaml:18: a setting's name is wanted here, not a list`,
	}, messages(faults))
	require.Equal(t, []string{
		`f.yaml:1: workers: "many" is not a whole number`,
		`PGAPPLY_MAX_GROUP_ROWS: "x" is not a whole number`,
		"f.yaml:4: publication: a list is wanted, not a single value: write `publication: [VALUE]`, or a line `- VALUE` for each",
		`f.yaml:5: name: one value is wanted, not a list`,
		`f.yaml:7: slot: it has no value: give one, or remove the line`,
		`f.yaml:8: binary: one value is wanted, not a mapping`,
		`f.yaml:9: list: each item is a single value, not a list`,
		`f.yaml:11: on-conflict: a value or a mapping is wanted for a, not a list`,
		`f.yaml:12: on-conflict: a value is wanted for d, not a mapping`,
		`f.yaml:14: on-conflict: i is set a second time, after line 13`,
		`PGAPPLY_BROKEN: it is not a list separated by commas, with quotes only around a whole item`,
	}, messages(more))
	for _, fault := range more {
		_, typed := errors.AsType[*Fault](fault)
		require.True(t, typed, fault)
	}
	require.Equal(t, []string{"a"}, b["list"])
}

func TestTextsThatAreNoFile(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "",
		"# nothing\n":          "",
		"---\n...\n":           "",
		"a: b\n---\nc: d\n":    "f:2: a second document begins here: a configuration file has one",
		"- a\n":                "f:1: this is a list: a configuration file has lines such as `workers: 4`",
		"name: x\n  y: z\n":    "f:2: mapping values are not allowed in this context",
		"name: \"x\n":          "f:2: found unexpected end of stream",
		"name: *nobody\n":      "f: unknown anchor 'nobody' referenced",
		"name: x\n\tslot: y\n": "f:2: found a tab character that violates indentation",
	} {
		_, faults := Parse("f", []byte(text), Names{Known: []string{"a", "name"}})
		require.Equal(t, want, strings.Join(messages(faults), "\n"), text)
	}
	_, faults := Read(filepath.Join(t.TempDir(), "missing"), Names{})
	require.Len(t, faults, 1)
	require.ErrorIs(t, faults[0], os.ErrNotExist)
}

func TestNearest(t *testing.T) {
	known := []string{"workers", "slot", "max-group-rows", "max-group-age", "publication"}
	for name, want := range map[string]string{
		"wokers": "workers", "--Workers": "workers", "max_group_row": "max-group-rows", "maxgroupage": "max-group-age", "publications": "publication",
		"slots": "slot", "x": "", "entirely-different": "",
	} {
		require.Equal(t, want, Nearest(name, known), name)
	}
}

// A sample sets nothing. Without its comment signs it sets every setting to its default.
func TestSampleCanBeRead(t *testing.T) {
	settings := []Description{
		{Name: "plain", Usage: "what it does", Default: "any"},
		{Name: "hostile", Usage: strings.Repeat("word ", 40), Default: `a: "b" # c`},
		{Name: "empty", Default: ""},
		{Name: "word", Default: "off"},
		{Name: "many", List: true},
	}
	text := Sample("Head\n  kept: as it is\n\nof it", []Section{{"First", settings[:2]}, {"Second", settings[2:]}})
	require.Contains(t, text, "#   kept: as it is\n")
	names := Names{Known: []string{"plain", "hostile", "empty", "word", "many"}}
	file, faults := Parse("f", []byte(text), names)
	require.Empty(t, faults)
	require.Empty(t, file.entries)

	lines := strings.Split(text, "\n")
	for i, line := range lines {
		require.LessOrEqual(t, len(line), sampleWidth)
		if !strings.HasPrefix(line, "# ") {
			lines[i] = strings.TrimPrefix(line, "#")
		}
	}
	file, faults = Parse("f", []byte(strings.Join(lines, "\n")), names)
	require.Empty(t, faults, text)
	for _, description := range settings {
		setting := Setting{Name: description.Name, List: description.List}
		values, found, err := file.Lookup(&setting)
		require.NoError(t, err)
		require.True(t, found)
		if description.List {
			require.Empty(t, values)
			continue
		}
		require.Equal(t, description.Default, values[0].Text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("workers: 4\nlist: [a]\non-conflict: {a: b, c: {d: e}}\n")
	f.Add("&a workers: *a\n<<: {b: c}\n? [x]\n: y\n")
	f.Fuzz(func(t *testing.T, text string) {
		names := Names{Known: []string{"workers", "list", "on-conflict"}}
		file, _ := Parse("f", []byte(text), names)
		b := make(board)
		origins, _ := Resolve([]Setting{b.setting("workers"), b.setting("list", list), b.setting("on-conflict", paired)}, file)
		require.LessOrEqual(t, len(b["workers"]), 1)
		for name := range b {
			require.True(t, slices.Contains(names.Known, name))
			require.Equal(t, InFile, origins[name].Kind)
		}
	})
}
