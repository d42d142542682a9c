package source

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

func connectTo(t testing.TB, uri string) *Conn {
	t.Helper()
	conn, err := Connect(context.Background(), Options{URI: uri, ApplicationName: "sub"})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// admitByPassword makes the server ask a role for its password.
func admitByPassword(t *testing.T, server *cluster.Cluster, role, method string) {
	t.Helper()
	path := filepath.Join(server.Dir(), "data", "pg_hba.conf")
	rules, err := os.ReadFile(path)
	require.NoError(t, err)
	rule := fmt.Sprintf("host all %s 127.0.0.1/32 %s\n", role, method)
	require.NoError(t, os.WriteFile(path, append([]byte(rule), rules...), 0o600))
	pgtest.Exec(t, server.URI("postgres"), `select pg_reload_conf()`)
	pgtest.WaitFor(t, server.URI("postgres"), `select count(*) > 0 from pg_hba_file_rules where auth_method = '`+method+`'`, "t")
}

func TestIdentify(t *testing.T) {
	server := pgtest.SharedServer(t)
	uri := pgtest.Database(t, server)
	conn := connectTo(t, uri)
	identity, err := conn.Identify(t.Context())
	require.NoError(t, err)
	require.Equal(t, pgtest.Query(t, uri, `select system_identifier, timeline_id, current_database()
		from pg_control_system(), pg_control_checkpoint()`), fmt.Sprintf("%s|%d|%s", identity.SystemID, identity.Timeline, identity.Database))
	require.Equal(t, "t", pgtest.Query(t, uri, `select pg_current_wal_flush_lsn() >= $1::pg_lsn`, identity.Position.String()))
	require.Equal(t, pgtest.Query(t, uri, `show server_version_num`), strconv.Itoa(conn.Version()))
	require.NoError(t, conn.CheckLogical(t.Context()))
	require.NoError(t, conn.Close())
	require.NoError(t, conn.Close())
}

func TestConnectionForms(t *testing.T) {
	server := pgtest.Start(t)
	pgtest.Exec(t, server.URI("postgres"), `create role locked login replication password 'se:cr@t'`)
	admitByPassword(t, server, "locked", "scram-sha-256")
	directory := t.TempDir()
	service, passfile := filepath.Join(directory, "service"), filepath.Join(directory, "pass word")
	require.NoError(t, os.WriteFile(service, fmt.Appendf(nil, "[pub]\nhost=127.0.0.1\nport=%d\ndbname=postgres\nuser=postgres\n", server.Port()), 0o600))
	require.NoError(t, os.WriteFile(passfile, []byte(`127.0.0.1:*:*:locked:se\:cr@t`), 0o600))
	dead := deadPort(t)
	port := server.Port()
	for what, form := range map[string]struct {
		options Options
		env     map[string]string
	}{
		"uri":         {options: Options{URI: server.URI("postgres")}},
		"keywords":    {options: Options{URI: fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres", port)}},
		"environment": {env: map[string]string{"PGHOST": "127.0.0.1", "PGPORT": strconv.Itoa(port), "PGUSER": "postgres", "PGDATABASE": "postgres"}},
		"service":     {options: Options{URI: "service=pub"}, env: map[string]string{"PGSERVICEFILE": service}},
		"password":    {options: Options{URI: fmt.Sprintf("postgres://locked:se%%3Acr%%40t@127.0.0.1:%d/postgres", port)}},
		"passfile":    {options: Options{URI: fmt.Sprintf("postgres://locked@127.0.0.1:%d/postgres", port), Passfile: passfile}},
		"PGPASSWORD": {
			options: Options{URI: fmt.Sprintf("postgres://locked@127.0.0.1:%d/postgres", port)},
			env:     map[string]string{"PGPASSWORD": "se:cr@t"},
		},
		"hosts":       {options: Options{URI: fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?target_session_attrs=read-write", dead, port)}},
		"unix socket": {options: Options{URI: fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", server.SocketDir(), port)}},
	} {
		t.Run(what, func(t *testing.T) {
			for name, value := range form.env {
				t.Setenv(name, value)
			}
			conn, err := Connect(t.Context(), form.options)
			require.NoError(t, err)
			defer conn.Close()
			identity, err := conn.Identify(t.Context())
			require.NoError(t, err)
			require.Equal(t, "postgres", identity.Database)
		})
	}
}

// deadPort is a port on which nobody listens.
func deadPort(t *testing.T) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func TestRefusedConnections(t *testing.T) {
	server := pgtest.Start(t)
	pgtest.Exec(t, server.URI("postgres"),
		`create role locked login replication password 'right'`, `create role plain login`, `create role rejected login replication`)
	admitByPassword(t, server, "locked", "scram-sha-256")
	admitByPassword(t, server, "rejected", "reject")
	at := func(user, password, database string) string {
		return fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=%s sslmode=disable", server.Port(), user, password, database)
	}
	for what, refusal := range map[string]struct {
		uri   string
		class Class
		says  string
	}{
		"wrong password":   {at("locked", "wrong", "postgres"), Authentication, `"locked"`},
		"pg_hba rejects":   {at("rejected", "x", "postgres"), Authentication, "pg_hba.conf"},
		"no REPLICATION":   {at("plain", "x", "postgres"), Authentication, `"plain"`},
		"no such database": {at("postgres", "x", "nowhere"), Configuration, `no database "nowhere"`},
		"no TLS":           {strings.Replace(at("postgres", "x", "postgres"), "disable", "require", 1), Configuration, "sslmode"},
		"nobody listens":   {fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", deadPort(t)), Transient, "127.0.0.1"},
		"no such host":     {"host=no-such-host.invalid user=postgres", Configuration, "no-such-host.invalid"},
		"bad option":       {at("postgres", "x", "postgres") + " options='-c no_such=1'", Configuration, "no_such"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := Connect(t.Context(), Options{URI: refusal.uri})
			require.Error(t, err)
			require.Equal(t, refusal.class, ClassOf(err), "%v", err)
			require.ErrorContains(t, err, refusal.says)
			require.NotContains(t, err.Error(), "wrong")
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestConnectEndsByContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts, but never answers
	require.NoError(t, err)
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = Connect(ctx, Options{URI: fmt.Sprintf("host=127.0.0.1 port=%d user=u sslmode=disable", listener.Addr().(*net.TCPAddr).Port)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, Transient, ClassOf(err))
}

// hostile are settings that would change the text of values, break our queries
// or cut the session off.
var hostile = map[string]string{
	"datestyle": "German", "intervalstyle": "sql_standard", "extra_float_digits": "-5", "bytea_output": "escape",
	"search_path": "evil, pg_catalog", "quote_all_identifiers": "on", "statement_timeout": "1", "lock_timeout": "1",
	"client_encoding": "LATIN1", "standard_conforming_strings": "off", "idle_in_transaction_session_timeout": "1", "xmloption": "document",
	"lc_monetary": "'POSIX'",
}

func TestHostileDefaultsAreNeutralised(t *testing.T) {
	forEachMajor(t, []int{10, 14, 17, 18}, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		name := pgtest.Query(t, uri, `select current_database()`)
		settings := map[string]string{}
		for setting, value := range hostile {
			settings[setting] = value
		}
		if server.Major() >= 14 {
			settings["idle_session_timeout"] = "'1min'"
		}
		if server.Major() >= 17 {
			settings["transaction_timeout"] = "'1min'"
		}
		pgtest.Exec(t, uri, `create schema evil`,
			`create function evil.current_setting(text) returns text language sql as 'select ''evil''::text'`,
			`create role evil login replication superuser`)
		administrator := server.URI("postgres")
		defer pgtest.Exec(t, administrator, `drop role evil`, fmt.Sprintf(`alter database %s reset all`, name))
		for setting, value := range settings {
			// Half of them by role, half by database.
			if len(setting)%2 == 0 {
				pgtest.Exec(t, administrator, fmt.Sprintf(`alter role evil set %s = %s`, setting, value))
			} else {
				pgtest.Exec(t, administrator, fmt.Sprintf(`alter database %s set %s = %s`, name, setting, value))
			}
		}
		conn := connectTo(t, strings.Replace(uri, "postgres://postgres@", "postgres://evil@", 1)+"&options=-c%20work_mem%3D1234kB%20-c%20datestyle%3DSQL")
		rows, err := conn.Query(t.Context(), `SELECT '2001-02-03 04:05:06'::pg_catalog.timestamp, '-1 day 2 hours'::pg_catalog.interval,
			0.1::pg_catalog.float8 + 0.2, pg_catalog.decode('ff00', 'hex'), 'evil.current_setting'::pg_catalog.regproc, 1234.5::pg_catalog.numeric::pg_catalog.money,
			pg_catalog.current_setting('lc_monetary'), pg_catalog.current_setting('work_mem')`)
		require.NoError(t, err)
		var got []string
		for column := range rows[0] {
			got = append(got, text(rows, 0, column))
		}
		float := "0.30000000000000004"
		if server.Major() < 12 {
			float = "0.300000000000000044" // not yet the shortest one that reads back
		}
		require.Equal(t, []string{"2001-02-03 04:05:06", "-1 days +02:00:00", float, `\xff00`, "evil.current_setting", "$1,234.50", "C", "1234kB"}, got)
		missing, err := conn.MissingPublications(t.Context(), []string{`a\'b`})
		require.NoError(t, err)
		require.Equal(t, []string{`a\'b`}, missing)
		for _, setting := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout"} {
			rows, err := conn.Query(t.Context(), `SELECT pg_catalog.current_setting(`+literal(setting)+`, true)`)
			require.NoError(t, err)
			require.Contains(t, []string{"0", ""}, text(rows, 0, 0), setting)
		}
		require.Equal(t, "UTF8", conn.pg.ParameterStatus("client_encoding"))
	})
}

func TestApplicationNameIsShown(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	conn := connectTo(t, uri)
	require.Equal(t, "sub", pgtest.Query(t, uri, `select application_name from pg_stat_activity where pid = $1`, fmt.Sprint(conn.pg.PID())))
}

func TestQueryEndsByContext(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	conn := connectTo(t, uri)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := conn.Query(ctx, `SELECT pg_catalog.pg_sleep(1000)`)
		result <- err
	}()
	pgtest.WaitFor(t, uri, `select count(*) from pg_stat_activity where query ~ 'pg_sleep\(1000' and state = 'active' and pid <> pg_backend_pid()`, "1")
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
	_, err := conn.Identify(t.Context())
	require.Error(t, err)
	// Nothing goes on there either.
	pgtest.WaitFor(t, uri, `select count(*) from pg_stat_activity where query ~ 'pg_sleep\(1000' and pid <> pg_backend_pid()`, "0")
}

func TestCheckLogical(t *testing.T) {
	t.Run("wal_level", func(t *testing.T) {
		server := pgtest.Start(t, pgtest.With("wal_level", "replica"))
		conn := connectTo(t, server.URI("postgres"))
		err := conn.CheckLogical(t.Context())
		require.Equal(t, Configuration, ClassOf(err))
		require.ErrorContains(t, err, "wal_level on the publisher is replica: set it to logical")
		_, err = conn.CreateSlot(t.Context(), SlotOptions{Name: "s"})
		require.Equal(t, Configuration, ClassOf(err), "%v", err)
	})
	for _, major := range []int{14, 18} {
		t.Run(fmt.Sprintf("standby of %d", major), func(t *testing.T) {
			server := pgtest.Start(t, pgtest.OnMajor(major))
			require.NoError(t, server.Stop(cluster.Fast))
			require.NoError(t, os.WriteFile(filepath.Join(server.Dir(), "data", "standby.signal"), nil, 0o644))
			require.NoError(t, server.Restart(t.Context()))
			conn := connectTo(t, server.URI("postgres"))
			ready, err := conn.Readiness(t.Context())
			require.NoError(t, err)
			require.Equal(t, Readiness{WALLevel: "logical", InRecovery: true, MaxSlots: 40, MaxSenders: 20}, ready)
			err = conn.CheckLogical(t.Context())
			if major >= 16 {
				require.NoError(t, err)
			} else {
				require.Equal(t, Configuration, ClassOf(err))
				require.ErrorContains(t, err, "standby")
			}
			// Other hosts are asked for one that takes writes.
			_, err = Connect(t.Context(), Options{URI: server.URI("postgres") + "&target_session_attrs=read-write"})
			require.Equal(t, Transient, ClassOf(err), "%v", err)
		})
	}
}
