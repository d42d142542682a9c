package source

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"pgapply/internal/invariant"
)

func TestUrgentReportIsSentAtOnce(t *testing.T) {
	seen := make(chan status, 10)
	stream := withFake(t, StreamOptions{Start: 90, StatusInterval: time.Hour}, func(fake *fakePublisher) {
		for {
			s, ok := fake.status()
			if !ok {
				return
			}
			seen <- s
		}
	})
	stream.Report(Position{}, true)
	require.Equal(t, status{written: 90}, <-seen, "before the first report nothing is released")
	stream.Report(Position{Flushed: 100}, true)
	require.Equal(t, status{written: 100, flushed: 100, applied: 100}, <-seen)
	stream.Report(Position{Flushed: 100, Applied: 120}, false)
	stream.Report(Position{Flushed: 110, Applied: 130}, true)
	require.Equal(t, status{written: 130, flushed: 110, applied: 130}, <-seen)
}

func TestFlushedNeverGoesBack(t *testing.T) {
	seen := make(chan status, 10)
	stream := withFake(t, StreamOptions{StatusInterval: time.Hour}, func(fake *fakePublisher) {
		for {
			s, ok := fake.status()
			if !ok {
				return
			}
			seen <- s
		}
	})
	stream.Report(Position{Flushed: 100}, true)
	<-seen
	if invariant.Enabled {
		require.Panics(t, func() { stream.Report(Position{Flushed: 99}, true) })
		return
	}
	stream.Report(Position{Flushed: 99}, true)
	require.Equal(t, status{written: 100, flushed: 100, applied: 100}, <-seen)
}

func TestKeepaliveIsAnsweredWithTheNewestPosition(t *testing.T) {
	answer := make(chan status, 1)
	reported := make(chan struct{})
	stream := withFake(t, StreamOptions{StatusInterval: time.Hour}, func(fake *fakePublisher) {
		<-reported
		fake.keepalive(500, false)
		fake.keepalive(600, true)
		s, _ := fake.status()
		answer <- s
		fake.drain()
	})
	stream.Report(Position{Flushed: 400}, false)
	close(reported)
	for _, want := range []bool{false, true} {
		frame, err := stream.Receive()
		require.NoError(t, err)
		require.Equal(t, Keepalive, frame.Kind)
		require.Equal(t, want, frame.ReplyRequested)
	}
	require.Equal(t, status{written: 600, flushed: 400, applied: 400}, <-answer)
}

func TestSilenceIsAskedAboutAndThenEndsTheStream(t *testing.T) {
	t.Parallel()
	asked := make(chan status, 10)
	stream := withFake(t, StreamOptions{StatusInterval: time.Hour, ReceiveTimeout: time.Second}, func(fake *fakePublisher) {
		for {
			s, ok := fake.status()
			if !ok {
				close(asked)
				return
			}
			asked <- s
		}
	})
	_, err := stream.Receive()
	silence, ok := errors.AsType[*ReceiveTimeoutError](err)
	require.True(t, ok, "%v", err)
	require.GreaterOrEqual(t, silence.Silence, time.Second)
	require.Equal(t, Transient, ClassOf(err))
	require.True(t, (<-asked).replyRequested)
	_, more := <-asked
	require.False(t, more, "it is asked once")
	_, again := stream.Receive()
	require.Equal(t, err, again)
	require.NoError(t, stream.Stop(t.Context()), "a stream that has ended can be stopped")
}

func TestLargeMessageThatArrivesSlowlyIsNoSilence(t *testing.T) {
	t.Parallel()
	const pieces = 3 // each comes half of the timeout after the one before
	stream := withFake(t, StreamOptions{StatusInterval: time.Hour, ReceiveTimeout: 2 * time.Second}, func(fake *fakePublisher) {
		message, err := (&pgproto3.CopyData{Data: append(append([]byte{'w'}, make([]byte, 24+20_000)...), "payload"...)}).Encode(nil)
		if err != nil {
			t.Error(err)
		}
		for piece := range pieces {
			if s, ok := fake.status(); !ok || !s.replyRequested {
				return
			}
			begin, end := piece*len(message)/pieces, (piece+1)*len(message)/pieces
			_, _ = fake.conn.Write(message[begin:end])
		}
		fake.drain()
	})
	frame, err := stream.Receive()
	require.NoError(t, err)
	require.Equal(t, "payload", string(frame.Payload[20_000:]))
}

func TestReaderThatPausesIsNoSilence(t *testing.T) {
	t.Parallel()
	paused := make(chan struct{})
	stream := withFake(t, StreamOptions{StatusInterval: 10 * time.Millisecond, ReceiveTimeout: 50 * time.Millisecond}, func(fake *fakePublisher) {
		for range 20 { // four times the timeout
			if s, ok := fake.status(); !ok || s.replyRequested {
				t.Errorf("status %+v, %t", s, ok)
			}
		}
		fake.data("x")
		close(paused)
		fake.drain()
	})
	<-paused
	frame, err := stream.Receive()
	require.NoError(t, err)
	require.Equal(t, "x", string(frame.Payload))
}

// stuckSocket has no room for writes once it is stuck.
type stuckSocket struct {
	socket
	stuck   atomic.Bool
	waiting chan struct{} // one value for each write that blocks
	freed   chan struct{}
}

func (s *stuckSocket) Write(p []byte) (int, error) {
	if !s.stuck.Load() {
		return s.socket.Write(p)
	}
	s.waiting <- struct{}{}
	<-s.freed
	return 0, net.ErrClosed
}

func (s *stuckSocket) Close() error {
	err := s.socket.Close()
	if err == nil {
		close(s.freed)
	}
	return err
}

func TestBlockedWriteDoesNotHangTheEnd(t *testing.T) {
	for what, end := range map[string]func(*Stream) error{
		"close": func(s *Stream) error { return s.Close() },
		"stop": func(s *Stream) error {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			err := s.Stop(ctx)
			if !errors.Is(err, context.DeadlineExceeded) {
				return errors.Join(errors.New("stop did not end by its context"), err)
			}
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			stream := withFake(t, StreamOptions{StatusInterval: time.Hour}, (*fakePublisher).drain)
			inner := stream.socket
			stuck := &stuckSocket{socket: inner, waiting: make(chan struct{}, 10), freed: make(chan struct{})}
			stuck.stuck.Store(true)
			// As if the connection had always been that socket.
			stream.feedback.halt()
			stream.socket, stream.net = stuck, stuck
			stream.conn.dialer.open = []socket{stuck}
			stream.feedback = &feedback{
				conn: stuck, interval: time.Hour, timeout: time.Hour, silent: stuck.silent, arrival: stuck.arrival, fail: stream.end,
				wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
			}
			go stream.feedback.run()
			stream.Report(Position{Flushed: 1}, true)
			<-stuck.waiting
			require.NoError(t, end(stream))
			_, err := stream.Receive()
			require.Error(t, err)
		})
	}
}

func TestWriteThatTakesTooLongEndsTheStream(t *testing.T) {
	stream := withFake(t, StreamOptions{StatusInterval: 10 * time.Millisecond, ReceiveTimeout: time.Minute}, (*fakePublisher).drain)
	stream.feedback.fail(os.ErrDeadlineExceeded)
	_, err := stream.Receive()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Equal(t, Transient, ClassOf(err))
}

func TestRubbishEndsTheStream(t *testing.T) {
	for what, message := range map[string]pgproto3.BackendMessage{
		"empty frame":          &pgproto3.CopyData{},
		"unknown frame":        &pgproto3.CopyData{Data: []byte("?")},
		"short frame":          &pgproto3.CopyData{Data: []byte("w")},
		"not a stream message": &pgproto3.BindComplete{},
	} {
		t.Run(what, func(t *testing.T) {
			stream := withFake(t, StreamOptions{}, func(fake *fakePublisher) {
				fake.send(message)
				fake.data("too late")
				fake.drain()
			})
			_, err := stream.Receive()
			require.Error(t, err)
			require.Equal(t, Other, ClassOf(err))
			_, again := stream.Receive()
			require.Equal(t, err, again)
		})
	}
}

func TestCutConnectionIsTransient(t *testing.T) {
	stream := withFake(t, StreamOptions{}, func(fake *fakePublisher) {
		fake.data("x")
		_, _ = fake.conn.Write([]byte{'d', 0, 0}) // in the middle of a header
	})
	_, err := stream.Receive()
	require.NoError(t, err)
	_, err = stream.Receive()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, Transient, ClassOf(err))
}

func TestCloseWakesReceive(t *testing.T) {
	stream := withFake(t, StreamOptions{}, (*fakePublisher).drain)
	result := make(chan error, 1)
	go func() {
		_, err := stream.Receive()
		result <- err
	}()
	awaitSilence(stream.socket)
	require.NoError(t, stream.Close())
	require.ErrorIs(t, <-result, ErrClosed)
	require.NoError(t, stream.Close())
}

func TestStopOfAPublisherThatSendsOn(t *testing.T) {
	stream := withFake(t, StreamOptions{}, func(fake *fakePublisher) {
		if s, ok := fake.status(); !ok || s.flushed != 7 {
			t.Errorf("final status %+v", s)
		}
		if message, err := fake.backend.Receive(); err != nil {
			t.Error(err)
		} else if _, ok := message.(*pgproto3.CopyDone); !ok {
			t.Errorf("got %T instead of CopyDone", message)
		}
		for range 1000 {
			fake.data("the rest of a large transaction")
		}
		fake.send(&pgproto3.CopyDone{}, &pgproto3.CommandComplete{CommandTag: []byte("COPY 0")}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
		if message, err := fake.backend.Receive(); err != nil {
			t.Error(err)
		} else if _, ok := message.(*pgproto3.Terminate); !ok {
			t.Errorf("got %T instead of Terminate", message)
		}
	})
	stream.Report(Position{Flushed: 7}, false)
	stream.Interrupt()
	_, err := stream.Receive()
	require.ErrorIs(t, err, ErrInterrupted)
	require.NoError(t, stream.Stop(t.Context()))
}

func TestStopOfASilentPublisherEndsByItsContext(t *testing.T) {
	stream := withFake(t, StreamOptions{}, (*fakePublisher).drain)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- stream.Stop(ctx) }()
	awaitSilence(stream.socket)
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
}
