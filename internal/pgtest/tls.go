package pgtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
)

// Certificate makes a self-signed certificate for 127.0.0.1, in PEM.
func Certificate(t testing.TB) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// TurnOnTLS gives the server a certificate and returns a file that holds it.
func TurnOnTLS(t testing.TB, server *cluster.Cluster) (root string) {
	t.Helper()
	public, key := Certificate(t)
	data := filepath.Join(server.Dir(), "data")
	owner, err := os.Stat(data)
	require.NoError(t, err)
	for name, content := range map[string][]byte{"server.crt": public, "server.key": key} {
		path := filepath.Join(data, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		require.NoError(t, os.Chown(path, int(owner.Sys().(*syscall.Stat_t).Uid), -1))
	}
	root = filepath.Join(t.TempDir(), "root.crt")
	require.NoError(t, os.WriteFile(root, public, 0o600))
	Exec(t, server.URI("postgres"), `alter system set ssl = on`, `select pg_reload_conf()`)
	WaitFor(t, server.URI("postgres"), `show ssl`, "on")
	return root
}
