package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
)

// reservePort picks a TCP port on 127.0.0.1 and keeps it from other clusters,
// also those of other processes, until release is called: a cluster that is
// stopped and started again must find its port free. The ports lie below those
// that Linux hands to outgoing connections. Strangers may still take one, so a
// start must be ready to try another.
func (c *cache) reservePort(ctx context.Context) (port int, release func(), err error) {
	const lowest, count, attempts = 24000, 4000, 200
	directory := filepath.Join(c.directory, "ports")
	if err := makeDirectories(directory); err != nil {
		return 0, nil, err
	}
	for range attempts {
		if ctx.Err() != nil {
			return 0, nil, fmt.Errorf("look for a free port: %w", context.Cause(ctx))
		}
		port := lowest + rand.IntN(count)
		release, err := tryLock(filepath.Join(directory, strconv.Itoa(port)))
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		listener, err := net.Listen("tcp4", net.JoinHostPort(Host, strconv.Itoa(port)))
		if err != nil {
			release()
			continue
		}
		_ = listener.Close()
		return port, release, nil
	}
	return 0, nil, fmt.Errorf("no free TCP port on %s in %d attempts from %d to %d", Host, attempts, lowest, lowest+count)
}
