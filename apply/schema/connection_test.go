package schema

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/conninfo"
)

func TestPasswordLeavesTheConnectionString(t *testing.T) {
	for text, want := range map[string][2]string{
		"postgres://u:p%40ss@h:5433/db?sslmode=disable&connect_timeout=5": {`user='u' host='h' port='5433' dbname='db' sslmode='disable' connect_timeout='5'`, "p@ss"},
		"postgresql://u@h1:1,h2:2/db?target_session_attrs=primary":        {`user='u' host='h1,h2' port='1,2' dbname='db' target_session_attrs='primary'`, ""},
		"postgres:///db?host=/run/pg&password=s%27x&ssl=true":             {`dbname='db' host='/run/pg' sslmode='require'`, "s'x"},
		"postgres://[::1]:5432/":                                          {`host='::1' port='5432'`, ""},
		"postgres://[::1],h/":                                             {`host='::1,h'`, ""},
		"postgres://u:a@b@h/d%20b":                                        {`user='u' host='h' dbname='d b'`, "a@b"},
		`host=h password='it\'s a \\ one' dbname = 'x y' user=a\ b`:       {`host='h' dbname='x y' user='a b'`, `it's a \ one`},
		"":                         {"", ""},
		"service=shop":             {"service='shop'", ""},
		" dbname=a  \n password=b": {"dbname='a'", "b"},
	} {
		connection, password, err := withoutPassword(text)
		require.NoError(t, err, text)
		require.Equal(t, want, [2]string{connection, password}, text)
	}
	for _, text := range []string{"hunter2", "password='hunter2", "a b=hunter2", "postgres://u:hunter2%zz@h/", "host=h =hunter2", "postgres://h/?password=hunter2%"} {
		_, _, err := withoutPassword(text)
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "hunter2")
	}
	_, _, err := withoutPassword("sslpassword=hunter2")
	require.ErrorIs(t, err, errSSLPassword)
}

// What is left of a connection string means what the whole one means.
func FuzzWithoutPassword(f *testing.F) {
	f.Add("host", "user", "pass word", "d/b")
	f.Add("::1", "u'", `p\'`, "d b")
	f.Fuzz(func(t *testing.T, host, user, password, database string) {
		for _, part := range []string{host, user, password, database} {
			if part == "" || !printable(part) {
				return
			}
		}
		uri := (&url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: "localhost", RawQuery: "host=" + strings.ReplaceAll(url.QueryEscape(host), "+", "%20"), Path: "/" + database}).String()
		original, err := conninfo.Parse("publisher", uri, "", nil)
		if err != nil {
			return
		}
		connection, found, err := withoutPassword(uri)
		require.NoError(t, err)
		require.Equal(t, original.Password, found)
		left, err := conninfo.Parse("publisher", connection, "", nil)
		require.NoError(t, err, connection)
		require.Equal(t, [3]string{original.Host, original.User, original.Database}, [3]string{left.Host, left.User, left.Database})
	})
}

func printable(text string) bool {
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
