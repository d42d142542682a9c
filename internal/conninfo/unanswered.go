package conninfo

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Attend wraps a dial function so that UnansweredSince can tell how long a server has been
// silent after it was asked something.
//
// TCP_USER_TIMEOUT is no way to that: it also ends connections to a server that lives, is
// busy with a long statement, and does not read meanwhile what more there is (tcp(7):
// "or buffered data may remain untransmitted").
func Attend(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &attended{Conn: conn, born: time.Now()}, nil
	}
}

// attended is a connection that notes when the server was asked. One goroutine may write,
// another read, and any ask.
type attended struct {
	net.Conn
	born time.Time
	// asked is when the first byte was written that was followed by none of the server's,
	// in nanoseconds after born; 0 for never.
	asked atomic.Int64
}

// Write implements net.Conn.
func (c *attended) Write(p []byte) (int, error) {
	c.asked.CompareAndSwap(0, int64(time.Since(c.born))|1)
	return c.Conn.Write(p)
}

// Read implements net.Conn.
func (c *attended) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.asked.Store(0)
	}
	return n, err
}

// UnansweredSince tells since when a server owes an answer on a connection that was dialled
// by Attend, with TLS above or without. It is the zero time if it owes none. It may be
// called from any goroutine.
func UnansweredSince(conn net.Conn) time.Time {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	c, ok := conn.(*attended)
	if !ok {
		return time.Time{}
	}
	asked := c.asked.Load()
	if asked == 0 {
		return time.Time{}
	}
	return c.born.Add(time.Duration(asked))
}
