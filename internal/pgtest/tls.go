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

// Authority issues certificates for a test.
type Authority struct {
	t           testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	// Root is a file with its own certificate: what sslrootcert wants.
	Root string
}

// NewAuthority makes a certificate authority that nobody else knows.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	a := &Authority{t: t, key: key, certificate: template("authority")}
	a.certificate.IsCA, a.certificate.BasicConstraintsValid = true, true
	a.certificate.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, a.certificate, a.certificate, key.Public(), key)
	require.NoError(t, err)
	a.Root = filepath.Join(t.TempDir(), "root.crt")
	require.NoError(t, os.WriteFile(a.Root, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return a
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
}

// issue makes a certificate and its key, in PEM.
func (a *Authority) issue(certificate *x509.Certificate) (public, private []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	der, err := x509.CreateCertificate(rand.Reader, certificate, a.certificate, key.Public(), a.key)
	require.NoError(a.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// Client makes the files of a client certificate for a role: sslcert and sslkey.
func (a *Authority) Client(role string) (certificate, key string) {
	a.t.Helper()
	client := template(role)
	client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	public, private := a.issue(client)
	directory := a.t.TempDir()
	certificate, key = filepath.Join(directory, "client.crt"), filepath.Join(directory, "client.key")
	require.NoError(a.t, os.WriteFile(certificate, public, 0o600))
	require.NoError(a.t, os.WriteFile(key, private, 0o600))
	return certificate, key
}

// TurnOnTLS gives the server a certificate for the address 127.0.0.1, and no name. It trusts
// the authority for its clients.
func (a *Authority) TurnOnTLS(server *cluster.Cluster) {
	a.t.Helper()
	own := template("server")
	own.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	public, key := a.issue(own)
	root, err := os.ReadFile(a.Root)
	require.NoError(a.t, err)
	for name, content := range map[string][]byte{"server.crt": public, "server.key": key, "root.crt": root} {
		writeData(a.t, server, name, content)
	}
	admin := server.URI("postgres")
	Exec(a.t, admin, `alter system set ssl = on`, `alter system set ssl_ca_file = 'root.crt'`, `select pg_reload_conf()`)
	WaitFor(a.t, admin, `select current_setting('ssl') || current_setting('ssl_ca_file')`, "onroot.crt")
}

// TurnOnTLS gives the server a certificate for 127.0.0.1, and returns the file of the
// authority that vouches for it.
func TurnOnTLS(t testing.TB, server *cluster.Cluster) (root string) {
	t.Helper()
	authority := NewAuthority(t)
	authority.TurnOnTLS(server)
	return authority.Root
}

// Admit puts entries in front of the server's pg_hba.conf.
func Admit(t testing.TB, server *cluster.Cluster, entries string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(server.Dir(), "data", "pg_hba.conf"))
	require.NoError(t, err)
	writeData(t, server, "pg_hba.conf", append([]byte(entries), text...))
	before := Query(t, server.URI("postgres"), `select pg_conf_load_time()`)
	Exec(t, server.URI("postgres"), `select pg_reload_conf()`)
	WaitFor(t, server.URI("postgres"), `select pg_conf_load_time() > $1::timestamptz and not exists (select from pg_hba_file_rules where error is not null)`, "t", before)
}

// writeData writes a file into the server's data directory.
func writeData(t testing.TB, server *cluster.Cluster, name string, content []byte) {
	t.Helper()
	data := filepath.Join(server.Dir(), "data")
	owner, err := os.Stat(data)
	require.NoError(t, err)
	path := filepath.Join(data, name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	require.NoError(t, os.Chown(path, int(owner.Sys().(*syscall.Stat_t).Uid), -1))
}
