package conninfo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

func TestSettingsGoBeforeThoseOfTheString(t *testing.T) {
	config, err := Parse("target", "host=h connect_timeout=7 keepalives_idle=3 load_balance_hosts=disable gssencmode=prefer DateStyle=SQL work_mem=1MB",
		"", map[string]string{"datestyle": "ISO"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"datestyle": "ISO", "work_mem": "1MB"}, config.RuntimeParams)
	require.Equal(t, 7*time.Second, config.ConnectTimeout)
	config, err = Parse("target", "host=h", "", nil)
	require.NoError(t, err)
	require.Equal(t, ConnectTimeout, config.ConnectTimeout)
}

func TestPassfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), `it's a "pass" & file`)
	require.NoError(t, os.WriteFile(path, []byte("*:*:*:*:secret\n"), 0o600))
	for _, uri := range []string{
		"postgres://u@h/d", "postgresql://u@h", "postgres://u@h/d?sslmode=disable", "host=h user=u", "", "postgres://u@h/d?passfile=/nowhere",
	} {
		config, err := Parse("publisher", uri, path, nil)
		require.NoError(t, err, uri)
		require.Equal(t, "secret", config.Password, uri)
	}
	_, err := Parse("publisher", "host=h", path+"x", nil)
	require.ErrorContains(t, err, "no such file")
}

func TestUnusableConnectionStrings(t *testing.T) {
	for _, uri := range []string{
		"postgres://u:hunter2@h:port/d", "postgres://u:hunter2@h:1,h:2,h:3:4/d", "password=hunter2 host", "host=h password=hunter2 sslmode=maybe",
		"host=h password=hunter2 target_session_attrs=any-thing", "host=h password=hunter2 hostaddr=hunter2", "host=h password=hunter2 hostaddr=10.0.0.1,10.0.0.2", "host=h,h password=hunter2 hostaddr=10.0.0.1",
		"host=h,/tmp password=hunter2 hostaddr=10.0.0.1,10.0.0.2", "host=h password=hunter2 sslcrl=hunter2",
		"host=h password=hunter2 gssencmode=require", "host=h password=hunter2 requirepeer=postgres",
		"postgres://u:secret@hunter2@h/d", "postgres://u:secret@hunter2@h1,h2:1/d", "postgres://u@h/d?password=secret&hunter2", "host=h password=secret hunter2 dbname=d",
		"postgres://u:hun`: hunter2@h:x/d", "service=hunter2 servicefile=/nowhere",
	} {
		_, err := Parse("publisher", uri, "", nil)
		typed, ok := errors.AsType[*Error](err)
		require.True(t, ok, uri)
		require.Equal(t, "publisher", typed.Server)
		for cause := err; cause != nil; cause = errors.Unwrap(cause) {
			if !strings.HasPrefix(uri, "service") {
				require.NotContains(t, cause.Error(), "hunter2", uri)
			}
		}
	}
}

func TestConnectErrorSaysEachThingOnce(t *testing.T) {
	const noTLS = "tls error: server refused TLS connection"
	for said, want := range map[string]string{
		"1.1.1.1:5 (h): dial error: refused\n1.1.1.1:5 (h): dial error: refused":      "1.1.1.1:5 (h): dial error: refused",
		"1.1.1.1:5 (h): " + noTLS + "\n1.1.1.1:5 (h): server error: no such database": "1.1.1.1:5 (h): server error: no such database",
		"1.1.1.1:5 (h): " + noTLS: "1.1.1.1:5 (h): " + noTLS,
		"1.1.1.1:5 (h): " + noTLS + "\n1.1.1.2:5 (i): server error: no such role": "1.1.1.1:5 (h): " + noTLS + "; 1.1.1.2:5 (i): server error: no such role",
	} {
		require.Equal(t, want, (&flatError{errors.New(said)}).Error())
	}
}

func TestConnectErrorIsOneLine(t *testing.T) {
	config, err := Parse("target", "postgres://u:hunter2@127.0.0.1:1,127.0.0.1:2/d?sslmode=disable", "", nil)
	require.NoError(t, err)
	_, err = pgconn.ConnectConfig(t.Context(), &config.Config)
	err = ConnectError(err)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.ErrorContains(t, err, "127.0.0.1:2")
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), "hunter2")
}
