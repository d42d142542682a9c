package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// arrivals is the channel on which the target says that a marker is visible.
const arrivals = "arrived"

// listener hears of markers the moment they are visible, and costs nothing while it
// waits.
type listener struct {
	conn   *pgx.Conn
	cancel context.CancelFunc
	heard  chan time.Time
	gone   chan error // why the goroutine that listens has ended
	// done and ended are the running contender's.
	done, ended <-chan struct{}
}

func listen(ctx context.Context, uri string) (*listener, error) {
	conn, err := pgx.Connect(ctx, uri)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, `LISTEN `+arrivals); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	listening, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &listener{conn: conn, cancel: cancel, heard: make(chan time.Time, 16), gone: make(chan error, 1)}
	go func() {
		for {
			_, err := conn.WaitForNotification(listening)
			if err != nil {
				l.gone <- err
				return
			}
			l.heard <- time.Now()
		}
	}()
	return l, nil
}

// wait returns when a marker has arrived, or the contender says that it has.
func (l *listener) wait(ctx context.Context) (time.Time, error) {
	select {
	case at := <-l.heard:
		return at, nil
	case <-l.done:
		return time.Now(), nil
	case <-l.ended:
		return time.Time{}, errors.New("it has ended by itself")
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}

func (l *listener) close() error {
	l.cancel()
	if err := <-l.gone; !errors.Is(err, context.Canceled) {
		return err
	}
	return l.conn.Close(context.Background())
}
