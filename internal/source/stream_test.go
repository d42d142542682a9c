package source

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"pgapply/internal/cluster"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

// published makes a database with a table, a publication and a slot, and returns
// its connection string.
func published(t testing.TB, server *cluster.Cluster, slot string) string {
	t.Helper()
	uri := pgtest.Database(t, server)
	pgtest.Exec(t, uri, `create table t (a int primary key, b text)`, `create publication p for table t`)
	_, err := connectTo(t, uri).CreateSlot(t.Context(), SlotOptions{Name: slot})
	require.NoError(t, err)
	return uri
}

func startStream(t testing.TB, uri string, options StreamOptions) *Stream {
	t.Helper()
	options.Publications = []string{"p"}
	stream, err := connectTo(t, uri).StartStream(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { stream.Close() })
	return stream
}

// receiveUntil receives until a message of one of the types, and returns the
// types of all messages on the way.
func receiveUntil(t testing.TB, stream *Stream, types string) (seen string, last Frame) {
	t.Helper()
	for {
		frame, err := stream.Receive()
		require.NoError(t, err)
		if frame.Kind != Data {
			continue
		}
		seen += string(frame.Payload[:1])
		if strings.ContainsAny(string(frame.Payload[:1]), types) {
			return seen, frame
		}
	}
}

func TestStreamOfEveryMajor(t *testing.T) {
	wish := StreamOptions{
		Slot: "s_wish", Streaming: "parallel", TwoPhase: true, Binary: true, Messages: true, Origin: "none",
	}
	forEachMajor(t, []int{10, 12, 13, 14, 15, 16, 17, 18}, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		pgtest.Exec(t, uri, `create table t (a int primary key, b text)`, `create publication p for table t`,
			`create table "T 2" (a int)`, `create publication "q ""1"", 'x'" for table "T 2"`,
			`select pg_create_logical_replication_slot('s_wish', 'pgoutput')`)
		major := server.Major()
		conn := connectTo(t, uri)
		publications := []string{"p", `q "1", 'x'`}
		missing, err := conn.MissingPublications(t.Context(), append(publications, "none", "P"))
		require.NoError(t, err)
		require.Equal(t, []string{"none", "P"}, missing)
		tables, err := conn.Tables(t.Context(), publications)
		require.NoError(t, err)
		require.Equal(t, []Table{{"public", "T 2"}, {"public", "t"}}, tables)

		options := wish
		options.Publications = publications
		stream, err := conn.StartStream(t.Context(), options)
		require.NoError(t, err)
		want, err := settingsFor(major, options)
		require.NoError(t, err)
		require.Equal(t, want, stream.Settings())

		pgtest.Exec(t, uri, `insert into t values (1, 'x')`)
		seen, _ := receiveUntil(t, stream, "C")
		require.Equal(t, "BRIC", seen)
		pgtest.Exec(t, uri, `insert into "T 2" values (1)`)
		seen, _ = receiveUntil(t, stream, "C")
		require.Equal(t, "BRIC", seen)
		if major >= 14 {
			pgtest.Exec(t, uri, `select pg_logical_emit_message(false, 'prefix', 'content')`)
			seen, _ = receiveUntil(t, stream, "M")
			require.Equal(t, "M", seen)
		}
		if major >= 15 {
			pgtest.Exec(t, uri, `begin; insert into t values (2); prepare transaction 'g'`, `commit prepared 'g'`)
			seen, _ = receiveUntil(t, stream, "K")
			require.Equal(t, "bIPK", seen)
		}
		if major >= 16 {
			// What has an origin does not come.
			pgtest.Exec(t, uri, `select pg_replication_origin_create('upstream'); select pg_replication_origin_session_setup('upstream');
				insert into t values (3); select pg_replication_origin_session_reset()`, `select pg_replication_origin_drop('upstream')`, `insert into t values (4)`)
			seen, _ = receiveUntil(t, stream, "C")
			require.Equal(t, "BIC", seen)
		}
		require.NoError(t, stream.Stop(t.Context()))
	})
}

func TestPartitionedTablesAreListedAsPublished(t *testing.T) {
	server := pgtest.SharedServer(t)
	uri := pgtest.Database(t, server)
	pgtest.Exec(t, uri, `create table r (a int) partition by list (a)`, `create table r1 partition of r for values in (1)`,
		`create publication root for table r with (publish_via_partition_root)`, `create publication leaf for table r`)
	conn := connectTo(t, uri)
	both := []Table{{"public", "r"}}
	if server.Major() < 16 {
		both = []Table{{"public", "r"}, {"public", "r1"}}
	}
	for publications, want := range map[string][]Table{"root": {{"public", "r"}}, "leaf": {{"public", "r1"}}, "root,leaf": both, "": nil} {
		tables, err := conn.Tables(t.Context(), strings.FieldsFunc(publications, func(r rune) bool { return r == ',' }))
		require.NoError(t, err)
		require.Equal(t, want, tables, publications)
	}
}

func TestFeedbackMovesTheSlotOnlyAsReported(t *testing.T) {
	uri := published(t, pgtest.SharedServer(t), "s_feedback")
	const confirmed = `select confirmed_flush_lsn from pg_replication_slots where slot_name = 's_feedback'`
	before := pgtest.Query(t, uri, confirmed)
	stream := startStream(t, uri, StreamOptions{Slot: "s_feedback", StatusInterval: 5 * time.Millisecond})
	pgtest.Exec(t, uri, `insert into t values (1)`)
	_, commit := receiveUntil(t, stream, "C")
	// Statuses flow with what was received, and release nothing.
	pgtest.WaitFor(t, uri, `select write_lsn >= $1::pg_lsn and flush_lsn is null from pg_stat_replication where pid = $2`, "t",
		commit.WALStart.String(), fmt.Sprint(stream.conn.pg.PID()))
	require.Equal(t, before, pgtest.Query(t, uri, confirmed))
	stream.Report(Position{Flushed: commit.WALStart}, false)
	pgtest.WaitFor(t, uri, confirmed, commit.WALStart.String())
	require.NoError(t, stream.Stop(t.Context()))
}

func TestStopSendsTheFinalPosition(t *testing.T) {
	uri := published(t, pgtest.SharedServer(t), "s_stop")
	stream := startStream(t, uri, StreamOptions{Slot: "s_stop", StatusInterval: time.Hour})
	pgtest.Exec(t, uri, `insert into t values (1)`)
	_, commit := receiveUntil(t, stream, "C")
	stream.Report(Position{Flushed: commit.WALStart}, false)

	interrupted := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Receive(); err != nil {
				interrupted <- err
				return
			}
		}
	}()
	awaitSilence(stream.socket)
	stream.Interrupt()
	require.ErrorIs(t, <-interrupted, ErrInterrupted)
	require.NoError(t, stream.Stop(t.Context()))
	// The slot is free and where it was told to be.
	pgtest.WaitFor(t, uri, `select active, confirmed_flush_lsn from pg_replication_slots where slot_name = 's_stop'`, "f|"+commit.WALStart.String())
	_, err := stream.Receive()
	require.Error(t, err)
}

// follow receives until an error and acknowledges every keepalive, as a target
// does that applies at once. It adds what arrives to received.
func follow(stream *Stream, received *atomic.Int64) error {
	for {
		frame, err := stream.Receive()
		if err != nil {
			return err
		}
		switch frame.Kind {
		case Keepalive:
			stream.Report(Position{Flushed: frame.WALEnd}, true)
		case Data:
			if frame.Payload[0] == 'I' {
				received.Add(1)
			}
		}
	}
}

func TestPublisherHearsFromAReaderThatDoesNotRead(t *testing.T) {
	server := pgtest.Start(t, pgtest.With("wal_sender_timeout", "2s"))
	uri := published(t, server, "s_pause")
	stream := startStream(t, uri, StreamOptions{Slot: "s_pause"})
	require.Equal(t, 500*time.Millisecond, stream.Settings().StatusInterval, "a quarter of wal_sender_timeout")
	// More than the sockets hold, so that the walsender waits for us as well.
	const rows = 2000
	pgtest.Exec(t, uri, fmt.Sprintf(`insert into t select i, repeat(md5(i::text), 500) from generate_series(1, %d) i`, rows))
	pid := fmt.Sprint(stream.conn.pg.PID())
	pgtest.WaitFor(t, uri, `select reply_time > backend_start + interval '6 s' from pg_stat_replication where pid = $1`, "t", pid)
	var received atomic.Int64
	ended := make(chan error, 1)
	go func() { ended <- follow(stream, &received) }()
	pgtest.WaitFor(t, uri, `select confirmed_flush_lsn >= $1::pg_lsn from pg_replication_slots`, "t", pgtest.Query(t, uri, `select pg_current_wal_lsn()`))
	stream.Interrupt()
	require.ErrorIs(t, <-ended, ErrInterrupted)
	require.EqualValues(t, rows, received.Load())
	require.NoError(t, stream.Stop(t.Context()))
}

func TestPublisherStopsWhileConnected(t *testing.T) {
	for _, major := range []int{10, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			server := pgtest.Start(t, pgtest.OnMajor(major))
			uri := server.URI("postgres")
			pgtest.Exec(t, uri, `create table t (a int primary key, b text)`, `create publication p for table t`)
			_, err := connectTo(t, uri).CreateSlot(t.Context(), SlotOptions{Name: "s_shutdown"})
			require.NoError(t, err)
			stream := startStream(t, uri, StreamOptions{Slot: "s_shutdown", StatusInterval: time.Hour})
			var received atomic.Int64
			ended := make(chan error, 1)
			go func() { ended <- follow(stream, &received) }()
			pgtest.Exec(t, uri, `insert into t select generate_series(1, 1000)`)
			require.NoError(t, server.Stop(cluster.Fast))
			err = <-ended
			require.ErrorIs(t, err, ErrPublisherStopped)
			require.Equal(t, Transient, ClassOf(err))
			require.EqualValues(t, 1000, received.Load())
			require.NoError(t, stream.Stop(t.Context()))

			_, err = Connect(t.Context(), Options{URI: uri})
			require.Equal(t, Transient, ClassOf(err), "%v", err)
			require.NoError(t, server.Restart(t.Context()))
			require.Equal(t, "t", pgtest.Query(t, uri, `select confirmed_flush_lsn > '0/0' from pg_replication_slots`))
		})
	}
}

func TestStreamThatIsCut(t *testing.T) {
	server := pgtest.Start(t)
	uri := published(t, server, "s_cut")
	t.Run("walsender terminated", func(t *testing.T) {
		stream := startStream(t, uri, StreamOptions{Slot: "s_cut"})
		pgtest.Exec(t, uri, `select pg_terminate_backend(active_pid) from pg_replication_slots where active`)
		var received atomic.Int64
		require.Equal(t, Transient, ClassOf(follow(stream, &received)))
	})
	t.Run("server killed", func(t *testing.T) {
		pgtest.WaitFor(t, uri, `select active from pg_replication_slots where slot_name = 's_cut'`, "f")
		stream := startStream(t, uri, StreamOptions{Slot: "s_cut"})
		ended := make(chan error, 1)
		var received atomic.Int64
		go func() { ended <- follow(stream, &received) }()
		require.NoError(t, server.Stop(cluster.Immediate))
		require.Equal(t, Transient, ClassOf(<-ended))
		require.NoError(t, server.Restart(t.Context()))
	})
}

func TestMissingPublication(t *testing.T) {
	forEachMajor(t, []int{15, 18}, func(t *testing.T, server *cluster.Cluster) {
		uri := published(t, server, "s_publication")
		core, logs := observer.New(zap.WarnLevel)
		conn, err := Connect(t.Context(), Options{URI: uri, Log: zap.New(core)})
		require.NoError(t, err)
		defer conn.Close()
		stream, err := conn.StartStream(t.Context(), StreamOptions{Slot: "s_publication", Publications: []string{"p", "absent"}})
		require.NoError(t, err)
		pgtest.Exec(t, uri, `insert into t values (1)`)
		// From 18 on the publisher would go on with a warning, and leave out changes.
		var received atomic.Int64
		err = follow(stream, &received)
		require.True(t, is[*PublicationMissingError](err), "%v", err)
		require.Equal(t, Configuration, ClassOf(err))
		require.Empty(t, logs.All())
	})
}

func TestStartPositionIsObeyed(t *testing.T) {
	uri := published(t, pgtest.SharedServer(t), "s_start")
	pgtest.Exec(t, uri, `insert into t values (1)`)
	end, err := lsn.Parse(pgtest.Query(t, uri, `select pg_current_wal_insert_lsn()`))
	require.NoError(t, err)
	pgtest.Exec(t, uri, `insert into t values (2, 'second')`)
	stream := startStream(t, uri, StreamOptions{Slot: "s_start", Start: end})
	seen, _ := receiveUntil(t, stream, "I")
	require.Equal(t, "BRI", seen)
	_, last := receiveUntil(t, stream, "C")
	require.Greater(t, last.WALStart, end)
	require.NoError(t, stream.Stop(t.Context()))
}

func TestLargeValuesArriveWhole(t *testing.T) {
	uri := published(t, pgtest.SharedServer(t), "s_large")
	stream := startStream(t, uri, StreamOptions{Slot: "s_large"})
	pgtest.Exec(t, uri, `insert into t values (1, repeat('x', 20000000))`, `insert into t values (2, repeat('y', 10))`)
	_, frame := receiveUntil(t, stream, "I")
	require.Equal(t, 20_000_000, strings.Count(string(frame.Payload), "x"))
	_, frame = receiveUntil(t, stream, "I")
	require.Equal(t, 10, strings.Count(string(frame.Payload), "y"))
	require.NoError(t, stream.Stop(t.Context()))
}

func TestStopInTheMiddleOfALargeTransactionEndsByItsContext(t *testing.T) {
	uri := published(t, pgtest.SharedServer(t), "s_middle")
	stream := startStream(t, uri, StreamOptions{Slot: "s_middle"})
	pgtest.Exec(t, uri, `insert into t select i, repeat(md5(i::text), 100) from generate_series(1, 20000) i`)
	receiveUntil(t, stream, "I")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, stream.Stop(ctx), context.Canceled)
	pgtest.WaitFor(t, uri, `select active from pg_replication_slots where slot_name = 's_middle'`, "f")
}

func TestFramesCostNoAllocation(t *testing.T) {
	const frames = 1000
	sent := make(chan struct{})
	stream := withFake(t, StreamOptions{}, func(fake *fakePublisher) {
		for range 2 + frames {
			fake.data("a small message")
		}
		close(sent)
		fake.drain()
	})
	<-sent // the socket holds them: whatever allocates now is the reader
	require.Zero(t, testing.AllocsPerRun(frames, func() {
		if _, err := stream.Receive(); err != nil {
			t.Fatal(err)
		}
	}))
}
