package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/internal/conninfo"
)

// Class says what an error of this package asks for.
type Class uint8

// The classes of errors.
const (
	// Other fits no other class.
	Other Class = iota
	// Transient errors pass with time: reconnect after a pause.
	Transient
	// Authentication: the publisher refuses the login.
	Authentication
	// Configuration: an option, the connection string, or the publisher's set-up is wrong.
	Configuration
	// SlotLost: the slot is gone or has lost what it must keep. Only a new copy helps.
	SlotLost
)

// ErrPublisherStopped is returned by Stream.Receive when the publisher has
// ended the stream in order, as a shutdown does. Reconnect.
var ErrPublisherStopped = errors.New("the publisher ended the stream")

// ErrInterrupted is returned by Stream.Receive after Stream.Interrupt.
var ErrInterrupted = errors.New("interrupted")

// ErrClosed is returned by Stream.Receive after Stream.Close.
var ErrClosed = errors.New("the stream is closed")

// ConfigurationError is a mistake in the options, in the connection string or
// in the set-up of the publisher. Reason names the remedy.
type ConfigurationError struct {
	Reason string
	Err    error // the cause, or nil
}

func (e *ConfigurationError) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return e.Reason + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *ConfigurationError) Unwrap() error { return e.Err }

// AuthenticationError is a refused login.
type AuthenticationError struct {
	// Server is what refuses: the publisher, or its primary.
	Server         string
	User, Database string
	Err            error
}

func (e *AuthenticationError) Error() string {
	return fmt.Sprintf("the %s refuses user %q for database %q: %s", e.Server, e.User, e.Database, e.Err)
}

// Unwrap returns the cause.
func (e *AuthenticationError) Unwrap() error { return e.Err }

// SlotBusyError says that another session streams from the slot.
type SlotBusyError struct {
	Slot string
	// PID of the walsender that holds it, 0 when the publisher did not say.
	PID int
	// Holder is who that is, nil when the publisher does not know any more.
	Holder *Holder
	Err    error
}

func (e *SlotBusyError) Error() string {
	if e.Holder != nil {
		return fmt.Sprintf("replication slot %q is in use by %s", e.Slot, e.Holder)
	}
	return fmt.Sprintf("replication slot %q is in use by the session with pid %d", e.Slot, e.PID)
}

// Unwrap returns the cause.
func (e *SlotBusyError) Unwrap() error { return e.Err }

// SlotMissingError says that the publisher has no such slot.
type SlotMissingError struct {
	Slot string
	Err  error
}

func (e *SlotMissingError) Error() string {
	return fmt.Sprintf("replication slot %q does not exist on the publisher", e.Slot)
}

// Unwrap returns the cause.
func (e *SlotMissingError) Unwrap() error { return e.Err }

// SlotLostError says that the slot is there, but what it must keep is not.
type SlotLostError struct {
	Slot string
	// Reason is the publisher's word for it, such as wal_removed.
	Reason string
	Err    error
}

func (e *SlotLostError) Error() string {
	return fmt.Sprintf("replication slot %q is lost (%s): what it kept for us is gone, so the tables need a new copy", e.Slot, e.Reason)
}

// Unwrap returns the cause.
func (e *SlotLostError) Unwrap() error { return e.Err }

// PublicationMissingError says that a publication did not exist at the moment of a
// change, so that the publisher does not know what of it to send. Publishers up to 17
// refuse to go on there; for later ones this package does.
type PublicationMissingError struct{ Err error }

func (e *PublicationMissingError) Error() string {
	return fmt.Sprintf("a publication does not exist, or did not when the change was made; the slot cannot pass that change: %s", e.Err)
}

// Unwrap returns the cause.
func (e *PublicationMissingError) Unwrap() error { return e.Err }

// FrameError says that what the publisher sends is not what a stream consists of, or
// cannot be true. Nothing that follows on the connection can be trusted.
type FrameError struct {
	Reason string
	Err    error // the cause, or nil
}

func (e *FrameError) Error() string {
	text := "the publisher's stream is broken: " + e.Reason
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *FrameError) Unwrap() error { return e.Err }

// ReceiveTimeoutError says that the publisher was silent while we listened, and
// did not answer when asked. It stands in no relation to how fast we apply.
type ReceiveTimeoutError struct{ Silence time.Duration }

func (e *ReceiveTimeoutError) Error() string {
	return fmt.Sprintf("nothing came from the publisher for %v: the connection is given up", e.Silence.Round(time.Millisecond))
}

// Timeout tells that time has run out, as net.Error does.
func (e *ReceiveTimeoutError) Timeout() bool { return true }

// ClassOf sorts an error of this package by what it asks for.
func ClassOf(err error) Class {
	switch {
	case err == nil:
		return Other
	case is[*SlotMissingError](err), is[*SlotLostError](err):
		return SlotLost
	case is[*SlotBusyError](err), is[*TablesLockedError](err), is[*ReceiveTimeoutError](err), errors.Is(err, ErrPublisherStopped):
		return Transient
	case is[*AuthenticationError](err):
		return Authentication
	case is[*ConfigurationError](err), is[*PublicationMissingError](err), is[*conninfo.Error](err):
		return Configuration
	case errors.Is(err, ErrInterrupted), errors.Is(err, ErrClosed), errors.Is(err, context.Canceled):
		return Other
	}
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		return classOfState(server.Code)
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok && lookup.IsNotFound {
		return Configuration
	}
	if conninfo.IsTLS(err) {
		return Configuration
	}
	if isNetwork(err) || isWrongRole(err) {
		return Transient
	}
	return Other
}

// classOfState sorts by SQLSTATE, PostgreSQL manual appendix A.
func classOfState(state string) Class {
	switch {
	case strings.HasPrefix(state, "08"), strings.HasPrefix(state, "57P"), state == "53300", state == "55006",
		state == "57014", state == "53100", state == "53200",
		// A standby cancels what stands in the way of its recovery.
		state == "40001", state == "40P01":
		return Transient
	case strings.HasPrefix(state, "28"):
		return Authentication
	case strings.HasPrefix(state, "42"), strings.HasPrefix(state, "3D"), strings.HasPrefix(state, "22"),
		state == "0A000", state == "53400", state == "55000", state == "25006":
		return Configuration
	}
	return Other
}

func isNetwork(err error) bool {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return true
	}
	return is[*net.OpError](err) || is[syscall.Errno](err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, pgconn.ErrConnClosed) || is[*net.DNSError](err)
}

// isWrongRole tells that no host had the role which target_session_attrs asks
// for, as it is while a standby takes over.
func isWrongRole(err error) bool {
	return errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, pgconn.ErrReadWriteConnection) ||
		errors.Is(err, pgconn.ErrPrimaryConnection) || errors.Is(err, pgconn.ErrStandbyConnection)
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// connectError gives a failed attempt its type. The message lists every address
// that was tried; it names neither password nor connection string.
func connectError(name string, config *pgconn.Config, err error) error {
	err = conninfo.ConnectError(err)
	server, isServer := errors.AsType[*pgconn.PgError](err)
	switch {
	case isServer && classOfState(server.Code) == Authentication, isServer && server.Code == "42501":
		return &AuthenticationError{Server: name, User: config.User, Database: config.Database, Err: err}
	case isServer && server.Code == "3D000":
		return &ConfigurationError{Reason: fmt.Sprintf("the %s has no database %q: check the connection string", name, config.Database), Err: err}
	case isServer && classOfState(server.Code) == Configuration:
		return &ConfigurationError{Reason: "the " + name + " refuses the session", Err: err}
	case isServer:
	case conninfo.IsTLS(err):
		return &ConfigurationError{Reason: fmt.Sprintf("no TLS connection with the %s: check sslmode and sslrootcert, and ssl on the %[1]s", name), Err: err}
	}
	return fmt.Errorf("connect to the %s: %w", name, err)
}

var lastNumber = regexp.MustCompile(`(\d+)\D*$`)

// pidIn finds the process in "replication slot "x" is active for PID 42", in
// any language of the server.
func pidIn(message string) int {
	match := lastNumber.FindStringSubmatch(message)
	if match == nil {
		return 0
	}
	pid, err := strconv.Atoi(match[1])
	if err != nil {
		return 0
	}
	return pid
}
