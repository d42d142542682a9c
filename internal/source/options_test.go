package source

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestForcedSettingsGoBeforeThoseOfTheUser(t *testing.T) {
	options := Options{
		URI:             "postgres://u@h/d?options=-c%20work_mem%3D1MB&DateStyle=SQL&search_path=x&client_encoding=LATIN1&replication=off",
		ApplicationName: "sub",
	}
	config, err := options.config()
	require.NoError(t, err)
	require.Equal(t, "-c work_mem=1MB", config.RuntimeParams["options"])
	require.Equal(t, "ISO", config.RuntimeParams["datestyle"])
	require.NotContains(t, config.RuntimeParams, "DateStyle")
	require.Equal(t, "UTF8", config.RuntimeParams["client_encoding"])
	require.Equal(t, "database", config.RuntimeParams["replication"])
	require.Equal(t, "sub", config.RuntimeParams["application_name"])
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
}

func TestConnectionStringErrorsAreConfiguration(t *testing.T) {
	options := Options{URI: "host=h sslmode=maybe"}
	_, err := options.config()
	require.Equal(t, Configuration, ClassOf(err))
}

func TestQuoting(t *testing.T) {
	require.Equal(t, `"a""b"`, identifier(`a"b`))
	require.Equal(t, `'it''s'`, literal(`it's`))
	require.Equal(t, ` E'\\'''`, literal(`\'`))
	require.Equal(t, `'\'''`, commandLiteral(`\'`))
}
