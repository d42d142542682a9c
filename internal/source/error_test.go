package source

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

func TestClassOf(t *testing.T) {
	state := func(code string) error { return &pgconn.PgError{Code: code} }
	for want, errs := range map[Class][]error{
		Other: {
			nil, ErrInterrupted, ErrClosed, errors.New("x"), context.Canceled, state("XX000"), state("23505"), &FrameError{},
			state("58P01"), // a file is missing: what that means for a slot, a start from it finds out
			&net.OpError{Op: "read", Err: context.Canceled},
		},
		Transient: {
			ErrPublisherStopped, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNREFUSED, os.ErrDeadlineExceeded, context.DeadlineExceeded,
			net.ErrClosed, pgconn.ErrConnClosed, &net.OpError{Op: "dial", Err: syscall.ENETUNREACH}, &net.DNSError{IsTemporary: true},
			state("08006"), state("57P01"), state("57P03"), state("53300"), state("55006"), state("40001"), state("40P01"), pgconn.ErrReadOnlyConnection,
			&SlotBusyError{}, &ReceiveTimeoutError{},
		},
		Authentication: {state("28P01"), state("28000"), &AuthenticationError{Err: io.EOF}},
		Configuration: {
			&ConfigurationError{Err: io.EOF}, &PublicationMissingError{}, state("0A000"), state("3D000"), state("42501"), state("42601"),
			x509.UnknownAuthorityError{},
			&net.DNSError{IsNotFound: true},
		},
		SlotLost: {&SlotMissingError{Err: io.EOF}, &SlotLostError{}},
	} {
		for _, err := range errs {
			require.Equal(t, want, ClassOf(err), "%#v", err)
			if err != nil {
				require.Equal(t, want, ClassOf(fmt.Errorf("somewhere: %w", err)), "%#v", err)
			}
		}
	}
}
