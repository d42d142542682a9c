package schema

import (
	"regexp"
	"slices"
	"strings"
)

// entry is one entry of a plain dump: an object, or a part of one, with the statements
// that create it.
type entry struct {
	// Type is as pg_dump says it: TABLE, FK CONSTRAINT.
	Type string
	// Schema is empty for what is in none, as schemas themselves.
	Schema string
	// Name is what pg_dump gives: of a constraint the table's and its own, of a function
	// with its arguments.
	Name string
	SQL  string
}

func (e *entry) String() string {
	if e.Schema == "" {
		return e.Type + " " + e.Name
	}
	return e.Type + " " + e.Schema + "." + e.Name
}

// omitted tells what is not created with tables: what fires or hides on its own, and
// what is no part of a table.
func (e *entry) omitted() bool {
	return slices.Contains([]string{"TRIGGER", "EVENT TRIGGER", "RULE", "POLICY", "ROW SECURITY"}, e.Type)
}

// mayExist tells whether an entry creates something with a name of its own, which is
// left alone where it exists. A part of a table cannot: the table is new.
func (e *entry) mayExist() bool {
	switch e.Type {
	case "TABLE ATTACH", "INDEX ATTACH", "CONSTRAINT", "CHECK CONSTRAINT", "FK CONSTRAINT", "DEFAULT", "INDEX", "TABLE":
		return false
	}
	return true
}

var (
	// header begins an entry (pg_backup_archiver.c, _printTocEntry). No name in it has a
	// line break.
	header = regexp.MustCompile(`^-- Name: (.*); Type: ([A-Z ]+); Schema: (.*?); Owner: .*$`)
	// passing are settings for the next entry, which come before its header.
	passing = regexp.MustCompile(`(?:SET default_[a-z_]+ = [^;\n]*;\s*)+$`)
)

// the line that ends the last entry
const dumpEnd = "-- PostgreSQL database dump complete"

// parseDump cuts a plain dump into its entries. What comes before the first is left
// out: settings of the session, and commands to psql.
func parseDump(text string) []entry {
	var entries []entry
	var current *entry
	begun := 0 // where the current entry's statements begin
	finish := func(end int) {
		if current != nil {
			sql := strings.TrimPrefix(text[begun:end], "\n--\n") // the frame of the header
			sql = strings.TrimSuffix(sql, "--\n")
			current.SQL = strings.TrimSpace(passing.ReplaceAllString(sql, ""))
			entries = append(entries, *current)
		}
		current = nil
	}
	for at := 0; at < len(text); {
		if !strings.HasPrefix(text[at:], "--") {
			at = skipToken(text, at)
			continue
		}
		line, _, _ := strings.Cut(text[at:], "\n")
		if at == 0 || text[at-1] == '\n' {
			if found := header.FindStringSubmatch(line); found != nil {
				finish(at)
				current = &entry{Name: found[1], Type: found[2], Schema: found[3]}
				if current.Schema == "-" {
					current.Schema = ""
				}
				begun = at + len(line)
			} else if line == dumpEnd {
				finish(at)
			}
		}
		at += len(line)
	}
	finish(len(text))
	return entries
}

// skipToken returns where the token at a place ends: a quoted thing or a comment as a
// whole, anything else by one byte. Strings are as pg_dump writes them, with
// standard_conforming_strings on.
func skipToken(text string, at int) int {
	switch c := text[at]; {
	case c == '"':
		return after(text, at+1, `"`) // a doubled quote begins the next token
	case c == '\'' && at > 0 && (text[at-1] == 'E' || text[at-1] == 'e') && (at == 1 || !isWord(text[at-2])):
		return skipEscaped(text, at+1)
	case c == '\'':
		return after(text, at+1, "'")
	case c == '$' && (at == 0 || !isWord(text[at-1])):
		if tag := dollarTag.FindString(text[at:]); tag != "" {
			return after(text, at+len(tag), tag)
		}
	case strings.HasPrefix(text[at:], "/*"):
		return skipComment(text, at)
	}
	return at + 1
}

var dollarTag = regexp.MustCompile(`^\$(?:[A-Za-z_\x{80}-\x{10ffff}][A-Za-z0-9_\x{80}-\x{10ffff}]*)?\$`)

func isWord(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func after(text string, at int, end string) int {
	if found := strings.Index(text[at:], end); found >= 0 {
		return at + found + len(end)
	}
	return len(text)
}

func skipEscaped(text string, at int) int {
	for ; at < len(text); at++ {
		switch text[at] {
		case '\\':
			at++
		case '\'':
			return at + 1
		}
	}
	return len(text)
}

// skipComment passes a comment, which may hold others.
func skipComment(text string, at int) int {
	depth := 0
	for at < len(text) {
		switch {
		case strings.HasPrefix(text[at:], "/*"):
			depth, at = depth+1, at+2
		case strings.HasPrefix(text[at:], "*/"):
			if depth, at = depth-1, at+2; depth == 0 {
				return at
			}
		default:
			at++
		}
	}
	return len(text)
}
