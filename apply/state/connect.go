package state

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// controlSettings hold on every control session, whatever the role, the
// database or the connection string say. The server processes a startup
// parameter after `options` and lets it win over ALTER ROLE and ALTER DATABASE.
// Only settings that every major from 14 on knows.
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

// After a context ends, the server has cancelGrace to break off the statement
// before the connection is given up.
const cancelGrace = 5 * time.Second

// ConnectControl opens the control session of a subscription. uri is any libpq
// connection string; PG* variables, service and password files, several hosts
// and target_session_attrs count. passfile, unless empty, replaces the usual
// password file. A context that ends during a statement cancels the statement
// and keeps the session, on whose life the runner lock depends.
func ConnectControl(ctx context.Context, uri, passfile, name string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(withPassfile(uri, passfile))
	if err != nil {
		return nil, fmt.Errorf("read the target's connection string: %w", err)
	}
	settings := controlSettings()
	settings["application_name"] = "pgapply:" + name + ":control"
	maps.DeleteFunc(config.RuntimeParams, func(key, _ string) bool {
		_, forced := settings[strings.ToLower(key)]
		return forced
	})
	maps.Copy(config.RuntimeParams, settings)
	config.DialFunc = keepAlive(config.DialFunc)
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelGrace}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the target: %w", err)
	}
	// Major 17 added this one; older servers refuse to start with it.
	_, err = conn.Exec(ctx, `SELECT pg_catalog.set_config('transaction_timeout', '0', false)
		WHERE pg_catalog.current_setting('server_version_num')::pg_catalog.int4 >= 170000`)
	if err != nil {
		_ = conn.Close(ctx)
		return nil, fmt.Errorf("prepare the control session on the target: %w", err)
	}
	return conn, nil
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
	return uri + separator + "passfile=" + percentEncode(passfile)
}

// percentEncode writes every byte that is not plainly harmless as %XX; unlike
// url.QueryEscape, it never writes a space as a plus sign.
func percentEncode(text string) string {
	var encoded strings.Builder
	for _, b := range []byte(text) {
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', strings.IndexByte("/._-", b) >= 0:
			encoded.WriteByte(b)
		default:
			fmt.Fprintf(&encoded, "%%%02X", b)
		}
	}
	return encoded.String()
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
				_ = conn.Close()
				return nil, fmt.Errorf("turn TCP keepalives on: %w", err)
			}
		}
		return conn, nil
	}
}
