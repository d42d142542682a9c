package state

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/conninfo"
	"pgapply/internal/pgtest"
)

func TestControlSessionIgnoresHostileDefaults(t *testing.T) {
	onMajors(t, func(t *testing.T, server *cluster.Cluster) {
		role(t, server, "boss", "superuser")
		uri := pgtest.Database(t, server)
		for _, setting := range []string{
			`search_path = evil, pg_catalog`, `statement_timeout = '900s'`, `lock_timeout = '1ms'`,
			`idle_in_transaction_session_timeout = '1ms'`, `idle_session_timeout = '900s'`,
			`default_transaction_isolation = serializable`, `default_transaction_read_only = on`, `default_transaction_deferrable = on`,
			`row_security = on`, `synchronous_commit = off`, `datestyle = 'German'`, `intervalstyle = iso_8601`, `client_encoding = 'LATIN1'`,
			`session_replication_role = replica`,
		} {
			pgtest.Exec(t, uri, `alter role boss set `+setting)
		}
		if server.Major() >= 17 {
			pgtest.Exec(t, uri, `alter role boss set transaction_timeout = '900s'`)
		}
		hostile := as(t, uri, "boss") + "&Statement_Timeout=3000&options=-c%20lock_timeout%3D5%20-c%20row_security%3Don%20-c%20work_mem%3D3MB"
		conn := connect(t, hostile, "orders")
		want := controlSettings()
		want["application_name"] = "pgapply:orders:control"
		want["datestyle"] = "ISO, MDY"
		want["work_mem"] = "3MB" // other settings of the user's pass
		if server.Major() >= 17 {
			want["transaction_timeout"] = "0"
		}
		for name, value := range want {
			var got string
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT pg_catalog.current_setting($1)`, name).Scan(&got))
			require.Equal(t, value, got, name)
		}
		store, err := Open(t.Context(), conn, "orders")
		require.NoError(t, err)
		live(t, store)
	})
}

func TestConnectionStrings(t *testing.T) {
	server := pgtest.SharedServer(t)
	database := pgtest.Query(t, pgtest.Database(t, server), `select current_database()`)
	service := filepath.Join(t.TempDir(), "services")
	require.NoError(t, os.WriteFile(service, fmt.Appendf(nil, "[there]\nhost=127.0.0.1\nport=%d\nuser=postgres\ndbname=%s\n", server.Port(), database), 0o600))
	for name, text := range map[string]string{
		"URI":             fmt.Sprintf("postgresql://postgres@127.0.0.1:%d/%s?sslmode=disable", server.Port(), database),
		"keywords":        fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=%s", server.Port(), database),
		"several hosts":   fmt.Sprintf("postgres://postgres@127.0.0.1:1,127.0.0.1:%d/%s?target_session_attrs=read-write", server.Port(), database),
		"service":         fmt.Sprintf("service=there servicefile='%s'", service),
		"socket":          fmt.Sprintf("host=%s port=%d user=postgres dbname=%s", server.SocketDir(), server.Port(), database),
		"libpq's own":     fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=%s keepalives=1 keepalives_idle=5 tcp_user_timeout=9 gssencmode=prefer fallback_application_name=x", server.Port(), database),
		"foreign options": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=%s options='-c work_mem=2MB' application_name=mine", server.Port(), database),
	} {
		t.Run(name, func(t *testing.T) {
			target, err := ReadTarget(t.Context(), connect(t, text, "orders"))
			require.NoError(t, err)
			require.Equal(t, database, target.Database)
			require.Equal(t, server.Major(), target.Version/10000)
			require.Equal(t, "postgres", target.Role)
			require.True(t, target.Superuser)
			require.False(t, target.InRecovery)
			require.Equal(t, pgtest.Query(t, server.URI(database), `select (select system_identifier from pg_control_system()), oid from pg_database where datname = current_database()`),
				fmt.Sprintf("%s|%d", target.SystemID, target.DatabaseOID))
		})
	}
}

func TestConnectionStringErrorsKeepThePassword(t *testing.T) {
	for _, text := range []string{
		"postgres://u:hidden@h:port/d", "postgres://u:hid%zzden@h/d", "host=h password=hidden sslmode=nonsense",
		"host=h password='hidden", "postgres://u:hidden@h/d?gssencmode=require",
	} {
		_, err := ConnectControl(t.Context(), text, "", "orders")
		typed := new(conninfo.Error)
		require.ErrorAs(t, err, &typed, text)
		require.NotContains(t, err.Error(), "hid", text)
	}
	_, err := ConnectControl(t.Context(), "host=h", filepath.Join(t.TempDir(), "none"), "orders")
	require.ErrorContains(t, err, "none: no such file")
}

func TestConnectErrorIsOneLine(t *testing.T) {
	_, err := ConnectControl(t.Context(), "postgres://u:hidden@127.0.0.1:1,127.0.0.1:2/d?sslmode=disable", "", "orders")
	require.ErrorContains(t, err, "connect to the target: ")
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.ErrorContains(t, err, "127.0.0.1:2")
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), "hidden")
}

func TestPassfileReplacesTheUsualOne(t *testing.T) {
	directory := filepath.Join(t.TempDir(), `it's a\ dir+&?`)
	require.NoError(t, os.Mkdir(directory, 0o700))
	file := filepath.Join(directory, "pass")
	require.NoError(t, os.WriteFile(file, []byte("h:*:d:u:secret\n"), 0o600))
	t.Setenv("PGPASSFILE", "/nowhere")
	for _, text := range []string{"postgres://u@h/d", "postgresql://u@h/d?sslmode=disable", "host=h user=u dbname=d", "host=h user=u dbname=d passfile=/nowhere"} {
		config, err := controlConfig(text, file, "orders")
		require.NoError(t, err)
		require.Equal(t, "secret", config.Password, text)
	}
}

func TestCanceledStatementKeepsTheSession(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	conn := connect(t, uri, "orders")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := conn.Exec(ctx, `SELECT pg_catalog.pg_sleep(600)`)
		done <- err
	}()
	pgtest.WaitFor(t, uri, `select count(*) from pg_stat_activity where application_name = 'pgapply:orders:control' and wait_event = 'PgSleep'`, "1")
	cancel()
	require.Error(t, <-done)
	answer, err := conn.Query(t.Context(), `SELECT 42`)
	require.NoError(t, err)
	number, err := pgx.CollectOneRow(answer, pgx.RowTo[int])
	require.NoError(t, err)
	require.Equal(t, 42, number)
}
