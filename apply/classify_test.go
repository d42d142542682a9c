package apply

import (
	"crypto/x509"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// What PgBouncer says to settings in the startup packet looks like a lost connection, and
// no patience cures it.
func TestPoolersAreNotTriedAgain(t *testing.T) {
	refusal := fmt.Errorf("connect: %w", &pgconn.PgError{Code: "08P01", Message: "unsupported startup parameter: search_path"})
	for class, err := range map[Class]*Error{Source: SourceError(refusal), Target: TargetError(refusal)} {
		require.Equal(t, class, err.Class)
		require.False(t, err.Retryable)
		require.Contains(t, err.Hint, "connection pooler")
	}
	require.True(t, TargetError(&pgconn.PgError{Code: "08006"}).Retryable)
}

// Nor does it cure a certificate that is another's, at either end.
func TestWrongCertificatesAreNotTriedAgain(t *testing.T) {
	wrong := fmt.Errorf("connect: %w", x509.HostnameError{Certificate: &x509.Certificate{}, Host: "other"})
	for end, err := range map[string]*Error{"--source": SourceError(wrong), "--target": TargetError(wrong)} {
		require.Equal(t, Configuration, err.Class)
		require.False(t, err.Retryable)
		require.Contains(t, err.Hint, end)
	}
	require.True(t, TargetError(io.ErrUnexpectedEOF).Retryable)
}

// What is too large for a message is so for good, whatever a major calls it.
func TestRowsBeyondAMessage(t *testing.T) {
	for _, refusal := range []*pgconn.PgError{
		{Code: "XX000", Message: "invalid memory alloc request size 1080000003"},
		{Code: "54000", Message: "string buffer exceeds maximum allowed length (1073741823 bytes)", Detail: "Cannot enlarge string buffer containing 600000000 bytes by 600000000 more bytes."},
		{Code: "54000", Message: "out of memory", Detail: "Cannot enlarge string buffer containing 600000000 bytes by 600000000 more bytes."},
	} {
		err := SourceError(fmt.Errorf("receive from the publisher: %w", refusal))
		require.Equal(t, Source, err.Class)
		require.Contains(t, err.Hint, "--binary", "%v", refusal)
	}
	for _, refusal := range []*pgconn.PgError{{Code: "54000", Message: "target lists can have at most 1664 entries"}, {Code: "XX000", Message: "cache lookup failed"}} {
		require.NotContains(t, SourceError(refusal).Hint, "--binary")
	}
}
