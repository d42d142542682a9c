package source

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

func TestHorizon(t *testing.T) {
	asked, end, trouble := 0, lsn.LSN(0), error(nil)
	h := horizon{known: 1000, ask: func(context.Context) (lsn.LSN, error) {
		asked++
		return end, trouble
	}}
	sees := func(position lsn.LSN) error { return h.sees(t.Context(), position) }
	require.NoError(t, sees(0))
	require.NoError(t, sees(1000))
	require.NoError(t, sees(1000+stride))
	require.Zero(t, asked, "small steps are believed")

	end = 5 * stride
	require.NoError(t, sees(5*stride))
	require.Equal(t, 1, asked, "a large one is asked about")

	var broken *FrameError
	require.ErrorAs(t, sees(^lsn.LSN(0)), &broken)
	require.ErrorContains(t, sees(1<<60), "the publisher's log ends at 1/40000000")
	trouble = errors.New("nobody answers")
	err := sees(1 << 60)
	require.ErrorIs(t, err, trouble)
	require.NotErrorAs(t, err, &broken, "that is not known to be wrong")
	require.NoError(t, sees(5*stride), "what was known stays known")
}

// A position that the publisher's log does not reach is neither passed on nor reported as
// received; one that it reaches is, however far it is.
func TestPositionBeyondTheLog(t *testing.T) {
	for _, mark := range []byte{'k', 'w'} {
		seen := make(chan status, 10)
		stream := withFake(t, StreamOptions{Start: 90}, func(fake *fakePublisher) {
			if mark == 'k' {
				fake.keepalive(1<<63, true)
			} else {
				data := binary.BigEndian.AppendUint64([]byte{'w'}, 1<<63)
				fake.raw(append(data, make([]byte, 17)...))
			}
			for {
				s, ok := fake.status()
				if !ok {
					return
				}
				seen <- s
			}
		})
		stream.horizon.ask = func(context.Context) (lsn.LSN, error) { return 5000, nil }
		_, err := stream.Receive()
		var broken *FrameError
		require.ErrorAs(t, err, &broken)
		_, again := stream.Receive()
		require.Equal(t, err, again)
		require.NoError(t, stream.Close())
		require.EqualValues(t, 90, stream.feedback.written.Load())
	}
}

// A message whose length is wrong swallows what comes behind it, which on an idle publisher
// is little, and never silence.
func TestMessageWithoutAnEnd(t *testing.T) {
	stream := withFake(t, StreamOptions{StatusInterval: 50 * time.Millisecond, ReceiveTimeout: time.Second}, func(fake *fakePublisher) {
		fake.keepalive(100, false)
		_, _ = fake.conn.Write([]byte{'d', 0x10, 0, 0, 0})
		for {
			if _, ok := fake.status(); !ok {
				return
			}
			fake.keepalive(100, false)
		}
	})
	_, err := stream.Receive()
	require.NoError(t, err)
	_, err = stream.Receive()
	var broken *FrameError
	require.ErrorAs(t, err, &broken)
	require.ErrorContains(t, err, "its length cannot be right")
}

func TestCrawl(t *testing.T) {
	var c crawl
	lasts := func(frames, bytes int64, waited time.Duration) time.Duration { return c.lasts(frames, bytes, waited) }
	require.Zero(t, lasts(1, 1000, time.Second))
	require.Zero(t, lasts(1, 1000, time.Hour), "nothing arrives: that is silence, and no message")
	require.Zero(t, lasts(2, 1000, time.Hour))
	require.Zero(t, lasts(2, 1000+120<<10, time.Hour+time.Minute), "a large message on a slow link")
	require.Equal(t, time.Minute, lasts(2, 1000+2<<10, time.Hour+time.Minute))
	require.Zero(t, lasts(3, 4000, 2*time.Hour), "it has ended")
}

func TestInterruptEndsTheQuestion(t *testing.T) {
	asking := make(chan struct{})
	stream := withFake(t, StreamOptions{}, func(fake *fakePublisher) {
		fake.keepalive(1<<63, false)
		fake.drain()
	})
	stream.horizon.ask = func(ctx context.Context) (lsn.LSN, error) {
		close(asking)
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Receive()
		ended <- err
	}()
	<-asking
	stream.Interrupt()
	require.ErrorIs(t, <-ended, ErrInterrupted)
}

// The publisher is asked on a session of its own, over the address that streams.
func TestEndOfTheLog(t *testing.T) {
	uri := published(t, pgtest.SharedServer(t), "s_horizon")
	stream := startStream(t, uri, StreamOptions{Slot: "s_horizon"})
	before, err := lsn.Parse(pgtest.Query(t, uri, `SELECT pg_current_wal_insert_lsn()`))
	require.NoError(t, err)
	pgtest.Exec(t, uri, `insert into t values (1)`)
	end, err := stream.horizon.ask(t.Context())
	require.NoError(t, err)
	require.Greater(t, end, before)
	require.NoError(t, stream.Stop(t.Context()))
}
