package source

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// session is a connection for SQL that a test keeps open.
func session(t *testing.T, uri string, sql ...string) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), uri)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	for _, statement := range sql {
		_, err := conn.Exec(t.Context(), statement).ReadAll()
		require.NoError(t, err, statement)
	}
	return conn
}

func TestSlotLifeCycle(t *testing.T) {
	forEachMajor(t, []int{10, 13, 14, 15, 16, 17, 18}, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		conn := connectTo(t, uri)
		database := pgtest.Query(t, uri, `select current_database()`)
		major := server.Major()

		absent, err := conn.Slot(t.Context(), "s_plain")
		require.NoError(t, err)
		require.Nil(t, absent)
		require.ErrorContains(t, conn.DropSlot(t.Context(), "s_plain"), `"s_plain" does not exist`)
		require.Equal(t, SlotLost, ClassOf(conn.DropSlot(t.Context(), "s_plain")))

		created, err := conn.CreateSlot(t.Context(), SlotOptions{Name: "s_plain"})
		require.NoError(t, err)
		require.NotZero(t, created.ConsistentPoint)
		require.Empty(t, created.SnapshotName)
		slot, err := conn.Slot(t.Context(), "s_plain")
		require.NoError(t, err)
		want := &Slot{
			Name: "s_plain", Plugin: "pgoutput", Type: "logical", Database: database,
			Restart: slot.Restart, ConfirmedFlush: created.ConsistentPoint, InactiveSince: slot.InactiveSince,
		}
		if major >= 13 {
			want.WALStatus = "reserved"
		}
		require.Equal(t, want, slot)
		require.Equal(t, major >= 17, time.Since(slot.InactiveSince) < time.Hour)
		require.Empty(t, slot.Lost())
		_, err = conn.CreateSlot(t.Context(), SlotOptions{Name: "s_plain"})
		require.ErrorContains(t, err, `create replication slot "s_plain"`)

		// A snapshot shows what was there at the consistent point.
		pgtest.Exec(t, uri, `create table t as select 1 as a`)
		exported, err := conn.CreateSlot(t.Context(), SlotOptions{Name: "s_export", Snapshot: SnapshotExport, Temporary: true})
		require.NoError(t, err)
		require.NotEmpty(t, exported.SnapshotName)
		pgtest.Exec(t, uri, `insert into t values (2)`)
		require.Equal(t, "1", pgtest.Query(t, uri, fmt.Sprintf(
			`begin isolation level repeatable read; set transaction snapshot '%s'; select count(*) from t; commit`, exported.SnapshotName)))
		slot, err = conn.Slot(t.Context(), "s_export")
		require.NoError(t, err)
		require.True(t, slot.Temporary)

		twoPhase := SlotOptions{Name: "s_two", TwoPhase: true}
		_, err = conn.CreateSlot(t.Context(), twoPhase)
		if major < 14 {
			require.Equal(t, Configuration, ClassOf(err), "%v", err)
		} else {
			require.NoError(t, err)
			slot, err = conn.Slot(t.Context(), "s_two")
			require.NoError(t, err)
			require.True(t, slot.TwoPhase)
			require.NotZero(t, slot.ConfirmedFlush)
		}
		twoPhase.Name, twoPhase.Snapshot = "s_two_export", SnapshotExport
		_, err = conn.CreateSlot(t.Context(), twoPhase)
		require.Equal(t, major >= 15, err == nil, "%v", err)

		_, err = conn.CreateSlot(t.Context(), SlotOptions{Name: "s_failover", Failover: true})
		if major < 17 {
			require.Equal(t, Configuration, ClassOf(err))
			require.ErrorContains(t, err, "17 or later")
			require.ErrorContains(t, conn.SetFailover(t.Context(), "s_plain", true), "17 or later")
		} else {
			require.NoError(t, err)
			slot, err = conn.Slot(t.Context(), "s_failover")
			require.NoError(t, err)
			require.True(t, slot.Failover)
			require.False(t, slot.Synced)
			for _, failover := range []bool{false, true} {
				require.NoError(t, conn.SetFailover(t.Context(), "s_failover", failover))
				slot, err = conn.Slot(t.Context(), "s_failover")
				require.NoError(t, err)
				require.Equal(t, failover, slot.Failover)
			}
			require.Equal(t, SlotLost, ClassOf(conn.SetFailover(t.Context(), "s_missing", true)))
		}
		require.NoError(t, conn.DropSlot(t.Context(), "s_plain"))
		require.Equal(t, "0", pgtest.Query(t, uri, `select count(*) from pg_replication_slots where slot_name = 's_plain'`))
	})
}

func TestCreateSlotRefusesNonsense(t *testing.T) {
	conn := connectTo(t, pgtest.Database(t, pgtest.SharedServer(t)))
	for _, options := range []SlotOptions{{}, {Name: "s", Snapshot: "use"}} {
		_, err := conn.CreateSlot(t.Context(), options)
		require.Equal(t, Configuration, ClassOf(err))
	}
	_, err := conn.CreateSlot(t.Context(), SlotOptions{Name: "Not A Slot"})
	require.Equal(t, Configuration, ClassOf(err), "%v", err)
}

func TestCreateSlotWithoutRoom(t *testing.T) {
	server := pgtest.Start(t, pgtest.With("max_replication_slots", "1"))
	conn := connectTo(t, server.URI("postgres"))
	_, err := conn.CreateSlot(t.Context(), SlotOptions{Name: "first"})
	require.NoError(t, err)
	_, err = conn.CreateSlot(t.Context(), SlotOptions{Name: "second"})
	require.Equal(t, Configuration, ClassOf(err))
	require.ErrorContains(t, err, "raise max_replication_slots")
}

func TestCreateSlotWaitsForTransactionsAndEndsByContext(t *testing.T) {
	server := pgtest.SharedServer(t)
	uri := pgtest.Database(t, server)
	pgtest.Exec(t, uri, `create table t (a int)`)
	holder := session(t, uri, `begin`, `insert into t values (1)`)
	conn := connectTo(t, uri)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := conn.CreateSlot(ctx, SlotOptions{Name: "s_waits"})
		result <- err
	}()
	pgtest.WaitFor(t, uri, `select wait_event_type from pg_stat_activity where backend_type = 'walsender' and datname = current_database()`, "Lock")
	cancel()
	err := <-result
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, conn.Close())
	pgtest.WaitFor(t, uri, `select count(*) from pg_replication_slots where slot_name = 's_waits'`, "0")
	require.NoError(t, holder.Close(t.Context()))
}

func TestBusySlotNamesItsHolder(t *testing.T) {
	forEachMajor(t, []int{10, 18}, func(t *testing.T, server *cluster.Cluster) {
		uri := pgtest.Database(t, server)
		pgtest.Exec(t, uri, `create publication p for all tables`)
		first := connectTo(t, uri)
		_, err := first.CreateSlot(t.Context(), SlotOptions{Name: "s_busy"})
		require.NoError(t, err)
		holder, err := first.SlotHolder(t.Context(), "s_busy")
		require.NoError(t, err)
		require.Nil(t, holder)
		options := StreamOptions{Slot: "s_busy", Publications: []string{"p"}}
		stream, err := first.StartStream(t.Context(), options)
		require.NoError(t, err)
		_, err = first.Query(t.Context(), `SELECT 1`)
		require.Error(t, err, "the connection streams")

		second := connectTo(t, uri)
		_, err = second.StartStream(t.Context(), options)
		require.Equal(t, Transient, ClassOf(err))
		var busy *SlotBusyError
		require.ErrorAs(t, err, &busy)
		pid := int(first.pg.PID())
		require.Equal(t, &SlotBusyError{
			Slot: "s_busy", PID: pid, Err: busy.Err,
			Holder: &Holder{PID: pid, ApplicationName: "sub", Address: "127.0.0.1", User: "postgres"},
		}, busy)
		require.EqualError(t, err, fmt.Sprintf(`replication slot "s_busy" is in use by "sub" (pid %d), user "postgres", from 127.0.0.1`, pid))

		// The connection is still good for another try.
		require.NoError(t, stream.Stop(t.Context()))
		pgtest.WaitFor(t, uri, `select active from pg_replication_slots where slot_name = 's_busy'`, "f")
		stream, err = second.StartStream(t.Context(), options)
		require.NoError(t, err)
		require.NoError(t, stream.Stop(t.Context()))
	})
}

func TestSlotsThatCannotBeStreamed(t *testing.T) {
	server := pgtest.SharedServer(t)
	uri, other := pgtest.Database(t, server), pgtest.Database(t, server)
	pgtest.Exec(t, uri, `create publication p for all tables`, `select pg_create_physical_replication_slot('s_physical')`)
	defer pgtest.Exec(t, uri, `select pg_drop_replication_slot('s_physical')`)
	pgtest.Exec(t, other, `select pg_create_logical_replication_slot('s_other', 'pgoutput')`)
	conn := connectTo(t, uri)
	for slot, class := range map[string]Class{"s_missing": SlotLost, "s_physical": Configuration, "s_other": Configuration} {
		_, err := conn.StartStream(t.Context(), StreamOptions{Slot: slot, Publications: []string{"p"}})
		require.Equal(t, class, ClassOf(err), "%v", err)
		require.ErrorContains(t, err, fmt.Sprintf("%q", slot))
	}
}

func TestSlotThatLostItsLog(t *testing.T) {
	for _, major := range []int{13, 17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			server := pgtest.Start(t, pgtest.OnMajor(major), pgtest.With("max_slot_wal_keep_size", "1MB"), pgtest.With("max_wal_size", "32MB"),
				pgtest.With("min_wal_size", "32MB"))
			uri := server.URI("postgres")
			conn := connectTo(t, uri)
			pgtest.Exec(t, uri, `create table t (a int)`, `create publication p for table t`)
			_, err := conn.CreateSlot(t.Context(), SlotOptions{Name: "s_lost"})
			require.NoError(t, err)
			for range 4 {
				pgtest.Exec(t, uri, `insert into t values (1)`, `select pg_switch_wal()`, `checkpoint`)
			}
			slot, err := conn.Slot(t.Context(), "s_lost")
			require.NoError(t, err)
			require.Equal(t, "wal_removed", slot.Lost(), "%+v", slot)
			_, err = conn.StartStream(t.Context(), StreamOptions{Slot: "s_lost", Publications: []string{"p"}})
			var lost *SlotLostError
			require.ErrorAs(t, err, &lost)
			require.Equal(t, "wal_removed", lost.Reason)
			require.Equal(t, SlotLost, ClassOf(err))
		})
	}
}
