package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"time"
)

// reservePort picks a TCP port on 127.0.0.1 and keeps it from other clusters,
// also of other processes, until release is called: a cluster that is stopped and
// started again must find its port free. The ports lie below those that Linux
// hands to outgoing connections. Strangers may still take one, so a start must
// be ready to try another.
func (c *cache) reservePort(ctx context.Context) (port int, release func(), err error) {
	const lowest, count = 20000, 12000
	if err := makeDirectories(filepath.Join(c.directory, "ports")); err != nil {
		return 0, nil, err
	}
	for range 100 {
		port := lowest + rand.IntN(count)
		// Held by another cluster unless the lock can be had at once.
		attempt, cancel := context.WithTimeout(ctx, time.Millisecond)
		release, err := lockFile(attempt, filepath.Join(c.directory, "ports", strconv.Itoa(port)), nil)
		cancel()
		if err != nil {
			continue
		}
		listener, err := net.Listen("tcp4", net.JoinHostPort(Host, strconv.Itoa(port)))
		if err != nil {
			release()
			continue
		}
		if err := listener.Close(); err != nil {
			release()
			return 0, nil, fmt.Errorf("close the listener that tried port %d: %w", port, err)
		}
		return port, release, nil
	}
	return 0, nil, fmt.Errorf("no free TCP port on %s among 100 between %d and %d", Host, lowest, lowest+count)
}
