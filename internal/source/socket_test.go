package source

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// forEachSocket runs a test with every kind of socket over every network. The
// test gets both ends of a connection; only the first is ours.
func forEachSocket(t *testing.T, test func(t *testing.T, ours socket, peer net.Conn)) {
	kinds := map[string]func(net.Conn) (socket, error){
		"native":   newSocket,
		"portable": func(conn net.Conn) (socket, error) { return newPacedConn(conn), nil },
	}
	for kind, wrap := range kinds {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(kind+"/"+network, func(t *testing.T) {
				address := "127.0.0.1:0"
				if network == "unix" {
					address = filepath.Join(t.TempDir(), "s")
				}
				listener, err := net.Listen(network, address)
				require.NoError(t, err)
				defer listener.Close()
				conn, err := net.Dial(network, listener.Addr().String())
				require.NoError(t, err)
				peer, err := listener.Accept()
				require.NoError(t, err)
				defer peer.Close()
				ours, err := wrap(conn)
				require.NoError(t, err)
				defer ours.Close()
				require.Equal(t, listener.Addr().String(), ours.RemoteAddr().String())
				test(t, ours, peer)
			})
		}
	}
}

func TestSocketCarriesEveryByte(t *testing.T) {
	forEachSocket(t, func(t *testing.T, ours socket, peer net.Conn) {
		sent := make([]byte, 5<<20)
		_, err := rand.Read(sent)
		require.NoError(t, err)
		// The peer echoes what it gets, in pieces of all sizes.
		echoed := make(chan error, 1)
		go func() {
			_, err := io.CopyBuffer(struct{ io.Writer }{peer}, struct{ io.Reader }{peer}, make([]byte, 777))
			echoed <- errors.Join(err, peer.Close())
		}()
		written := make(chan error, 1)
		go func() {
			_, err := ours.Write(sent)
			written <- err
		}()
		received := make([]byte, len(sent))
		_, err = io.ReadFull(ours, received)
		require.NoError(t, err)
		require.True(t, bytes.Equal(sent, received))
		require.NoError(t, <-written)
		require.NoError(t, ours.Close())
		<-echoed // an error or none: we closed in the middle
	})
}

func TestSocketEnd(t *testing.T) {
	forEachSocket(t, func(t *testing.T, ours socket, peer net.Conn) {
		_, err := peer.Write([]byte("last words"))
		require.NoError(t, err)
		require.NoError(t, peer.Close())
		read, err := io.ReadAll(ours)
		require.NoError(t, err)
		require.Equal(t, "last words", string(read))
		_, err = ours.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.Zero(t, ours.silent())
	})
}

// awaitSilence returns when a read waits for bytes.
func awaitSilence(s socket) {
	for s.silent() == 0 {
		runtime.Gosched()
	}
}

func TestSocketWakesAWaitingRead(t *testing.T) {
	for what, wake := range map[string]struct {
		act  func(socket) error
		want error
	}{
		"close":             {func(s socket) error { return s.Close() }, net.ErrClosed},
		"deadline passed":   {func(s socket) error { return s.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		"deadline at epoch": {func(s socket) error { return s.SetReadDeadline(time.Unix(0, 0)) }, os.ErrDeadlineExceeded},
		"deadline of pgx":   {func(s socket) error { return s.SetDeadline(time.Date(1, 1, 1, 1, 1, 1, 1, time.UTC)) }, os.ErrDeadlineExceeded},
		"deadline to come":  {func(s socket) error { return s.SetReadDeadline(time.Now().Add(time.Millisecond)) }, os.ErrDeadlineExceeded},
		"one after another": {func(s socket) error { return errors.Join(s.SetReadDeadline(time.Now().Add(time.Hour)), s.Close()) }, net.ErrClosed},
	} {
		t.Run(what, func(t *testing.T) {
			forEachSocket(t, func(t *testing.T, ours socket, peer net.Conn) {
				result := make(chan error, 1)
				go func() {
					_, err := ours.Read(make([]byte, 10))
					result <- err
				}()
				awaitSilence(ours)
				require.NoError(t, wake.act(ours))
				err := <-result
				require.ErrorIs(t, err, wake.want)
				_, isNet := errors.AsType[net.Error](err)
				require.True(t, isNet)
			})
		})
	}
}

func TestSocketReadsAgainAfterADeadline(t *testing.T) {
	forEachSocket(t, func(t *testing.T, ours socket, peer net.Conn) {
		require.NoError(t, ours.SetReadDeadline(time.Unix(1, 0)))
		_, err := ours.Read(make([]byte, 10))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		_, err = ours.Write([]byte("x"))
		require.NoError(t, err, "a deadline for reads leaves writes alone")
		for _, deadline := range []time.Time{{}, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), time.Now().Add(time.Hour)} {
			require.NoError(t, ours.SetReadDeadline(deadline))
			_, err = peer.Write([]byte("y"))
			require.NoError(t, err)
			n, err := ours.Read(make([]byte, 10))
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
	})
}

func TestSocketWakesAWaitingWrite(t *testing.T) {
	for what, wake := range map[string]struct {
		act  func(socket) error
		want error
	}{
		"close":           {func(s socket) error { return s.Close() }, net.ErrClosed},
		"deadline passed": {func(s socket) error { return s.SetWriteDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
	} {
		t.Run(what, func(t *testing.T) {
			forEachSocket(t, func(t *testing.T, ours socket, peer net.Conn) {
				result := make(chan error, 1)
				go func() {
					var err error
					for err == nil { // until the peer, which does not read, has no room
						_, err = ours.Write(make([]byte, 1<<20))
					}
					result <- err
				}()
				<-peerHas(t, peer, 1<<16)
				require.NoError(t, wake.act(ours))
				require.ErrorIs(t, <-result, wake.want)
			})
		})
	}
}

// peerHas is closed when the peer has been sent n bytes, which it reads and no more.
func peerHas(t *testing.T, peer net.Conn, n int) <-chan struct{} {
	has := make(chan struct{})
	go func() {
		defer close(has)
		if _, err := io.ReadFull(peer, make([]byte, n)); err != nil {
			t.Error(err)
		}
	}()
	return has
}

func TestSocketAfterClose(t *testing.T) {
	forEachSocket(t, func(t *testing.T, ours socket, peer net.Conn) {
		require.NoError(t, ours.Close())
		_, err := ours.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = ours.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, ours.SetDeadline(time.Now()), net.ErrClosed)
		require.ErrorIs(t, ours.Close(), net.ErrClosed)
	})
}
