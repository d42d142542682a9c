package conninfo

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// mask stands where a secret was.
const mask = "***"

// secrets are the keywords whose values nobody should read.
var secrets = []string{"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}

// secretPair finds them in a keyword string, with their values as libpq reads them. A quote
// that is not closed hides the rest.
var secretPair = regexp.MustCompile(`(?is)(\b(?:` + strings.Join(secrets, "|") + `)\s*=\s*)(?:'(?:[^'\\]|\\.)*(?:'|\\?$)|(?:[^\s\\]|\\.)*)`)

// Masked is a connection string for people to read, with its secrets masked. It looks at
// the string alone, and not at the files and variables that may add to it. One that holds
// no secret comes back as it is.
func Masked(text string) string {
	scheme, rest, isURI := strings.Cut(text, "://")
	if !isURI || scheme != "postgres" && scheme != "postgresql" {
		return maskKeywords(text)
	}
	path, query, hasQuery := strings.Cut(rest, "?")
	if at := strings.LastIndex(path, "@"); at >= 0 {
		// A slash in a password makes the URI malformed, and is hidden all the same.
		if user, _, has := strings.Cut(path[:at], ":"); has {
			path = user + ":" + mask + path[at:]
		}
	} else if _, err := url.Parse(text); err != nil && strings.Contains(query, "@") {
		return scheme + "://" + mask // a question mark in the password, perhaps
	}
	if hasQuery {
		path += "?" + maskQuery(query)
	}
	return scheme + "://" + path
}

// wellFormed are keyword strings whose values end where they seem to.
var wellFormed = regexp.MustCompile(`(?s)^\s*(?:\w+\s*=\s*(?:'(?:[^'\\]|\\.)*'|(?:[^\s\\']|\\.)(?:[^\s\\]|\\.)*)?(?:\s+|$))*$`)

func maskKeywords(text string) string {
	first := secretPair.FindStringSubmatchIndex(text)
	if first != nil && !wellFormed.MatchString(text) {
		return text[:first[3]] + mask // with a quote or a space in the password, perhaps
	}
	return secretPair.ReplaceAllString(text, "${1}"+mask)
}

func maskQuery(query string) string {
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		name, _, has := strings.Cut(pair, "=")
		decoded, err := url.QueryUnescape(name)
		if has && (err != nil || slices.Contains(secrets, strings.ToLower(decoded))) {
			pairs[i] = name + "=" + mask
		}
	}
	return strings.Join(pairs, "&")
}
