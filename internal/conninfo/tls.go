package conninfo

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

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

// IsTLS tells that there is no TLS as it was asked for: the server has none, or is not who
// it should be, or does not take who we are. Time does not cure that.
func IsTLS(err error) bool {
	return is[*tls.CertificateVerificationError](err) || is[x509.HostnameError](err) || is[x509.UnknownAuthorityError](err) ||
		is[x509.CertificateInvalidError](err) || is[tls.RecordHeaderError](err) || refused(err) ||
		strings.Contains(err.Error(), "server refused TLS connection") // pgconn has no type for it
}

// refused tells that the server has ended the handshake for what we are or can do. Package
// tls has no type for what the other side says.
func refused(err error) bool {
	operation, ok := errors.AsType[*net.OpError](err)
	if !ok || operation.Op != "remote error" {
		return false
	}
	said := operation.Err.Error()
	return strings.Contains(said, "certificate") || strings.Contains(said, "protocol version") || strings.Contains(said, "handshake failure")
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
