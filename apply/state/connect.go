package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"pgapply/internal/conninfo"
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
		"bytea_output":                        "hex",
		"extra_float_digits":                  "3",
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

// After a context ends, the server has cancelGrace to break off the statement
// before the connection is given up.
const cancelGrace = 2 * time.Second

// ConnectControl opens the control session of a subscription. uri is any libpq
// connection string; PG* variables, service and password files, several hosts
// and target_session_attrs count. passfile, unless empty, replaces the usual
// password file. A context that ends during a statement cancels the statement
// and keeps the session, on whose life the runner lock depends.
//
// The error is a *[conninfo.Error], or wraps the one of pgconn.
func ConnectControl(ctx context.Context, uri, passfile, name string) (*pgx.Conn, error) {
	config, err := controlConfig(uri, passfile, name)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the target: %w", conninfo.ConnectError(err))
	}
	// Major 17 added this one; older servers refuse a session that asks for it.
	_, err = conn.Exec(ctx, `SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout'`)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the control session on the target: %w", err), conn.Close(ctx))
	}
	return conn, nil
}

func controlConfig(uri, passfile, name string) (*pgx.ConnConfig, error) {
	settings := controlSettings()
	settings["application_name"] = "pgapply:" + name + ":control"
	config, err := conninfo.Parse("target", uri, passfile, settings)
	if err != nil {
		return nil, err
	}
	config.DialFunc = conninfo.Attend(conninfo.KeepAlive(config.DialFunc))
	// Most statements come once or twice: to prepare them would cost a round trip each.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelGrace}
	}
	return config, nil
}
