package source

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// certificate makes a self-signed certificate for 127.0.0.1, in PEM.
func certificate(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "publisher"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// turnOnTLS gives the server a certificate and returns a file that holds it.
func turnOnTLS(t *testing.T, server *cluster.Cluster) (root string) {
	t.Helper()
	public, key := certificate(t)
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
	pgtest.Exec(t, server.URI("postgres"), `alter system set ssl = on`, `select pg_reload_conf()`)
	pgtest.WaitFor(t, server.URI("postgres"), `show ssl`, "on")
	return root
}

func TestTLS(t *testing.T) {
	server := pgtest.Start(t)
	root := turnOnTLS(t, server)
	at := func(mode, root string) string {
		return fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=%s sslrootcert=%s", server.Port(), mode, root)
	}
	t.Run("stream", func(t *testing.T) {
		uri := at("verify-full", root)
		pgtest.Exec(t, uri, `create table t (a int primary key, b text)`, `create publication p for table t`)
		_, err := connectTo(t, uri).CreateSlot(t.Context(), SlotOptions{Name: "s_tls"})
		require.NoError(t, err)
		stream := startStream(t, uri, StreamOptions{Slot: "s_tls", StatusInterval: time.Millisecond})
		require.IsType(t, &tls.Conn{}, stream.net)
		require.Equal(t, "t", pgtest.Query(t, uri, `select ssl from pg_stat_ssl where pid = $1`, fmt.Sprint(stream.conn.pg.PID())))
		const rows = 20_000
		pgtest.Exec(t, uri, fmt.Sprintf(`insert into t select i, repeat('x', i %% 500) from generate_series(1, %d) i`, rows))
		seen, commit := receiveUntil(t, stream, "C")
		require.Equal(t, rows, strings.Count(seen, "I"))
		stream.Report(Position{Flushed: commit.WALStart}, false)
		var received atomic.Int64
		ended := make(chan error, 1)
		go func() { ended <- follow(stream, &received) }()
		awaitSilence(stream.socket)
		stream.Interrupt()
		require.ErrorIs(t, <-ended, ErrInterrupted)
		require.NoError(t, stream.Stop(t.Context()))
		pgtest.WaitFor(t, uri, `select active, confirmed_flush_lsn >= $1::pg_lsn from pg_replication_slots`, "f|t", commit.WALStart.String())
	})
	t.Run("another certificate", func(t *testing.T) {
		other := filepath.Join(t.TempDir(), "other.crt")
		public, _ := certificate(t)
		require.NoError(t, os.WriteFile(other, public, 0o600))
		_, err := Connect(t.Context(), Options{URI: at("verify-full", other)})
		require.Equal(t, Configuration, ClassOf(err), "%v", err)
		require.ErrorContains(t, err, "sslrootcert")
	})
	t.Run("another name", func(t *testing.T) {
		uri := fmt.Sprintf("host=localhost port=%d user=postgres dbname=postgres sslmode=verify-full sslrootcert=%s", server.Port(), root)
		_, err := Connect(t.Context(), Options{URI: uri})
		require.Equal(t, Configuration, ClassOf(err), "%v", err)
	})
	t.Run("closed in the middle", func(t *testing.T) {
		uri := at("require", root)
		stream := startStream(t, uri, StreamOptions{Slot: "s_tls"})
		result := make(chan error, 1)
		go func() {
			var received atomic.Int64
			result <- follow(stream, &received)
		}()
		awaitSilence(stream.socket)
		require.NoError(t, stream.Close())
		require.ErrorIs(t, <-result, ErrClosed)
	})
}
