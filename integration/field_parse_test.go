package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The format of testdata/field, which its README.md explains: text to structs.
// field_player_test.go plays them.

// fieldExample is one section of a file.
type fieldExample struct {
	name, title string
	file        string
	line        int
	// variants to play one after the other; none means once.
	variants []string
	// limit is the time for one variant, and stopLimit that for each ERRSTOP.
	limit, stopLimit time.Duration
	// encodings of the databases by end, where they are not UTF8.
	encodings map[string]string
	items     []fieldItem
}

// fieldItem is a block of SQL, what is expected of the block above, or a step.
// Exactly one of the three is set.
type fieldItem struct {
	line   int
	only   []string // variants; none means all
	block  *fieldBlock
	expect *string
	step   *fieldStep
}

// fieldBlock is SQL to run.
type fieldBlock struct {
	end        string // both, pub, tgt or check
	session    string // empty for one of its own
	background bool
	statements []string
	// expect is the wanted output, each row with its newline, or nil. It is set by
	// script.
	expect *string
}

// fieldStep is a line that begins with >.
type fieldStep struct {
	verb, argument string
}

const (
	fieldDefaultLimit = 150 * time.Second
	fieldStopLimit    = 30 * time.Second
)

var (
	fieldHeading = regexp.MustCompile(`^### (\S+)\s+(.*)$`)
	fieldFence   = regexp.MustCompile("^```(sql|expect)((?: +[A-Za-z0-9_]+)*)( +&)?(?: +\\[([^\\]]*)\\])? *$")
	fieldLimit   = regexp.MustCompile(`^\[([^\]]*)\]\s*`)
	fieldVerb    = regexp.MustCompile(`^(DO [a-z0-9-]+|[A-Z]+(?: [A-Z]+)*)`)
)

// loadFieldExamples reads a file, or all files of a directory that end in .md.
func loadFieldExamples(path string) ([]*fieldExample, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	files := []string{path}
	if info.IsDir() {
		if files, err = filepath.Glob(filepath.Join(path, "*.md")); err != nil {
			return nil, err
		}
	}
	var examples []*fieldExample
	seen := make(map[string]string)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found, err := parseFieldExamples(filepath.Base(file), string(text))
		if err != nil {
			return nil, err
		}
		for _, example := range found {
			if other, twice := seen[example.name]; twice {
				return nil, fmt.Errorf("%s and %s have an example %s", other, example.file, example.name)
			}
			seen[example.name] = example.file
		}
		examples = append(examples, found...)
	}
	if len(examples) == 0 {
		return nil, fmt.Errorf("no example in %s", path)
	}
	return examples, nil
}

// parseFieldExamples returns the examples of a file: its sections of the third
// level. What is not in one of them, and prose, is for people.
func parseFieldExamples(file, text string) ([]*fieldExample, error) {
	p := fieldParser{file: file, lines: strings.Split(text, "\n")}
	for p.at < len(p.lines) {
		if err := p.next(); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, p.at, err)
		}
	}
	for _, example := range p.examples {
		if err := example.check(); err != nil {
			return nil, err
		}
	}
	return p.examples, nil
}

// fieldParser walks through the lines of a file.
type fieldParser struct {
	file     string
	lines    []string
	at       int // lines that were read
	example  *fieldExample
	examples []*fieldExample
}

// next reads a line, and with the first of a block the whole block.
func (p *fieldParser) next() error {
	line := strings.TrimRight(p.lines[p.at], " \r")
	p.at++
	if heading := fieldHeading.FindStringSubmatch(line); heading != nil {
		p.example = &fieldExample{
			name: heading[1], title: heading[2], file: p.file, line: p.at,
			limit: fieldDefaultLimit, stopLimit: fieldStopLimit, encodings: make(map[string]string),
		}
		p.examples = append(p.examples, p.example)
		return nil
	}
	if strings.HasPrefix(line, "# ") || strings.HasPrefix(line, "## ") || line == "---" {
		p.example = nil
	}
	if p.example == nil {
		return nil
	}
	switch {
	case strings.HasPrefix(line, "```"):
		return p.block(line)
	case strings.HasPrefix(line, ">"):
		return p.step(strings.TrimSpace(line[1:]))
	case strings.HasPrefix(line, "Variants:"):
		p.example.variants = fieldList(line[len("Variants:"):], "|")
	case strings.HasPrefix(line, "Setup:"):
		return p.example.setUp(line[len("Setup:"):])
	}
	return nil
}

func fieldList(text, separator string) []string {
	var list []string
	for word := range strings.SplitSeq(text, separator) {
		if word = strings.TrimSpace(word); word != "" {
			list = append(list, word)
		}
	}
	return list
}

func (e *fieldExample) setUp(text string) error {
	for _, setting := range fieldList(text, ",") {
		name, value, _ := strings.Cut(setting, "=")
		switch name {
		case "limit":
			seconds, err := strconv.Atoi(value)
			if err != nil || seconds <= 0 {
				return fmt.Errorf("limit=%s is not a number of seconds", value)
			}
			e.limit = time.Duration(seconds) * time.Second
		case "pub.encoding", "tgt.encoding":
			e.encodings[strings.TrimSuffix(name, ".encoding")] = value
		default:
			return fmt.Errorf("Setup knows no %q", setting)
		}
	}
	return nil
}

func (p *fieldParser) block(line string) error {
	item := fieldItem{line: p.at}
	fence := fieldFence.FindStringSubmatch(line)
	if fence == nil {
		return fmt.Errorf("a block can be ```sql END [SESSION [&]] or ```expect, each with [VARIANT, ...] behind it: %s", line)
	}
	item.only = fieldList(fence[4], ",")
	var text strings.Builder
	for {
		if p.at == len(p.lines) {
			return errors.New("the last block does not end")
		}
		line := strings.TrimSuffix(p.lines[p.at], "\r")
		p.at++
		if line == "```" {
			break
		}
		text.WriteString(line + "\n")
	}
	words := strings.Fields(fence[2])
	if fence[1] == "expect" {
		if len(words) > 0 || fence[3] != "" {
			return fmt.Errorf("expect takes nothing but variants: %s", line)
		}
		expect := text.String()
		item.expect = &expect
		p.example.items = append(p.example.items, item)
		return nil
	}
	block, err := newFieldBlock(words, fence[3] != "", text.String())
	item.block = block
	p.example.items = append(p.example.items, item)
	return err
}

func newFieldBlock(words []string, background bool, text string) (*fieldBlock, error) {
	block := &fieldBlock{background: background}
	if len(words) > 0 {
		block.end = words[0]
	}
	if len(words) > 1 {
		block.session = words[1]
	}
	switch {
	case !slices.Contains([]string{"both", "pub", "tgt", "check"}, block.end):
		return nil, fmt.Errorf("SQL runs on both, pub, tgt or check, not on %q", block.end)
	case len(words) > 2:
		return nil, fmt.Errorf("one session name is enough: %q", words[1:])
	case block.session != "" && block.end != "pub" && block.end != "tgt":
		return nil, fmt.Errorf("a named session belongs to pub or tgt, not to %q", block.end)
	case block.background && block.session == "":
		return nil, errors.New("a block in the background needs a session name, for WAIT")
	}
	var err error
	if block.statements, err = splitStatements(text); err != nil {
		return nil, err
	}
	if len(block.statements) == 0 {
		return nil, errors.New("a block without a statement")
	}
	return block, nil
}

// step reads `[VARIANT, ...] VERB(ARGUMENT): explanation`.
func (p *fieldParser) step(text string) error {
	item := fieldItem{line: p.at}
	if limit := fieldLimit.FindStringSubmatch(text); limit != nil {
		item.only = fieldList(limit[1], ",")
		text = text[len(limit[0]):]
	}
	verb := fieldVerb.FindString(text)
	if verb == "" {
		return fmt.Errorf("a step is VERB(ARGUMENT): explanation, not %q", text)
	}
	item.step = &fieldStep{verb: verb}
	rest := text[len(verb):]
	if strings.HasPrefix(rest, "(") {
		length := closingParenthesis(rest)
		if length < 0 {
			return fmt.Errorf("the parenthesis behind %s does not close", verb)
		}
		item.step.argument, rest = rest[1:length], rest[length+1:]
	}
	if rest = strings.TrimSpace(rest); rest != "" && rest[0] != ':' {
		return fmt.Errorf("%q behind %s explains nothing: there is no colon before it", rest, verb)
	}
	p.example.items = append(p.example.items, item)
	return nil
}

// closingParenthesis finds the partner of the first character. One behind a
// backslash, as in a pattern, does not count.
func closingParenthesis(text string) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// check finds what no variant could play.
func (e *fieldExample) check() error {
	for _, item := range e.items {
		for _, variant := range item.only {
			if !slices.Contains(e.variants, variant) {
				return fmt.Errorf("%s:%d: %s has no variant %q", e.file, item.line, e.name, variant)
			}
		}
	}
	for _, variant := range e.plays() {
		if _, err := e.script(variant); err != nil {
			return err
		}
	}
	return nil
}

// plays are the variants, or one without a name.
func (e *fieldExample) plays() []string {
	if len(e.variants) == 0 {
		return []string{""}
	}
	return e.variants
}

// script returns what to do for a variant: blocks, which know what is expected of
// them, and steps.
func (e *fieldExample) script(variant string) ([]fieldItem, error) {
	var script []fieldItem
	for _, item := range e.items {
		if len(item.only) > 0 && !slices.Contains(item.only, variant) {
			continue
		}
		if item.expect == nil {
			if item.block != nil {
				own := *item.block
				item.block = &own
			}
			script = append(script, item)
			continue
		}
		if len(script) == 0 || script[len(script)-1].block == nil {
			return nil, fmt.Errorf("%s:%d: expect without a block right above it", e.file, item.line)
		}
		switch block := script[len(script)-1].block; {
		case block.end != "tgt" && block.end != "check":
			return nil, fmt.Errorf("%s:%d: expect says what the target prints, and the block above does not run there alone", e.file, item.line)
		case block.background:
			return nil, fmt.Errorf("%s:%d: expect cannot wait for a block in the background", e.file, item.line)
		case block.expect != nil:
			return nil, fmt.Errorf("%s:%d: a second expect for one block", e.file, item.line)
		default:
			block.expect = item.expect
		}
	}
	return script, nil
}

// fieldDuration reads "60 s", "5s" or "300 ms".
func fieldDuration(text string) (time.Duration, error) {
	return time.ParseDuration(strings.ReplaceAll(strings.TrimSpace(text), " ", ""))
}
