package faultnet

import (
	"strings"
	"unicode/utf8"
)

// commands names the statements of an SQL string, in order; empty statements have
// no name and no reply. It knows quotes, dollar quotes and comments, so that a
// semicolon or a COMMIT inside one does not count.
func commands(sql string) []string {
	var names []string
	var words []string // the first words of the statement being read
	end := func() {
		if len(words) > 0 {
			names = append(names, commandOf(words))
		}
		words = nil
	}
	for sql != "" {
		switch {
		case sql[0] == ';':
			end()
			sql = sql[1:]
		case strings.HasPrefix(sql, "--"):
			_, sql, _ = strings.Cut(sql, "\n")
		case strings.HasPrefix(sql, "/*"):
			sql = afterComment(sql)
		case sql[0] == '\'':
			sql = afterQuote(sql[1:], '\'', false)
		case sql[0] == '"':
			sql = afterQuote(sql[1:], '"', false)
		case sql[0] == '$':
			sql = afterDollarQuote(sql)
		case isWordByte(sql[0]):
			n := 1
			for n < len(sql) && (isWordByte(sql[n]) || sql[n] == '$') {
				n++
			}
			word := strings.ToUpper(sql[:n])
			sql = sql[n:]
			if word == "E" && strings.HasPrefix(sql, "'") {
				sql = afterQuote(sql[1:], '\'', true)
			} else if len(words) < 2 {
				words = append(words, word)
			}
		default:
			sql = sql[1:]
		}
	}
	end()
	return names
}

// commandOf is the name of the statement that begins with these one or two words.
func commandOf(words []string) string {
	first, second := words[0], ""
	if len(words) > 1 {
		second = words[1]
	}
	switch first {
	case "END":
		first = "COMMIT"
	case "ABORT":
		first = "ROLLBACK"
	case "START":
		return "BEGIN"
	}
	switch name := first + " " + second; name {
	case "COMMIT PREPARED", "ROLLBACK PREPARED", "ROLLBACK TO", "PREPARE TRANSACTION":
		return name
	}
	return first
}

func isWordByte(c byte) bool {
	return c == '_' || c >= utf8.RuneSelf || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// afterQuote returns what follows the closing quote. A doubled quote closes one
// string and opens the next, which comes to the same.
func afterQuote(sql string, quote byte, backslash bool) string {
	for i := 0; i < len(sql); i++ {
		switch {
		case sql[i] == quote:
			return sql[i+1:]
		case backslash && sql[i] == '\\':
			i++
		}
	}
	return ""
}

func afterDollarQuote(sql string) string {
	end := strings.IndexByte(sql[1:], '$')
	if end < 0 || strings.IndexFunc(sql[1:1+end], func(r rune) bool { return r < utf8.RuneSelf && !isWordByte(byte(r)) }) >= 0 {
		return sql[1:] // a parameter such as $1, or a lone dollar
	}
	tag := sql[:end+2]
	_, after, _ := strings.Cut(sql[len(tag):], tag)
	return after
}

// afterComment returns what follows a block comment; they nest.
func afterComment(sql string) string {
	depth := 0
	for i := 0; i < len(sql); {
		switch {
		case strings.HasPrefix(sql[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(sql[i:], "*/"):
			depth--
			i += 2
			if depth == 0 {
				return sql[i:]
			}
		default:
			i++
		}
	}
	return ""
}
