package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// listener is who waits on the session for notifications while no other method uses
// it. It reads without end; a method that wants the session breaks the read off by a
// deadline, which neither loses what has arrived in part nor ends the connection.
type listener struct {
	sync.Mutex
	// wanted counts the methods that wait for the session; alone is signalled when
	// there are none any more, or when the listener is to end.
	wanted int
	alone  sync.Cond
	// reading: the listener has the session and is in the read.
	reading bool
}

// lock takes the session from the listener and from other methods; s.mu.Unlock gives
// it back.
func (s *Store) lock() {
	l := &s.listener
	l.Lock()
	l.wanted++
	s.breakOff()
	l.Unlock()
	s.mu.Lock()
	l.Lock()
	l.wanted--
	if l.wanted == 0 {
		l.alone.Broadcast()
	}
	l.Unlock()
}

// breakOff ends the listener's read, if it is in one. s.listener is locked, and conn
// stays the same, so s.mu need not be.
func (s *Store) breakOff() {
	if s.listener.reading {
		_ = s.mu.conn.PgConn().Conn().SetReadDeadline(time.Unix(1, 0)) // else the connection is gone, and the read ends too
	}
}

// listenSQL asks the target for the notifications of [Channel].
const listenSQL = `LISTEN ` + Channel

// Notified calls told whenever the subscription's runner was told something since
// [Store.StartRunner], until ctx ends, and returns nil then. Other methods may be called
// meanwhile; told must not block, since they wait for it. The error is that of a lost
// session. Only one Notified runs at a time.
func (s *Store) Notified(ctx context.Context, told func()) error {
	defer context.AfterFunc(ctx, func() {
		s.listener.Lock()
		defer s.listener.Unlock()
		s.breakOff()
		s.listener.alone.Broadcast()
	})()
	for {
		notification, err := s.notification(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case notification != nil && notification.Payload == s.name:
			told()
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("listen for commands (subscription %q): %w", s.name, err)
		}
	}
}

// notification waits until nobody wants the session, and then for a notification.
// There may be none: when ctx ends, or when somebody wants the session again.
func (s *Store) notification(ctx context.Context) (*pgconn.Notification, error) {
	l := &s.listener
	l.Lock()
	for l.wanted > 0 && ctx.Err() == nil {
		l.alone.Wait()
	}
	l.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	l.Lock()
	l.reading = l.wanted == 0 && ctx.Err() == nil
	reading := l.reading
	l.Unlock()
	if !reading {
		return nil, nil
	}
	defer func() {
		l.Lock()
		defer l.Unlock()
		l.reading = false
		_ = s.mu.conn.PgConn().Conn().SetReadDeadline(time.Time{})
	}()
	// Not ctx, whose end would send a cancel request to the server.
	return s.mu.conn.WaitForNotification(context.Background())
}
