package integration

import (
	"fmt"
	"strings"
)

// splitStatements cuts a script into the statements that psql would send for it,
// one at a time, when it reads the script from its standard input. It follows
// src/fe_utils/psqlscan.l: a semicolon ends a statement outside of quotes, dollar
// quotes, comments, parentheses and the BEGIN ATOMIC body of a function. What the
// last semicolon leaves is a statement, too.
//
// The statements come without their semicolon and without the white space and the
// comments around them. There are no meta-commands and no variables here: a
// backslash outside of quotes is an error.
func splitStatements(script string) ([]string, error) {
	places, err := placeStatements(script)
	var statements []string
	for _, place := range places {
		statements = append(statements, script[place.from:place.to])
	}
	return statements, err
}

// place is where a statement stands in its script.
type place struct{ from, to int }

func placeStatements(script string) ([]place, error) {
	s := splitter{text: script, first: -1}
	for s.at < len(s.text) {
		if err := s.token(); err != nil {
			return nil, err
		}
	}
	s.end()
	return s.places, nil
}

// splitter reads one token after the other.
type splitter struct {
	text string
	at   int // what was read ends here
	// The statement in work: from its first token to the end of its last. first is
	// negative before there is one.
	first, last int
	places      []place

	parentheses int
	// Words of the statement so far that say whether it creates a routine, and how
	// deep in BEGIN or CASE its body is.
	words []string
	begin int
}

// token reads one token, or the white space or comment in its place.
func (s *splitter) token() error {
	rest := s.text[s.at:]
	switch c := rest[0]; {
	case isSpace(c):
		s.at++
		return nil
	case strings.HasPrefix(rest, "--"):
		length := strings.IndexAny(rest, "\r\n")
		if length < 0 {
			length = len(rest)
		}
		s.at += length
		return nil
	case strings.HasPrefix(rest, "/*"):
		return s.comment()
	case c == ';' && s.parentheses == 0 && s.begin == 0:
		s.end()
		s.at++
		return nil
	case c == '\\':
		return s.fault(s.at, "a backslash: psql's own commands cannot be played")
	}
	if s.first < 0 {
		s.first = s.at
	}
	err := s.visible(rest)
	s.last = s.at
	return err
}

// visible reads a token that belongs to the statement.
func (s *splitter) visible(rest string) error {
	c := rest[0]
	switch {
	case c == '\'':
		return s.quoted(0, '\'', false)
	case c == '"':
		return s.quoted(0, '"', false)
	case (c == 'e' || c == 'E') && strings.HasPrefix(rest[1:], "'"):
		return s.quoted(1, '\'', true)
	case isLetter(c):
		length := 1
		for length < len(rest) && (isLetter(rest[length]) || isDigit(rest[length]) || rest[length] == '$') {
			length++
		}
		s.at += length
		s.word(strings.ToLower(rest[:length]))
		return nil
	case c == '$':
		if tag := dollarTag(rest); tag != "" {
			return s.until(tag, "dollar-quoted string")
		}
	case c == '(':
		s.parentheses++
	case c == ')':
		s.parentheses = max(0, s.parentheses-1)
	case isDigit(c):
		// As one token: the letter behind a number begins neither a word nor E''.
		length := 1
		for length < len(rest) && (isLetter(rest[length]) || isDigit(rest[length])) {
			length++
		}
		s.at += length
		return nil
	}
	s.at++
	return nil
}

// end ends the statement in work, if there is one.
func (s *splitter) end() {
	if s.first >= 0 {
		s.places = append(s.places, place{s.first, s.last})
	}
	s.first, s.words, s.parentheses, s.begin = -1, nil, 0, 0
}

// quoted reads a string or a quoted identifier behind a prefix. A doubled quote,
// which stands for one, reads as two that touch.
func (s *splitter) quoted(prefix int, quote byte, escapes bool) error {
	for i := s.at + prefix + 1; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '\\' && escapes:
			i++
		case c == quote:
			s.at = i + 1
			return nil
		}
	}
	return s.fault(s.at, "a quote that is not closed")
}

// until reads a string that begins and ends with the same mark.
func (s *splitter) until(mark, what string) error {
	length := strings.Index(s.text[s.at+len(mark):], mark)
	if length < 0 {
		return s.fault(s.at, "a "+what+" that is not closed")
	}
	s.at += len(mark) + length + len(mark)
	return nil
}

// comment reads a comment that may contain others.
func (s *splitter) comment() error {
	depth := 0
	for i := s.at; i+1 < len(s.text); i++ {
		switch s.text[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			s.at = i + 1
			return nil
		}
	}
	return s.fault(s.at, "a comment that is not closed")
}

// word follows psql's heuristic for bodies that are written BEGIN ATOMIC ... END:
// only a statement that begins with CREATE [OR REPLACE] FUNCTION or PROCEDURE has
// one, and CASE ends with END, too.
func (s *splitter) word(word string) {
	const enough = 4
	if len(s.words) < enough {
		s.words = append(s.words, word)
	}
	if s.parentheses > 0 || !createsRoutine(s.words) {
		return
	}
	switch {
	case word == "begin", word == "case" && s.begin > 0:
		s.begin++
	case word == "end" && s.begin > 0:
		s.begin--
	}
}

func createsRoutine(words []string) bool {
	sentence := strings.Join(words, " ") + " "
	for _, start := range []string{"create ", "create or replace "} {
		if strings.HasPrefix(sentence, start+"function ") || strings.HasPrefix(sentence, start+"procedure ") {
			return true
		}
	}
	return false
}

// dollarTag returns the mark that begins a dollar-quoted string, or nothing: $1 is
// a parameter.
func dollarTag(text string) string {
	for i := 1; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '$':
			return text[:i+1]
		case isLetter(c), isDigit(c) && i > 1:
		default:
			return ""
		}
	}
	return ""
}

func (s *splitter) fault(at int, what string) error {
	return fmt.Errorf("line %d of the script: %s", 1+strings.Count(s.text[:at], "\n"), what)
}

func isSpace(c byte) bool { return strings.IndexByte(" \t\n\r\f\v", c) >= 0 }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// isLetter tells what begins an identifier: every byte beyond ASCII does.
func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= 0x80
}
