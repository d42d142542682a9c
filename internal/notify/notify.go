// Package notify talks to the service manager that started the process, as sd_notify(3)
// of systemd does: datagrams of NAME=VALUE lines to the Unix socket that NOTIFY_SOCKET
// names.
//
// It does not know what there is to say, and never waits for the manager.
package notify

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Manager is the service manager. Its methods may be called from several goroutines.
type Manager struct {
	connection *net.UnixConn
	watchdog   time.Duration
}

// The messages that sd_notify(3) lists and we send, beside Status.
const (
	// Ready: the start is over.
	Ready = "READY=1"
	// Stopping: the process is about to end.
	Stopping = "STOPPING=1"
	// Watchdog: the process is alive.
	Watchdog = "WATCHDOG=1"
)

// Status is a message of one line that says what the process is doing.
func Status(text string) string { return "STATUS=" + strings.ReplaceAll(text, "\n", " ") }

// New returns the manager that the environment names, or nil if it names none. Lookup is
// os.Getenv.
func New(lookup func(string) string) (*Manager, error) {
	path := lookup("NOTIFY_SOCKET")
	if path == "" {
		return nil, nil
	}
	// A leading @ is a name in the abstract namespace, for package net too.
	connection, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("connect to NOTIFY_SOCKET: %w", err)
	}
	return &Manager{connection: connection, watchdog: watchdog(lookup)}, nil
}

// watchdog is how long the manager waits between two messages; 0 for ever, also where
// another process is meant.
func watchdog(lookup func(string) string) time.Duration {
	if pid := lookup("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	microseconds, err := strconv.ParseInt(lookup("WATCHDOG_USEC"), 10, 64)
	if err != nil || microseconds <= 0 {
		return 0
	}
	return time.Duration(microseconds) * time.Microsecond
}

// Watchdog is how long the manager waits for the message Watchdog before it takes the
// process for dead; 0 if it does not.
func (m *Manager) Watchdog() time.Duration { return m.watchdog }

// sendPatience is how long a manager that does not read its socket may hold us up.
const sendPatience = time.Second

// Send sends messages at once.
func (m *Manager) Send(messages ...string) error {
	if err := m.connection.SetWriteDeadline(time.Now().Add(sendPatience)); err != nil {
		return err
	}
	_, err := m.connection.Write([]byte(strings.Join(messages, "\n")))
	return err
}

// Close ends the connection.
func (m *Manager) Close() { m.connection.Close() }
