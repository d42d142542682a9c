package conninfo

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A server owes an answer from the first byte that it was sent until the first that it
// sends, whatever comes between.
func TestUnansweredSince(t *testing.T) {
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close(); server.Close() })
	dialled, err := Attend(func(context.Context, string, string) (net.Conn, error) { return client, nil })(t.Context(), "", "")
	require.NoError(t, err)
	byte1 := make([]byte, 1)
	hear := func() {
		_, err := server.Read(byte1)
		require.NoError(t, err)
	}
	ask := func() {
		go hear()
		_, err := dialled.Write([]byte{'q'})
		require.NoError(t, err)
	}
	answer := func() {
		go func() { _, _ = server.Write([]byte{'a'}) }()
		_, err := dialled.Read(byte1)
		require.NoError(t, err)
	}
	require.Zero(t, UnansweredSince(dialled), "it was asked nothing")
	before := time.Now()
	ask()
	since := UnansweredSince(dialled)
	require.False(t, since.Before(before))
	require.False(t, since.After(time.Now()))
	ask()
	require.Equal(t, since, UnansweredSince(dialled), "it is the first that counts")
	require.Equal(t, since, UnansweredSince(tls.Client(dialled, &tls.Config{MinVersion: tls.VersionTLS12})), "below TLS")
	answer()
	require.Zero(t, UnansweredSince(dialled))
	answer()
	require.Zero(t, UnansweredSince(dialled), "it says something by itself")
	require.Zero(t, UnansweredSince(client), "nobody attends to that one")
}
