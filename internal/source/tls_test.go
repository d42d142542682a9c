package source

import (
	"crypto/tls"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

func TestTLS(t *testing.T) {
	server := pgtest.Start(t)
	root := pgtest.TurnOnTLS(t, server)
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
		_, err := Connect(t.Context(), Options{URI: at("verify-full", pgtest.NewAuthority(t).Root)})
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
