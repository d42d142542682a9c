package conninfo

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What either side says in a handshake that cannot succeed is about TLS; what becomes of the
// connection for other reasons is not.
func TestIsTLS(t *testing.T) {
	certificate, pool := certify(t, "server")
	stranger, strangers := certify(t, "client")
	served := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	demanding := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: served.Certificates, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	for name, test := range map[string]struct{ server, client *tls.Config }{
		"another name":                  {served, &tls.Config{RootCAs: pool, ServerName: "other"}},
		"another authority":             {served, &tls.Config{RootCAs: strangers, ServerName: "server"}},
		"no certificate of ours":        {demanding, &tls.Config{RootCAs: pool, ServerName: "server"}},
		"a certificate that none knows": {demanding, &tls.Config{RootCAs: pool, ServerName: "server", Certificates: []tls.Certificate{stranger}}},
		"an old protocol":               {served, &tls.Config{RootCAs: pool, ServerName: "server", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}}, //nolint:gosec // to be refused
	} {
		t.Run(name, func(t *testing.T) {
			err := handshake(t, test.server, test.client)
			require.Error(t, err)
			require.True(t, IsTLS(fmt.Errorf("connect: %w", err)), "%T: %v", err, err)
		})
	}
	require.NoError(t, handshake(t, served, &tls.Config{RootCAs: pool, ServerName: "server"}))
	require.True(t, IsTLS(errors.New("server refused TLS connection")))
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNREFUSED, &net.OpError{Op: "read", Err: syscall.ECONNRESET}} {
		require.False(t, IsTLS(err), err)
	}
}

// handshake is what the client has of it, the first bytes from the server included, with
// which a refusal of its certificate comes.
func handshake(t *testing.T, server, client *tls.Config) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	ended := make(chan struct{})
	defer func() { <-ended }()
	go func() {
		defer close(ended)
		accepted, err := listener.Accept()
		if err != nil {
			return
		}
		defer accepted.Close()
		if conn := tls.Server(accepted, server); conn.Handshake() == nil {
			_, _ = conn.Write([]byte("R"))
		}
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.ReadFull(tls.Client(conn, client), make([]byte, 1))
	return err
}

// certify makes a certificate for a name, and a pool that trusts it alone.
func certify(t *testing.T, name string) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	encoded, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(encoded)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{encoded}, PrivateKey: key}, pool
}
