package source

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestForcedSettingsGoBehindThoseOfTheUser(t *testing.T) {
	options := Options{
		URI:             "postgres://u@h/d?options=-c%20work_mem%3D1MB%20-c%20datestyle%3DGerman&DateStyle=SQL&search_path=x&client_encoding=LATIN1&replication=off",
		ApplicationName: "sub",
	}
	config, err := options.config()
	require.NoError(t, err)
	user, forced, _ := strings.Cut(config.RuntimeParams["options"], " -c datestyle=ISO")
	require.Equal(t, "-c work_mem=1MB -c datestyle=German", user)
	require.Contains(t, forced, " -c extra_float_digits=3")
	require.NotContains(t, config.RuntimeParams, "DateStyle", "a setting of its own in the startup packet goes before options")
	require.Equal(t, "x", config.RuntimeParams["search_path"])
	require.Equal(t, "UTF8", config.RuntimeParams["client_encoding"])
	require.Equal(t, "database", config.RuntimeParams["replication"])
	require.Equal(t, "sub", config.RuntimeParams["application_name"])
	require.Equal(t, defaultConnectTimeout, config.ConnectTimeout)
}

func TestConnectionStringGoesBeforeDefaults(t *testing.T) {
	options := Options{
		URI:             "host=h application_name=other connect_timeout=7 keepalives_idle=3 load_balance_hosts=disable gssencmode=prefer",
		ApplicationName: "sub", ClientEncoding: "LATIN1",
	}
	config, err := options.config()
	require.NoError(t, err)
	require.Equal(t, "other", config.RuntimeParams["application_name"])
	require.Equal(t, "LATIN1", config.RuntimeParams["client_encoding"])
	require.Equal(t, 7*time.Second, config.ConnectTimeout)
	for _, name := range localKeywords {
		require.NotContains(t, config.RuntimeParams, name)
	}
}

func TestPassfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), `it's a "pass" & file`)
	require.NoError(t, os.WriteFile(path, []byte("*:*:*:*:secret\n"), 0o600))
	for _, uri := range []string{
		"postgres://u@h/d", "postgresql://u@h", "postgres://u@h/d?sslmode=disable", "host=h user=u", "", "postgres://u@h/d?passfile=/nowhere",
	} {
		options := Options{URI: uri, Passfile: path}
		config, err := options.config()
		require.NoError(t, err, uri)
		require.Equal(t, "secret", config.Password, uri)
	}
	options := Options{URI: "host=h", Passfile: path + "x"}
	_, err := options.config()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, Configuration, ClassOf(err))
}

func TestUnusableConnectionStrings(t *testing.T) {
	for _, uri := range []string{
		"postgres://u:hunter2@h:port/d", "postgres://u:hunter2@h:1,h:2,h:3:4/d", "password=hunter2 host", "host=h password=hunter2 sslmode=maybe",
		"host=h password=hunter2 target_session_attrs=any-thing", "host=h password=hunter2 hostaddr=10.0.0.1",
		"host=h password=hunter2 gssencmode=require", "host=h password=hunter2 requirepeer=postgres",
		"postgres://u:hun`: hunter2@h:x/d", "service=hunter2 servicefile=/nowhere",
	} {
		options := Options{URI: uri}
		_, err := options.config()
		require.Error(t, err, uri)
		require.Equal(t, Configuration, ClassOf(err), uri)
		for cause := err; cause != nil; cause = errors.Unwrap(cause) {
			if !strings.HasPrefix(uri, "service") {
				require.NotContains(t, cause.Error(), "hunter2", uri)
			}
		}
	}
}

func TestQuoting(t *testing.T) {
	require.Equal(t, `"a""b"`, identifier(`a"b`))
	require.Equal(t, `'it''s'`, literal(`it's`))
	require.Equal(t, ` E'\\'''`, literal(`\'`))
	require.Equal(t, `'\'''`, commandLiteral(`\'`))
}
