package source

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// The kernel gives up a connection whose peer is gone after about half a minute
// of silence, well before wal_sender_timeout's default of a minute.
const (
	keepaliveIdle     = 15 * time.Second
	keepaliveInterval = 5 * time.Second
	keepaliveCount    = 3
	// userTimeout bounds how long sent data may stay without acknowledgement.
	userTimeout = 30 * time.Second
)

// Near publishers get a fixed receive buffer, which the kernel would otherwise
// let grow. While that buffer has less room than the window we have announced,
// the kernel acknowledges when we read and not after every few messages, and
// the publisher's kernel joins what it may not send yet. A far publisher needs
// the large window, and loopback has a much smaller one (see pacer).
const (
	near = time.Millisecond // time to connect: one round trip
	// nearBuffer is the largest that Linux grants without being configured.
	nearBuffer = 212992
)

// dialer opens the sockets of one Conn and owns them: those of attempts that
// failed, the one in use, and those on which pgconn cancels a query.
type dialer struct {
	wrap   func(net.Conn) (socket, error)
	ctx    context.Context // ends when the dialer is closed
	cancel context.CancelFunc

	mu   sync.Mutex
	open []socket
}

func newDialer(wrap func(net.Conn) (socket, error)) *dialer {
	if wrap == nil {
		wrap = newSocket
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &dialer{wrap: wrap, ctx: ctx, cancel: cancel}
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	tcp := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepaliveIdle, Interval: keepaliveInterval, Count: keepaliveCount,
	}, Control: limitLoopback}
	start := time.Now()
	conn, err := tcp.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if stream, ok := conn.(*net.TCPConn); ok && !isLoopback(conn.RemoteAddr()) && time.Since(start) < near {
		_ = stream.SetReadBuffer(nearBuffer) // without it only speed is lost
	}
	socket, err := d.wrap(conn)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return nil, errors.Join(net.ErrClosed, socket.Close())
	}
	d.open = append(d.open, socket)
	return socket, nil
}

func isLoopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// close closes every socket, which ends what pgconn still does with them.
func (d *dialer) close() {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.open {
		conn.Close() // most are closed already
	}
	d.open = nil
}
