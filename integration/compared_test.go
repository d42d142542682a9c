package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// comparison is the document that sets pgapply beside the built-in subscription.
const comparison = "../docs/compared-with-native.md"

// TestDocumentsNameTestsThatExist, and examples: what README and docs say is shown by a
// test must not outlive it.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	tests := declaredTests(t)
	examples, err := loadFieldExamples(fieldDirectory)
	require.NoError(t, err)
	documents, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	require.Contains(t, documents, comparison)
	for _, document := range append(documents, "../README.md") {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w*\*?`).FindAllString(string(text), -1) {
			require.True(t, name == "TestName" || slices.ContainsFunc(tests, func(test string) bool {
				prefix, many := strings.CutSuffix(name, "*")
				return test == name || many && strings.HasPrefix(test, prefix)
			}), "%s names %s, which is not there", document, name)
		}
		for _, name := range regexp.MustCompile(`\b(OWN|EX)-\d+`).FindAllString(string(text), -1) {
			require.True(t, slices.ContainsFunc(examples, func(e *fieldExample) bool { return e.name == name }), "%s names %s, which is not there", document, name)
		}
	}
}

// TestEveryComparedLineIsShown by a test or an example.
func TestEveryComparedLineIsShown(t *testing.T) {
	text, err := os.ReadFile(comparison)
	require.NoError(t, err)
	lines := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) == 2 || strings.HasPrefix(line, "| behaviour |") {
			continue // the signs, and heads of tables
		}
		require.Len(t, cells, 5, line)
		lines++
		require.Contains(t, []string{"=", "+", "≠", "−"}, strings.TrimSpace(cells[3]), line)
		require.Regexp(t, `Test[A-Z]|OWN-|EX-`, cells[4], line)
	}
	require.Greater(t, lines, 70)
}

// declaredTests are the names of all test functions of the module.
func declaredTests(t *testing.T) []string {
	t.Helper()
	var names []string
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range declaration.FindAllStringSubmatch(string(text), -1) {
			names = append(names, match[1])
		}
		return err
	}))
	return names
}
