package notify

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// listen is the manager's end.
func listen(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { socket.Close() })
	return socket
}

func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for _, pair := range pairs {
			if key, value, _ := strings.Cut(pair, "="); key == name {
				return value
			}
		}
		return ""
	}
}

func TestMessages(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "s"), fmt.Sprintf("@pgapply-notify-%d", os.Getpid())} {
		socket := listen(t, name)
		manager, err := New(environment("NOTIFY_SOCKET=" + name))
		require.NoError(t, err)
		require.Zero(t, manager.Watchdog())
		require.NoError(t, manager.Send(Ready, Status("two\nlines")))
		require.NoError(t, manager.Send(Stopping))
		buffer := make([]byte, 100)
		for _, want := range []string{"READY=1\nSTATUS=two lines", "STOPPING=1"} {
			n, err := socket.Read(buffer)
			require.NoError(t, err)
			require.Equal(t, want, string(buffer[:n]))
		}
		socket.Close()
		require.Error(t, manager.Send(Ready), "nobody is there")
		manager.Close()
	}
}

func TestManagerThatIsNotThere(t *testing.T) {
	manager, err := New(environment())
	require.NoError(t, err)
	require.Nil(t, manager)
	_, err = New(environment("NOTIFY_SOCKET=/nonexistent/socket"))
	require.ErrorContains(t, err, "NOTIFY_SOCKET")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestWatchdog(t *testing.T) {
	ours := fmt.Sprintf("WATCHDOG_PID=%d", os.Getpid())
	for _, test := range []struct {
		environment []string
		want        time.Duration
	}{
		{nil, 0},
		{[]string{"WATCHDOG_USEC=30000000"}, 30 * time.Second},
		{[]string{"WATCHDOG_USEC=30000000", ours}, 30 * time.Second},
		{[]string{"WATCHDOG_USEC=30000000", "WATCHDOG_PID=1"}, 0},
		{[]string{"WATCHDOG_USEC=soon"}, 0},
		{[]string{"WATCHDOG_USEC=-1"}, 0},
	} {
		require.Equal(t, test.want, watchdog(environment(test.environment...)), "%v", test.environment)
	}
}
