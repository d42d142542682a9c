package conninfo

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMasked(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "",
		"dbname=x user=password":               "dbname=x user=password",
		"passfile=/x host=h":                   "passfile=/x host=h",
		"host=h password=hunter2 user=u":       "host=h password=*** user=u",
		"password = 'hun ter2' user=u":         "password = *** user=u",
		`password='hun\'ter2' user=u`:          "password=*** user=u",
		`password=hunter\ 2 user=u`:            "password=*** user=u",
		"password='hunter2 and the rest":       "password=***",
		"password='hun'ter2' user=u":           "password=***",
		"user=u password=hun ter2 host=h":      "user=u password=***",
		"sslpassword=hunter2":                  "sslpassword=***",
		"postgres://u@h/d":                     "postgres://u@h/d",
		"postgres://u:hunter2@h/d?x=y":         "postgres://u:***@h/d?x=y",
		"postgres://u:hun@ter2@h/d":            "postgres://u:***@h/d",
		"postgres://u:hun/ter2@h/d":            "postgres://u:***@h/d",
		"postgres://u:p@h1:5432,h2:5433/d":     "postgres://u:***@h1:5432,h2:5433/d",
		"postgres://u:hunt?er2@h/d":            "postgres://***",
		"postgresql://h/d?user=u&password=p#x": "postgresql://h/d?user=u&password=***",
		"postgresql://h/d?pass%77ord=p&a=b":    "postgresql://h/d?pass%77ord=***&a=b",
		"postgres://u@h/d?application_name=x":  "postgres://u@h/d?application_name=x",
	} {
		require.Equal(t, want, Masked(text), text)
	}
}

// Whatever else is in a keyword string, a password that libpq can read is not shown.
func FuzzMasked(f *testing.F) {
	f.Add("host=h", "hunter2")
	f.Add("a='b' c", `h'u"n\`)
	f.Fuzz(func(t *testing.T, before, password string) {
		if len(password) < 4 || strings.Contains(before, password) || strings.Contains("password=***", password) {
			return
		}
		quoted := "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + "'"
		require.NotContains(t, Masked(before+" password="+quoted), password)
	})
}
