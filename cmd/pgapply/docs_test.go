package main

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/reference/flags.md")

const project = "../.."

// pages are the README and those of docs.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/reference/*.md"} {
		paths, err := filepath.Glob(filepath.Join(project, pattern))
		require.NoError(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			texts[strings.TrimPrefix(path, project+"/")] = string(text)
		}
	}
	require.Greater(t, len(texts), 10)
	return texts
}

var (
	inBlock   = regexp.MustCompile(`^(?:\$ )?(?:bin/)?pgapply( [a-z].*)$`)
	inText    = regexp.MustCompile("`(?:bin/)?pgapply( [a-z][^`]*)`")
	shellEnd  = regexp.MustCompile(` (?:#|\||&|&&|\|\||>|2>|2>>|;)( .*)?$`)
	shellWord = regexp.MustCompile(`'[^']*'|"[^"]*"|[^ '"]+`)
)

// commandLines are those of pgapply in the blocks and the text of a page.
func commandLines(text string) (lines []string) {
	text = regexp.MustCompile(`\\\n\s*`).ReplaceAllString(text, "")
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		code, indented := strings.CutPrefix(line, "    ")
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if fenced || indented {
			if match := inBlock.FindStringSubmatch(code); match != nil {
				lines = append(lines, match[1])
			}
			continue
		}
		for _, match := range inText.FindAllStringSubmatch(line, -1) {
			lines = append(lines, match[1])
		}
	}
	return lines
}

// TestCommandsOfTheDocs: every command line that a page shows is one that this program takes.
func TestCommandsOfTheDocs(t *testing.T) {
	seen := 0
	for page, text := range pages(t) {
		for _, line := range commandLines(text) {
			line = shellEnd.ReplaceAllString(line+" ", "")
			if strings.Contains(line, "...") {
				continue // and so on
			}
			var words []string
			for _, word := range shellWord.FindAllString(line, -1) {
				words = append(words, strings.Trim(word, `'"`))
			}
			seen++
			root := newRoot(nil)
			root.InitDefaultCompletionCmd() // else at its start
			found, rest, err := root.Find(words)
			require.NoError(t, err, "%s: pgapply%s", page, line)
			require.True(t, found.HasParent(), "%s: pgapply%s", page, line)
			err = found.ParseFlags(placeholders(rest))
			if named := (*pflag.ValueRequiredError)(nil); errors.As(err, &named) || errors.Is(err, pflag.ErrHelp) {
				continue // it is about the flag
			}
			require.NoError(t, err, "%s: pgapply%s", page, line)
			found.Flags().Visit(func(flag *pflag.Flag) {
				if value, is := flag.Value.(given); is {
					require.Empty(t, value.verb.faults, "%s: pgapply%s", page, line)
				}
			})
		}
	}
	require.Greater(t, seen, 50)
}

// placeholders gives values for those that a page names in capitals.
func placeholders(words []string) []string {
	values := map[string]string{"LSN": "1/2", "N": "1", "DURATION": "1s"}
	for i, word := range words {
		if value, is := values[word]; is {
			words[i] = value
		}
	}
	return words
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

// TestLinksOfTheDocs: what a page points to is there.
func TestLinksOfTheDocs(t *testing.T) {
	for page, text := range pages(t) {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join(project, filepath.Dir(page), match[1]))
			require.NoError(t, err, page)
		}
	}
}

// TestAlertsAreMetrics: what docs/sidecar.md would have one watch is measured.
func TestAlertsAreMetrics(t *testing.T) {
	texts := pages(t)
	names := regexp.MustCompile(`pgapply_[a-z_]+`).FindAllString(texts["docs/sidecar.md"], -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.Contains(t, texts["docs/metrics.md"], "| `"+name+"`")
	}
}

// TestTroubleshootingQuotesTheCode: each heading of docs/troubleshooting.md is a message
// that the program has, or a part of one, with ... for what differs.
func TestTroubleshootingQuotesTheCode(t *testing.T) {
	said := sayings(t)
	text := pages(t)["docs/troubleshooting.md"]
	headings := regexp.MustCompile("(?m)^### `(.*)`$").FindAllStringSubmatch(text, -1)
	require.Greater(t, len(headings), 20)
	for _, heading := range headings {
		for part := range strings.SplitSeq(heading[1], "...") {
			part = strings.Trim(part, `" `)
			require.True(t, part == "" || strings.Contains(said, part), "nothing says %q", part)
		}
	}
}

// sayings are all texts in the code of the program.
func sayings(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(project, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(gotoken.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if literal, is := node.(*ast.BasicLit); is && literal.Kind == gotoken.STRING {
				if value, err := strconv.Unquote(literal.Value); err == nil {
					all.WriteString(value + "\n")
				}
			}
			return true
		})
		return nil
	}))
	return all.String()
}

// TestReferenceOfFlags holds docs/reference/flags.md to the commands. Run it with -update
// to write the page.
func TestReferenceOfFlags(t *testing.T) {
	var text strings.Builder
	text.WriteString(`# Commands and flags

This page is made from the program, and a test holds it to that. Each flag can also be given in the environment
(` + "`--max-group-rows` as `PGAPPLY_MAX_GROUP_ROWS`" + `), and in a YAML file by its name, as the [README](../../README.md#configuration) says.
`)
	describe(&text, newRoot(nil))
	path := filepath.Join(project, "docs/reference/flags.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	}
	written, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(written), text.String(), "go test ./cmd/pgapply -run TestReferenceOfFlags -update")
}

func describe(text *strings.Builder, command *cobra.Command) {
	for _, sub := range command.Commands() {
		if !sub.IsAvailableCommand() || sub.Name() == "completion" {
			continue
		}
		if sub.HasSubCommands() {
			describe(text, sub)
			continue
		}
		fmt.Fprintf(text, "\n## %s\n\n%s.\n", sub.CommandPath(), sub.Short)
		if !sub.LocalFlags().HasAvailableFlags() {
			continue
		}
		text.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
		flags := sub.LocalFlags()
		flags.VisitAll(func(flag *pflag.Flag) {
			if flag.Name == "help" {
				return
			}
			value, usage := pflag.UnquoteUsage(flag)
			name := "--" + flag.Name
			if value != "" {
				name += " " + value
			}
			standard := flag.DefValue
			if standard == "[]" {
				standard = ""
			}
			if standard != "" {
				standard = "`" + standard + "`"
			}
			fmt.Fprintf(text, "| `%s` | %s | %s |\n", name, standard, strings.NewReplacer("|", `\|`, "\n", " ").Replace(usage))
		})
	}
}
