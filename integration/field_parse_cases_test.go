package integration

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

const fieldSample = "# Title\n> not a step, there is no example yet\n" + `
### S-1 All of the format
Source: prose, ` + "`> CATCHUP` in it" + `.
Variants: live | dead end
Setup: limit=7, pub.encoding=LATIN1
` + "```sql both" + `
CREATE TABLE t(a int); -- a comment
CREATE TABLE u();
` + "```\n```sql pub A &\nSELECT 1;\n```" + `
> START
> [live, dead end] START(streaming=on, memory=200MiB): why
> [dead end] ERRSTOP(\(x\).*"; t 1|(a)): names (both)
>WATCH(SELECT count(*) FROM t => 0 or 99)
> DO kill-target-backends: as it says
> START AGAIN
` + "```sql tgt [live]\nSELECT 1\n```\n```expect [live]\n1\n\n```\n```sql check\nSELECT 2\n```\n```expect [live]\n2\n```\n```expect [dead end]\n```" + `
---
> CATCHUP: in no example
### S-2 Another
> STOP
`

func TestFieldParse(t *testing.T) {
	examples, err := parseFieldExamples("f.md", fieldSample)
	require.NoError(t, err)
	one, none, second := "1\n\n", "", "2\n"
	live, dead := []string{"live"}, []string{"dead end"}
	step := func(line int, only []string, verb, argument string) fieldItem {
		return fieldItem{line: line, only: only, step: &fieldStep{verb, argument}}
	}
	want := []*fieldExample{
		{
			name: "S-1", title: "All of the format", file: "f.md", line: 4,
			variants: []string{"live", "dead end"}, limit: 7 * time.Second, stopLimit: fieldStopLimit, encodings: map[string]string{"pub": "LATIN1"},
			items: []fieldItem{
				{line: 8, block: &fieldBlock{end: "both", statements: []string{"CREATE TABLE t(a int)", "CREATE TABLE u()"}}},
				{line: 12, block: &fieldBlock{end: "pub", session: "A", background: true, statements: []string{"SELECT 1"}}},
				step(15, nil, "START", ""),
				step(16, []string{"live", "dead end"}, "START", "streaming=on, memory=200MiB"),
				step(17, dead, "ERRSTOP", `\(x\).*"; t 1|(a)`),
				step(18, nil, "WATCH", "SELECT count(*) FROM t => 0 or 99"),
				step(19, nil, "DO kill-target-backends", ""),
				step(20, nil, "START AGAIN", ""),
				{line: 21, only: live, block: &fieldBlock{end: "tgt", statements: []string{"SELECT 1"}}},
				{line: 24, only: live, expect: &one},
				{line: 28, block: &fieldBlock{end: "check", statements: []string{"SELECT 2"}}},
				{line: 31, only: live, expect: &second},
				{line: 34, only: dead, expect: &none},
			},
		},
		{
			name: "S-2", title: "Another", file: "f.md", line: 38, limit: fieldDefaultLimit, stopLimit: fieldStopLimit, encodings: map[string]string{},
			items: []fieldItem{step(39, nil, "STOP", "")},
		},
	}
	require.Empty(t, cmp.Diff(want, examples, cmp.AllowUnexported(fieldExample{}, fieldItem{}, fieldBlock{}, fieldStep{})))

	script, err := examples[0].script("dead end")
	require.NoError(t, err)
	require.Len(t, script, 9)
	require.Equal(t, &none, script[8].block.expect)
	script, err = examples[0].script("live")
	require.NoError(t, err)
	require.Equal(t, &one, script[7].block.expect)
	require.Equal(t, &second, script[8].block.expect)
}

func TestFieldParseRejects(t *testing.T) {
	for text, fault := range map[string]string{
		"```sql both\nSELECT 1":                         "f.md:3: the last block does not end",
		"```text\n```":                                  "f.md:2: a block can be",
		"```sql\nSELECT 1\n```":                         `on both, pub, tgt or check, not on ""`,
		"```sql here\nSELECT 1\n```":                    `not on "here"`,
		"```sql both A\nSELECT 1\n```":                  "a named session belongs to pub or tgt",
		"```sql pub A B\nSELECT 1\n```":                 "one session name is enough",
		"```sql pub &\nSELECT 1\n```":                   "needs a session name",
		"```sql pub\n-- nothing\n```":                   "without a statement",
		"```sql pub\nSELECT '\n```":                     "line 1 of the script: a quote that is not closed",
		"```expect tgt\n```":                            "expect takes nothing but variants",
		"```expect\n1\n```":                             "f.md:2: expect without a block right above it",
		"```sql pub\nSELECT 1\n```\n```expect\n1\n```":  "expect says what the target prints",
		"```sql tgt W &\nSELECT 1\n```\n```expect\n```": "cannot wait",
		"```sql tgt [b]\nSELECT 1\n```":                 `E has no variant "b"`,
		"> [b] START":                                   `E has no variant "b"`,
		"> start":                                       "a step is",
		"> START(a":                                     "does not close",
		"> START(a) b":                                  "no colon",
		"Setup: limit=soon":                             "not a number of seconds",
		"Setup: limit=1, speed=2":                       `Setup knows no "speed=2"`,
		"```sql tgt\nSELECT 1\n```\n```expect\n```\n```expect\n```": "a second expect",
		"### E again": "",
	} {
		_, err := parseFieldExamples("f.md", "### E e\n"+text)
		if fault == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, fault, text)
	}
}

func TestFieldLoadRejects(t *testing.T) {
	directory := t.TempDir()
	_, err := loadFieldExamples(filepath.Join(directory, "absent.md"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = loadFieldExamples(directory)
	require.ErrorContains(t, err, "no example")
	for _, name := range []string{"a.md", "b.md"} {
		require.NoError(t, os.WriteFile(filepath.Join(directory, name), []byte("### E e\n> STOP\n"), 0o600))
	}
	_, err = loadFieldExamples(directory)
	require.ErrorContains(t, err, "a.md and b.md have an example E")
	examples, err := loadFieldExamples(filepath.Join(directory, "b.md"))
	require.NoError(t, err)
	require.Len(t, examples, 1)
}

// TestFieldSamplesParse: every file that comes with the tests can be read.
func TestFieldSamplesParse(t *testing.T) {
	examples, err := loadFieldExamples(fieldDirectory)
	require.NoError(t, err)
	for _, example := range examples {
		require.NotEmpty(t, example.items, example.name)
	}
}
