package conninfo

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgconn"
)

// limitTLS applies ssl_min_protocol_version and ssl_max_protocol_version, which pgconn
// takes for settings of the server, to every way to connect.
func limitTLS(config *pgconn.Config) error {
	versions := map[string]uint16{"": 0, "TLSv1": tls.VersionTLS10, "TLSv1.1": tls.VersionTLS11, "TLSv1.2": tls.VersionTLS12, "TLSv1.3": tls.VersionTLS13}
	take := func(name, variable string) (uint16, error) {
		text := cmp.Or(config.RuntimeParams[name], os.Getenv(variable))
		delete(config.RuntimeParams, name)
		version, known := versions[text]
		if !known {
			return 0, fmt.Errorf("%s is none of TLSv1, TLSv1.1, TLSv1.2, TLSv1.3", name)
		}
		return version, nil
	}
	least, err := take("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION")
	if err != nil {
		return err
	}
	most, err := take("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION")
	if err != nil {
		return err
	}
	limit := func(settings *tls.Config) {
		if settings != nil {
			settings.MinVersion, settings.MaxVersion = cmp.Or(least, settings.MinVersion), cmp.Or(most, settings.MaxVersion)
		}
	}
	limit(config.TLSConfig)
	for _, fallback := range config.Fallbacks {
		limit(fallback.TLSConfig)
	}
	return nil
}
