// Package conninfo reads connection strings as libpq does and makes of them what
// pgconn needs. It belongs to the cellar: all connections to either server, for
// whatever purpose, begin here, so that one string means the same everywhere.
//
// Which settings a session needs is for those who open it.
package conninfo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ConnectTimeout bounds the connection to one host, also its login, unless a
// connect_timeout in the string or PGCONNECT_TIMEOUT says otherwise.
const ConnectTimeout = 30 * time.Second

// Error says that a connection string, or a file that it names, cannot be used.
// It never quotes the string, which may hold a password.
type Error struct {
	// Server is what the string is for: "publisher" or "target".
	Server string
	Reason string
}

func (e *Error) Error() string {
	return "the " + e.Server + "'s connection string cannot be used: " + e.Reason
}

// localKeywords are parameters of libpq that pgconn takes for settings of the
// server. They change nothing about what arrives, so they are dropped.
var localKeywords = []string{
	"fallback_application_name", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
	"tcp_user_timeout", "sslcompression", "gssencmode", "gssdelegation", "gsslib", "load_balance_hosts",
}

// unsupported are parameters of libpq that would change what is connected to, or
// how safely, and that pgconn does not know, with their variables and what goes without them.
var unsupported = []struct{ name, variable, without string }{
	{"requirepeer", "PGREQUIREPEER", "whose process answers at a socket is not looked at"},
	{"sslcrl", "PGSSLCRL", "a certificate that was revoked is accepted"},
	{"sslcrldir", "PGSSLCRLDIR", "a certificate that was revoked is accepted"},
}

// Parse reads a URI or keyword string. PG* variables, service and password files
// fill what it leaves open; passfile, unless empty, replaces the usual password
// file. The error is an *Error.
//
// settings are put into the startup packet, where they go before those of the
// string, of its "options", and of role and database (postinit.c,
// process_startup_options).
func Parse(server, text, passfile string, settings map[string]string) (*pgx.ConnConfig, error) {
	refuse := func(format string, arguments ...any) (*pgx.ConnConfig, error) {
		return nil, &Error{Server: server, Reason: fmt.Sprintf(format, arguments...)}
	}
	if passfile != "" {
		// pgconn goes on without a password when it cannot read the file.
		file, err := os.Open(passfile)
		if err != nil {
			return refuse("the password file cannot be read: %v", err)
		}
		_ = file.Close() // opened only to see that it can be
		text = with(text, "passfile", passfile)
	}
	config, err := parseHosts(text)
	if own, ok := errors.AsType[hostaddrError](err); ok {
		return refuse("%v", own)
	}
	if err != nil {
		return refuse("%s", withoutString(err.Error()))
	}
	for _, host := range hostsOf(&config.Config) {
		// Else the rest of a password would be looked up, and be in every error.
		if strings.LastIndex(host, "@") > 0 && !strings.HasPrefix(host, "/") {
			return refuse(`a name of a host contains "@": write an @ in the password of a URI as %%40`)
		}
	}
	parameters := config.RuntimeParams
	if cmp.Or(parameters["gssencmode"], os.Getenv("PGGSSENCMODE")) == "require" {
		return refuse("gssencmode=require is not supported: use sslmode=verify-full instead")
	}
	for _, parameter := range unsupported {
		if parameters[parameter.name] != "" {
			return refuse("the parameter %s is not supported: remove it if you can do without it: %s", parameter.name, parameter.without)
		}
		if os.Getenv(parameter.variable) != "" {
			return refuse("%s is set, which is not supported: unset it if you can do without it: %s", parameter.variable, parameter.without)
		}
	}
	if os.Getenv("PGHOSTADDR") != "" {
		return refuse("PGHOSTADDR is set, which would lead to one address for either server: unset it, and give hostaddr in the connection string")
	}
	if err := limitTLS(&config.Config); err != nil {
		return refuse("%v", err)
	}
	maps.DeleteFunc(parameters, func(name, _ string) bool {
		name = strings.ToLower(name)
		_, forced := settings[name]
		return forced || slices.Contains(localKeywords, name)
	})
	maps.Copy(parameters, settings)
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = ConnectTimeout
	}
	return config, nil
}

// withoutString cuts the quoted connection string out of pgconn's message. It
// masks what it recognizes as a password, but cannot promise to find all of them
// in a malformed string.
func withoutString(message string) string {
	end := strings.LastIndex(message, "`: ")
	if end < 0 {
		return "it is malformed"
	}
	message = message[end+len("`: "):]
	if strings.HasPrefix(message, "failed to parse as ") {
		// It quotes what it stumbled upon, which may be a part of a password.
		message = quoted.ReplaceAllString(message, `"..."`)
	}
	return message
}

var quoted = regexp.MustCompile(`(?s)".*"`)

// hostsOf are all hosts that may be connected to.
func hostsOf(config *pgconn.Config) []string {
	hosts := []string{config.Host}
	for _, fallback := range config.Fallbacks {
		hosts = append(hosts, fallback.Host)
	}
	return hosts
}

// ConnectError makes one line of what went wrong at each host, without pgconn's
// preamble, and keeps the causes for errors.As.
func ConnectError(err error) error {
	if typed, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return &flatError{typed.Unwrap()}
	}
	return err
}

type flatError struct{ err error }

// Error says each thing once. With sslmode=prefer a host is tried with TLS and without: that
// it refused TLS is of no interest where it says more without.
func (e *flatError) Error() string {
	lines := strings.Split(e.err.Error(), "\n")
	var said []string
	for i, line := range lines {
		host, noTLS := strings.CutSuffix(line, "tls error: server refused TLS connection")
		more := func(other string) bool { return other != line && strings.HasPrefix(other, host) }
		if slices.Contains(lines[:i], line) || noTLS && slices.ContainsFunc(lines, more) {
			continue
		}
		said = append(said, line)
	}
	return strings.Join(said, "; ")
}

func (e *flatError) Unwrap() error { return e.err }

// KeepAlive wraps a dial function so that a dead server is noticed within a
// minute, also by a connection that waits.
func KeepAlive(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			err = tcp.SetKeepAliveConfig(net.KeepAliveConfig{
				Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3,
			})
			if err != nil {
				return nil, errors.Join(fmt.Errorf("turn TCP keepalives on: %w", err), conn.Close())
			}
		}
		return conn, nil
	}
}
