package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/internal/notify"
)

// act is an engine that is in the phases that the test says.
type act struct {
	mu     sync.Mutex
	status state.Status
	pulse  time.Time
	ended  chan struct{}
}

func (a *act) set(status state.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = status
}

func (a *act) Status() state.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

func (a *act) Pulse() time.Time { return a.pulse }

// Run ends when it was asked to and has finished what it had in work.
func (a *act) Run(ctx context.Context) error {
	<-ctx.Done()
	<-a.ended
	return nil
}

// serviceManager listens as systemd does.
func serviceManager(t *testing.T) *net.UnixConn {
	path := filepath.Join(t.TempDir(), "s")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "20000") // a tick is half of it
	return socket
}

func TestServiceManagerIsTold(t *testing.T) {
	socket := serviceManager(t)
	buffer := make([]byte, 1000)
	hears := func(want string) {
		t.Helper()
		for heard := ""; heard != want; {
			n, err := socket.Read(buffer)
			require.NoError(t, err)
			heard = string(buffer[:n])
		}
	}
	engine := &act{status: state.Status{Phase: state.Starting}, pulse: time.Now(), ended: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := runAsService(ctx, zap.NewNop(), engine); err != nil {
			t.Error(err)
		}
	})
	hears("STATUS=starting\nWATCHDOG=1")
	hears("WATCHDOG=1")
	engine.set(state.Status{Phase: state.Streaming})
	hears("READY=1\nSTATUS=streaming, nothing left to apply\nWATCHDOG=1")
	stop()
	hears("STOPPING=1\nSTATUS=stopping: what is being applied has 8 s to finish")
	hears("WATCHDOG=1")
	close(engine.ended)
	running.Wait()
}

// A manager that cannot be told is no reason not to replicate.
func TestServiceManagerThatIsGone(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/nonexistent/socket")
	engine := &act{ended: make(chan struct{})}
	close(engine.ended)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, runAsService(ctx, zap.NewNop(), engine))
}

func TestNewsForTheServiceManager(t *testing.T) {
	serviceManager(t)
	manager, err := notify.New(os.Getenv)
	require.NoError(t, err)
	defer manager.Close()
	silent := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, test := range []struct {
		status state.Status
		want   []string
	}{
		{state.Status{Phase: state.Starting}, []string{"STATUS=starting"}},
		{state.Status{Phase: state.Stopped}, []string{"STATUS=stopped"}},
		{state.Status{Phase: state.Paused}, []string{"READY=1", "STATUS=paused"}},
		{state.Status{Phase: state.Waiting, WaitingFor: "transactions to end"}, []string{"READY=1", "STATUS=waiting: transactions to end"}},
		{state.Status{Phase: state.Copying}, []string{"READY=1", "STATUS=copying"}},
		{state.Status{Phase: state.Copying, Copy: &state.Copy{Tables: 6, Done: 2, Share: 0.416}}, []string{"READY=1", "STATUS=copying: 2 of 6 tables done, about 42 % of the rows"}},
		{state.Status{Phase: state.Streaming, UpdatedAt: silent.Add(20 * time.Second), TargetSilentSince: &silent}, []string{"READY=1", "STATUS=the target has not answered for 20s"}},
		{state.Status{Phase: state.Streaming, LagBytes: 3 << 20, LagSeconds: 1.24}, []string{"READY=1", "STATUS=streaming, 3.0 MiB to apply, the oldest commit in it 1.2 s old"}},
		{state.Status{Phase: state.Retrying, LastError: "no\nway"}, []string{"READY=1", "STATUS=retrying after: no way"}},
	} {
		engine := &act{status: test.status} // whose last sign of life was long ago
		teller := teller{manager: manager, engine: engine}
		require.Equal(t, test.want, teller.news(false), "an engine that is stuck is not said to be alive")
		engine.pulse = time.Now()
		require.Equal(t, []string{notify.Watchdog}, teller.news(false), "nothing is said twice")
	}
}
