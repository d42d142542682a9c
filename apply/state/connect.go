package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// controlSettings hold on every control session, whatever the role, the
// database or the connection string say: a setting in the startup packet wins
// over ALTER ROLE, ALTER DATABASE and "options" (postinit.c,
// process_startup_options). Only settings that every major from 14 on knows.
func controlSettings() map[string]string {
	return map[string]string{
		"search_path":                         "",
		"client_encoding":                     "UTF8",
		"datestyle":                           "ISO",
		"intervalstyle":                       "postgres",
		"client_min_messages":                 "warning",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": "0",
		"idle_session_timeout":                "0",
		"default_transaction_isolation":       "read committed",
		"default_transaction_read_only":       "off",
		"default_transaction_deferrable":      "off",
		"row_security":                        "off",
		// What is acknowledged to the publisher must have been durable here first.
		"synchronous_commit": "on",
		// A runner whose machine vanished gives up its lock within a minute.
		"tcp_keepalives_idle":     "30",
		"tcp_keepalives_interval": "10",
		"tcp_keepalives_count":    "3",
	}
}

// clientKeywords are parameters of libpq that pgconn takes for settings of the
// server. They change nothing here, so they are dropped.
var clientKeywords = []string{
	"fallback_application_name", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
	"tcp_user_timeout", "sslcompression", "gssencmode", "gssdelegation", "gsslib", "load_balance_hosts",
}

const (
	// connectTimeout holds for one host, unless the connection string has its own.
	connectTimeout = 30 * time.Second
	// After a context ends, the server has cancelGrace to break off the statement
	// before the connection is given up.
	cancelGrace = 5 * time.Second
)

// ConnectionStringError says that the target's connection string, or a file
// that it names, cannot be used. It does not quote the string, which may hold a
// password.
type ConnectionStringError struct{ Reason string }

func (e *ConnectionStringError) Error() string {
	return "the target's connection string cannot be used: " + e.Reason
}

// ConnectControl opens the control session of a subscription. uri is any libpq
// connection string; PG* variables, service and password files, several hosts
// and target_session_attrs count. passfile, unless empty, replaces the usual
// password file. A context that ends during a statement cancels the statement
// and keeps the session, on whose life the runner lock depends.
//
// The error is a *[ConnectionStringError], or wraps the one of pgconn.
func ConnectControl(ctx context.Context, uri, passfile, name string) (*pgx.Conn, error) {
	config, err := controlConfig(uri, passfile, name)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, connectError(err)
	}
	// Major 17 added this one; older servers refuse a session that asks for it.
	_, err = conn.Exec(ctx, `SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout'`)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the control session on the target: %w", err), conn.Close(ctx))
	}
	return conn, nil
}

// connectError leaves out pgconn's preamble and puts what was tried on one line.
func connectError(err error) error {
	if typed, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		err = &flatError{typed.Unwrap()}
	}
	return fmt.Errorf("connect to the target: %w", err)
}

type flatError struct{ err error }

func (e *flatError) Error() string { return strings.ReplaceAll(e.err.Error(), "\n", "; ") }

func (e *flatError) Unwrap() error { return e.err }

func controlConfig(uri, passfile, name string) (*pgx.ConnConfig, error) {
	if passfile != "" {
		// pgconn goes on without a password when it cannot read the file.
		file, err := os.Open(passfile)
		if err != nil {
			return nil, &ConnectionStringError{Reason: err.Error()}
		}
		_ = file.Close() // opened only to see that it can be
	}
	config, err := pgx.ParseConfig(withPassfile(uri, passfile))
	if err != nil {
		return nil, &ConnectionStringError{Reason: withoutConnectionString(err.Error())}
	}
	if config.RuntimeParams["gssencmode"] == "require" {
		return nil, &ConnectionStringError{Reason: "gssencmode=require is not supported: use sslmode=verify-full instead"}
	}
	settings := controlSettings()
	settings["application_name"] = "pgapply:" + name + ":control"
	maps.DeleteFunc(config.RuntimeParams, func(parameter, _ string) bool {
		parameter = strings.ToLower(parameter)
		_, forced := settings[parameter]
		return forced || slices.Contains(clientKeywords, parameter)
	})
	maps.Copy(config.RuntimeParams, settings)
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	config.DialFunc = keepAlive(config.DialFunc)
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelGrace}
	}
	return config, nil
}

// withPassfile adds the parameter to either form of a connection string. The
// last value of a repeated parameter counts.
func withPassfile(uri, passfile string) string {
	if passfile == "" {
		return uri
	}
	if !strings.HasPrefix(uri, "postgres://") && !strings.HasPrefix(uri, "postgresql://") {
		quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(passfile)
		return uri + " passfile='" + quoted + "'"
	}
	separator := "?"
	if strings.Contains(uri, "?") {
		separator = "&"
	}
	return uri + separator + "passfile=" + strings.ReplaceAll(url.QueryEscape(passfile), "+", "%20")
}

// withoutConnectionString cuts the quoted connection string out of pgconn's
// message, which masks only what it recognizes as a password.
func withoutConnectionString(message string) string {
	if end := strings.LastIndex(message, "`: "); end >= 0 {
		return message[end+len("`: "):]
	}
	return "it is malformed"
}

// keepAlive lets a dead target be noticed within a minute, also while idle.
func keepAlive(dial pgconn.DialFunc) pgconn.DialFunc {
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
