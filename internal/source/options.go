package source

import (
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"pgapply/internal/conninfo"
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
	// Server is what errors of the connection call the server; empty means publisher.
	Server string
	// Log receives what the publisher says in notices; nil logs nothing.
	Log *zap.Logger

	// wrap makes the socket from a new connection; nil means newSocket. The
	// benchmark compares others.
	wrap func(net.Conn) (socket, error)
}

// sessionSettings are forced upon the publisher's session, since its output
// functions decide what the text of a value looks like, and a default of role
// or database would corrupt values without a sign. The first three are what
// libpqwalreceiver.c (libpqrcv_connect) forces too. Every name and value is
// accepted by all majors from 10 on, for roles that are not superusers.
func sessionSettings() map[string]string {
	return map[string]string{
		"datestyle":          "ISO",
		"intervalstyle":      "postgres",
		"extra_float_digits": "3",
		"bytea_output":       "hex",
		// Money is an integer of the smallest unit, and the locale says how many
		// digits of it are decimals: one and the same locale on both ends keeps it.
		"lc_monetary":           "C",
		"quote_all_identifiers": "off",
		"xmloption":             "content",
		"row_security":          "off",
		"client_min_messages":   "warning",
		// Nothing may cut off a slot that waits for its consistent point, nor an
		// exported snapshot.
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": "0",
		"replication":                         "database",
	}
}

func (o *Options) server() string {
	if o.Server != "" {
		return o.Server
	}
	return "publisher"
}

// config turns the options into pgconn's form.
func (o *Options) config() (*pgconn.Config, error) {
	settings := sessionSettings()
	settings["client_encoding"] = o.ClientEncoding
	if o.ClientEncoding == "" {
		settings["client_encoding"] = "UTF8"
	}
	config, err := conninfo.Parse(o.server(), o.URI, o.Passfile, settings)
	if err != nil {
		return nil, err
	}
	if config.RuntimeParams["application_name"] == "" && o.ApplicationName != "" {
		config.RuntimeParams["application_name"] = o.ApplicationName
	}
	if o.ConnectTimeout > 0 && config.ConnectTimeout == conninfo.ConnectTimeout {
		config.ConnectTimeout = o.ConnectTimeout
	}
	return &config.Config, nil
}
