package schema

import (
	"errors"
	"net/url"
	"strings"
)

// setting is one keyword of a connection string.
type setting struct{ keyword, value string }

var (
	errMalformed   = errors.New("the connection string of the publisher is malformed")
	errSSLPassword = errors.New("pg_dump cannot be given the sslpassword of the publisher's connection: use a key without a password, or create the schema by hand")
)

// withoutPassword writes a connection string as keywords, and returns the password, if
// it has one, beside it.
func withoutPassword(text string) (connection, password string, err error) {
	settings, err := parseSettings(text)
	if err != nil {
		return "", "", err
	}
	var parts []string
	for _, s := range settings {
		switch s.keyword {
		case "password":
			password = s.value
			continue
		case "sslpassword":
			return "", "", errSSLPassword
		}
		parts = append(parts, s.keyword+"='"+strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s.value)+"'")
	}
	return strings.Join(parts, " "), password, nil
}

// parseSettings reads both forms of connection strings (fe-connect.c,
// conninfo_uri_parse_options and conninfo_parse).
func parseSettings(text string) ([]setting, error) {
	for _, scheme := range []string{"postgres://", "postgresql://"} {
		if rest, is := strings.CutPrefix(text, scheme); is {
			return parseURI(rest)
		}
	}
	return parseKeywords(text)
}

func parseURI(text string) ([]setting, error) {
	var settings []setting
	var failure error
	add := func(keyword, value string) {
		decoded, err := url.PathUnescape(value)
		failure = errors.Join(failure, err)
		if decoded != "" {
			settings = append(settings, setting{keyword, decoded})
		}
	}
	text, query, _ := strings.Cut(text, "?")
	authority, database, _ := strings.Cut(text, "/")
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		user, password, _ := strings.Cut(authority[:at], ":")
		add("user", user)
		add("password", password)
		authority = authority[at+1:]
	}
	var hosts, ports []string
	for server := range strings.SplitSeq(authority, ",") {
		host, port := server, ""
		if colon := strings.LastIndex(server, ":"); colon > strings.LastIndex(server, "]") {
			host, port = server[:colon], server[colon+1:]
		}
		hosts = append(hosts, strings.Trim(host, "[]"))
		ports = append(ports, port)
	}
	add("host", strings.Join(hosts, ","))
	if strings.Trim(strings.Join(ports, ""), ",") != "" {
		add("port", strings.Join(ports, ","))
	}
	add("dbname", database)
	for pair := range strings.SplitSeq(query, "&") {
		keyword, value, is := strings.Cut(pair, "=")
		switch decoded, err := url.PathUnescape(keyword); {
		case err != nil:
			failure = err
		case is && decoded == "ssl" && value == "true":
			settings = append(settings, setting{"sslmode", "require"})
		case is:
			add(decoded, value)
		}
	}
	if failure != nil {
		return nil, errMalformed // the cause would quote what may be a secret
	}
	return settings, nil
}

func parseKeywords(text string) ([]setting, error) {
	const space = " \t\n\r\f\v"
	var settings []setting
	for text = strings.TrimLeft(text, space); text != ""; text = strings.TrimLeft(text, space) {
		keyword, rest, is := strings.Cut(text, "=")
		if keyword = strings.TrimRight(keyword, space); !is || keyword == "" || strings.ContainsAny(keyword, space) {
			return nil, errMalformed
		}
		rest = strings.TrimLeft(rest, space)
		quoted := strings.HasPrefix(rest, "'")
		if quoted {
			rest = rest[1:]
		}
		var value strings.Builder
		end := 0
		for ; end < len(rest); end++ {
			c := rest[end]
			if quoted && c == '\'' || !quoted && strings.IndexByte(space, c) >= 0 {
				break
			}
			if c == '\\' && end+1 < len(rest) {
				end++
				c = rest[end]
			}
			value.WriteByte(c)
		}
		if quoted {
			if end == len(rest) {
				return nil, errMalformed
			}
			end++ // the quote
		}
		settings = append(settings, setting{keyword, value.String()})
		text = rest[end:]
	}
	return settings, nil
}
