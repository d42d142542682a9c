package source

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// Options say where the publisher is and how to present ourselves to it.
type Options struct {
	// URI is a libpq connection URI or keyword string. PG* variables, service
	// and password files fill what it leaves open.
	URI string
	// Passfile names a password file in the format of ~/.pgpass; empty means
	// the usual one. A password in URI or PGPASSWORD goes before it.
	Passfile string
	// ApplicationName is what the publisher shows and compares with
	// synchronous_standby_names, unless URI or PGAPPNAME name another one.
	ApplicationName string
	// ClientEncoding is the encoding of all text that arrives; empty means
	// UTF8. It must be the encoding of the session that the text is applied in.
	ClientEncoding string
	// ConnectTimeout bounds the connection to one host, also its login; zero
	// means 30 seconds. A connect_timeout in URI or PGCONNECT_TIMEOUT goes before it.
	ConnectTimeout time.Duration
	// Log receives what the publisher says in notices; nil logs nothing.
	Log *zap.Logger

	// wrap makes the socket from a new connection; nil means newSocket. The
	// benchmark compares others.
	wrap func(net.Conn) (socket, error)
}

const defaultConnectTimeout = 30 * time.Second

// sessionSettings are forced upon the publisher's session, since its output
// functions decide what the text of a value looks like, and a default of role
// or database would corrupt values without a sign. The first three are what
// libpqwalreceiver.c (libpqrcv_connect) forces too. Every name and value is
// accepted by all majors from 10 on, for roles that are not superusers.
var sessionSettings = []struct{ name, value string }{
	{"datestyle", "ISO"},
	{"intervalstyle", "postgres"},
	{"extra_float_digits", "3"},
	{"bytea_output", "hex"},
	// Money is an integer of the smallest unit, and the locale says how many
	// digits of it are decimals: one and the same locale on both ends keeps it.
	{"lc_monetary", "C"},
	{"quote_all_identifiers", "off"},
	{"xmloption", "content"},
	{"row_security", "off"},
	{"client_min_messages", "warning"},
	// Nothing may cut off a slot that waits for its consistent point, nor an
	// exported snapshot.
	{"statement_timeout", "0"},
	{"lock_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
}

// localKeywords are parameters of libpq that pgconn takes for settings of the
// server. They change nothing about what arrives, so they are dropped.
var localKeywords = []string{
	"fallback_application_name", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
	"tcp_user_timeout", "sslcompression", "gssdelegation", "gsslib", "gssencmode", "load_balance_hosts",
}

// config turns the options into pgconn's form.
func (o *Options) config() (*pgconn.Config, error) {
	if err := o.checkPassfile(); err != nil {
		return nil, err
	}
	config, err := pgconn.ParseConfig(withPassfile(o.URI, o.Passfile))
	if err != nil {
		return nil, &ConfigurationError{
			Reason: "the publisher's connection string cannot be used: " + withoutConnectionString(err.Error()),
			Err:    nil, // the cause holds the string, and with it the password
		}
	}
	if err := o.setParameters(config); err != nil {
		return nil, err
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = o.ConnectTimeout
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = defaultConnectTimeout
	}
	return config, nil
}

// setParameters makes the startup packet. Settings in it go before defaults of
// role and database, and a setting of its own goes before one in "options"
// (postinit.c, process_startup_options), so forced names must not stay there.
func (o *Options) setParameters(config *pgconn.Config) error {
	parameters := config.RuntimeParams
	if value := parameters["gssencmode"]; value == "require" {
		return &ConfigurationError{Reason: "gssencmode=require is not supported: use sslmode=verify-full instead"}
	}
	for _, name := range []string{"hostaddr", "requirepeer", "sslcrl", "sslcrldir", "ssl_min_protocol_version", "ssl_max_protocol_version"} {
		if parameters[name] != "" {
			return &ConfigurationError{Reason: fmt.Sprintf("the connection parameter %s is not supported: remove it from the publisher's connection string", name)}
		}
	}
	forced := make(map[string]bool)
	var options strings.Builder
	options.WriteString(parameters["options"])
	for _, setting := range sessionSettings {
		forced[setting.name] = true
		fmt.Fprintf(&options, " -c %s=%s", setting.name, setting.value)
	}
	maps.DeleteFunc(parameters, func(name, _ string) bool {
		name = strings.ToLower(name)
		return forced[name] || name == "client_encoding" ||
			slices.Contains(localKeywords, name)
	})
	parameters["options"] = options.String()
	parameters["replication"] = "database"
	parameters["client_encoding"] = o.ClientEncoding
	if o.ClientEncoding == "" {
		parameters["client_encoding"] = "UTF8"
	}
	if parameters["application_name"] == "" && o.ApplicationName != "" {
		parameters["application_name"] = o.ApplicationName
	}
	return nil
}

// checkPassfile reads the file only to say what is wrong with it: pgconn goes
// on without a password when it cannot be read.
func (o *Options) checkPassfile() error {
	if o.Passfile == "" {
		return nil
	}
	file, err := os.Open(o.Passfile)
	if err != nil {
		return &ConfigurationError{Reason: "the publisher's password file cannot be read", Err: err}
	}
	return file.Close()
}

// withPassfile appends the parameter passfile to a URI or a keyword string.
// Where a parameter is given twice, the last one counts.
func withPassfile(uri, passfile string) string {
	switch {
	case passfile == "":
		return uri
	case !strings.HasPrefix(uri, "postgres://") && !strings.HasPrefix(uri, "postgresql://"):
		return uri + " passfile='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(passfile) + "'"
	}
	separator := "?"
	if strings.Contains(uri, "?") {
		separator = "&"
	}
	return uri + separator + "passfile=" + strings.ReplaceAll(url.QueryEscape(passfile), "+", "%20")
}

// withoutConnectionString cuts the quoted connection string out of pgconn's
// message. It masks what it recognizes as a password, but cannot promise to
// find all of them in a malformed string.
func withoutConnectionString(message string) string {
	if end := strings.LastIndex(message, "`: "); end >= 0 {
		return message[end+len("`: "):]
	}
	return "it is malformed"
}
