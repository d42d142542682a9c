// Package plain makes of any text one line that a terminal only shows. Names, and what
// servers say, may hold line breaks, escape sequences and marks that turn the order of
// letters around: they must not look like words of ours, nor command the terminal.
//
// It does not quote for SQL, and is not for JSON, which has its own escapes.
package plain

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line is the text on one line: line breaks and tabs become spaces, and what else cannot be
// seen is spelt out, as \x1b. What is not UTF-8 becomes a question mark.
func Line(text string) string {
	if strings.IndexFunc(text, unseen) < 0 {
		return text
	}
	var line strings.Builder
	for _, r := range text {
		switch {
		case r == '\n', r == '\r', r == '\t':
			line.WriteByte(' ')
		case r == utf8.RuneError:
			line.WriteByte('?')
		case !unseen(r):
			line.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&line, `\x%02x`, r)
		default:
			fmt.Fprintf(&line, `\u%04x`, r)
		}
	}
	return line.String()
}

// unseen tells control characters, and those that only change how others are shown.
func unseen(r rune) bool {
	return unicode.IsControl(r) || r == utf8.RuneError || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}
