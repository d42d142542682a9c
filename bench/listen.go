package main

import (
	"context"
	"errors"
	"fmt"
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
	gone   chan struct{} // closed when the goroutine that listens has ended, with
	err    error         // why
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
	l := &listener{conn: conn, cancel: cancel, heard: make(chan time.Time, 16), gone: make(chan struct{})}
	go func() {
		defer close(l.gone)
		for {
			if _, l.err = conn.WaitForNotification(listening); l.err != nil {
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
	case <-l.gone:
		return time.Time{}, fmt.Errorf("listen for the end of the backlog: %w", l.err)
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}

func (l *listener) close() {
	l.cancel()
	<-l.gone
	_ = l.conn.Close(context.Background()) // the cancelled wait has broken it
}
