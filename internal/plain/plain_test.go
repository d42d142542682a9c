package plain

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		`ünï "日本" 🐘 <b>`:            `ünï "日本" 🐘 <b>`,
		"a\nok  all is well\r\tb":   "a ok  all is well  b",
		"\x1b[31mred\x00\x7f\u0085": `\x1b[31mred\x00\x7f\x85`,
		"\u202egpj.exe\u2028":       `\u202egpj.exe\u2028`,
		"\xff\xfe":                  "??",
	} {
		require.Equal(t, want, Line(text))
	}
}

func FuzzLine(f *testing.F) {
	f.Add("a\x1b\u202e\xff")
	f.Fuzz(func(t *testing.T, text string) {
		line := Line(text)
		require.True(t, utf8.ValidString(line))
		require.Equal(t, line, Line(line), "it is plain")
	})
}
