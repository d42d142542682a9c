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

// dialer opens the sockets of one Conn and owns them: those of attempts that
// failed, the one in use, and those on which pgconn cancels a query.
type dialer struct {
	plain  bool
	ctx    context.Context // ends when the dialer is closed
	cancel context.CancelFunc

	mu   sync.Mutex
	open []net.Conn
}

func newDialer(plain bool) *dialer {
	ctx, cancel := context.WithCancel(context.Background())
	return &dialer{plain: plain, ctx: ctx, cancel: cancel}
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	tcp := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepaliveIdle, Interval: keepaliveInterval, Count: keepaliveCount,
	}}
	conn, err := tcp.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	socket, err := d.wrap(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return nil, errors.Join(net.ErrClosed, socket.Close())
	}
	d.open = append(d.open, socket)
	return socket, nil
}

func (d *dialer) wrap(conn net.Conn) (net.Conn, error) {
	if d.plain {
		return &watchedConn{Conn: conn, silence: newSilence()}, nil
	}
	return newSocket(conn)
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
