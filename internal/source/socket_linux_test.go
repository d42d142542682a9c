package source

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A segment that is larger than the window waits for the timer of probes.
func TestSegmentsFitTheWindowOfLoopback(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, err := net.Listen("tcp", address)
		require.NoError(t, err)
		defer listener.Close()
		dialer := newDialer(nil)
		defer dialer.close()
		ours, err := dialer.dial(t.Context(), "tcp", listener.Addr().String())
		require.NoError(t, err)
		peer, err := listener.Accept()
		require.NoError(t, err)
		defer peer.Close()
		sent := make([]byte, 1<<20)
		written := make(chan error, 1)
		go func() {
			_, err := peer.Write(sent)
			written <- err
		}()
		_, err = io.ReadFull(ours, make([]byte, len(sent)))
		require.NoError(t, err)
		require.NoError(t, <-written)
		descriptor, err := takeDescriptor(peer)
		require.NoError(t, err)
		defer unix.Close(descriptor)
		info, err := unix.GetsockoptTCPInfo(descriptor, unix.IPPROTO_TCP, unix.TCP_INFO)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Snd_mss, uint32(loopbackSegment))
	}
}
