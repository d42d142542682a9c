package conninfo

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// An address of hostaddr is what is connected to; its host is who has to answer there, and
// whose password is looked up.
func TestHostaddr(t *testing.T) {
	passfile := filepath.Join(t.TempDir(), "passfile")
	require.NoError(t, os.WriteFile(passfile, []byte("one:*:*:*:first\ntwo:*:*:*:second\n10.0.0.9:*:*:*:ninth\n[::1]:*:*:*:wrong\n"), 0o600))
	for text, want := range map[string]string{
		"host=one hostaddr=10.0.0.1 sslmode=disable":                               "10.0.0.1:5432 first",
		"postgres://one?hostaddr=10.0.0.1&sslmode=prefer":                          "10.0.0.1:5432 one first, 10.0.0.1:5432 first",
		"host=one,two hostaddr=10.0.0.1,::1 port=1,2 sslmode=require":              "10.0.0.1:1 one first, [::1]:2 two second",
		"host=one,two hostaddr=10.0.0.1,::ffff:10.0.0.2 sslmode=allow":             "10.0.0.1:5432 first, 10.0.0.1:5432 one first, [::ffff:10.0.0.2]:5432 second, [::ffff:10.0.0.2]:5432 two second",
		"host=one,one hostaddr=10.0.0.1,10.0.0.2 sslmode=verify-full":              "10.0.0.1:5432 one first, 10.0.0.2:5432 one first",
		"host=two,one hostaddr=,10.0.0.1 sslmode=verify-full":                      "two:5432 two second, 10.0.0.1:5432 one first",
		"hostaddr=10.0.0.9 sslmode=verify-full":                                    "10.0.0.9:5432 10.0.0.9 ninth",
		"host=/tmp hostaddr=10.0.0.9 sslmode=disable":                              "10.0.0.9:5432 ninth",
		"hostaddr=10.0.0.8,10.0.0.9 password=given port=1 sslmode=disable":         "10.0.0.8:1 given, 10.0.0.9:1 given",
		"postgres://u@one,two?hostaddr=10.0.0.1,10.0.0.2&port=1,2&sslmode=disable": "10.0.0.1:1 first, 10.0.0.2:2 second",
	} {
		config, err := Parse("target", text, passfile, nil)
		require.NoError(t, err, text)
		require.NotContains(t, config.RuntimeParams, "hostaddr")
		attempts := []*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}
		var got []string
		for _, attempt := range append(attempts, config.Fallbacks...) {
			parts := []string{net.JoinHostPort(attempt.Host, fmt.Sprint(attempt.Port))}
			if attempt.TLSConfig != nil {
				parts = append(parts, attempt.TLSConfig.ServerName)
			}
			got = append(got, strings.Join(append(parts, passwordAt(t, &config.Config, attempt)), " "))
		}
		require.Equal(t, want, strings.Join(got, ", "), text)
	}
	t.Setenv("PGHOSTADDR", "10.0.0.1")
	_, err := Parse("target", "host=one", "", nil)
	require.ErrorContains(t, err, "PGHOSTADDR is set")
}

// passwordAt is the one that is sent when the attempt has reached its server.
func passwordAt(t *testing.T, config *pgconn.Config, attempt *pgconn.FallbackConfig) string {
	t.Helper()
	if config.AfterNetConnect == nil {
		return config.Password
	}
	address := attempt.Host
	if _, err := netip.ParseAddr(address); err != nil {
		address = "10.1.1.1"
		lookup := config.LookupFunc
		_, _ = lookup(t.Context(), attempt.Host) // there is no such name
	}
	reached := *config
	_, err := config.AfterNetConnect(t.Context(), &reached, connectedTo{address: address, port: int(attempt.Port)})
	require.NoError(t, err)
	return reached.Password
}

type connectedTo struct {
	net.Conn
	address string
	port    int
}

func (c connectedTo) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(c.address), Port: c.port}
}

// The certificate is that of the host, wherever its address comes from.
func TestHostaddrIsVerifiedByItsHost(t *testing.T) {
	certificate, _ := certify(t, "server")
	root := filepath.Join(t.TempDir(), "root.crt")
	require.NoError(t, os.WriteFile(root, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}), 0o600))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(conn, make([]byte, 8)) // SSLRequest
			_, _ = conn.Write([]byte("S"))
			_ = tls.Server(conn, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}).Handshake()
			_ = conn.Close()
		}
	}()
	defer func() { require.NoError(t, listener.Close()); <-ended }()
	connect := func(host string) error {
		port := listener.Addr().(*net.TCPAddr).Port
		config, err := Parse("target", fmt.Sprintf("host=%s hostaddr=127.0.0.1 port=%d sslmode=verify-full sslrootcert='%s'", host, port, root), "", nil)
		require.NoError(t, err)
		_, err = pgconn.ConnectConfig(t.Context(), &config.Config)
		require.Error(t, err)
		return err
	}
	require.False(t, IsTLS(connect("server")), "it goes away after the handshake")
	require.True(t, IsTLS(connect("other")))
}
