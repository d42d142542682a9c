package source

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// TestStandby: what differs where the publisher is a hot standby.
func TestStandby(t *testing.T) {
	for _, major := range []int{16, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			primary := pgtest.Start(t, pgtest.OnMajor(major))
			uri := primary.URI("postgres")
			pgtest.Exec(t, uri, `create table t (a int primary key)`, `insert into t values (1)`, `create publication p for table t`)
			standby := pgtest.Standby(t, primary)
			conn, there := connectTo(t, standby.URI("postgres")), connectTo(t, uri)

			identity, err := conn.Identify(t.Context())
			require.NoError(t, err)
			require.True(t, identity.InRecovery)
			from, err := there.Identify(t.Context())
			require.NoError(t, err)
			require.False(t, from.InRecovery)
			require.Equal(t, from.SystemID, identity.SystemID)
			require.NoError(t, conn.CheckLogical(t.Context()))
			may, err := there.MayLogSnapshot(t.Context())
			require.NoError(t, err)
			require.True(t, may)
			_, err = conn.LogSnapshot(t.Context())
			require.ErrorContains(t, err, "recovery")
			if major >= 17 {
				_, err = conn.CreateSlot(t.Context(), SlotOptions{Name: "s_failover", Failover: true})
				require.Equal(t, Configuration, ClassOf(err), "%v", err)
			}

			// It waits for the next record of what runs on the primary, and for the end of that.
			// Both waits can be given up.
			giveUp(t, standby, func() {})
			writer := pgtest.Open(t, uri)
			writer.Exec(`begin`, `insert into t values (2)`)
			giveUp(t, standby, func() {
				position, err := there.LogSnapshot(t.Context())
				require.NoError(t, err)
				pgtest.WaitFor(t, standby.URI("postgres"), `select pg_last_wal_replay_lsn() >= $1::pg_lsn`, "t", position)
			})
			result := make(chan error, 1)
			var created CreatedSlot
			go func() {
				var err error
				created, err = conn.CreateSlot(context.Background(), SlotOptions{Name: "s_made", Snapshot: SnapshotExport})
				result <- err
			}()
			slots(t, standby, "1")
			_, err = there.LogSnapshot(t.Context())
			require.NoError(t, err)
			writer.Exec(`commit`)
			pause := time.NewTicker(20 * time.Millisecond)
			defer pause.Stop()
			for done := false; !done; {
				select {
				case err := <-result:
					require.NoError(t, err)
					done = true
				case <-pause.C:
					_, err = there.LogSnapshot(t.Context())
					require.NoError(t, err)
				}
			}
			pgtest.Exec(t, uri, `insert into t values (3)`)
			require.Equal(t, "2", pgtest.Query(t, standby.URI("postgres"), fmt.Sprintf(
				`begin isolation level repeatable read; set transaction snapshot '%s'; select count(*) from t; commit`, created.SnapshotName)))

			// What the primary does may cost the standby its slots.
			stream, err := connectTo(t, standby.URI("postgres")).StartStream(t.Context(), StreamOptions{Slot: "s_made", Publications: []string{"p"}})
			require.NoError(t, err)
			pgtest.Exec(t, uri, `alter system set wal_level = replica`)
			require.NoError(t, primary.Restart(t.Context()))
			for err == nil {
				_, err = stream.Receive()
			}
			require.Equal(t, Transient, ClassOf(err), "%v", err)
			pgtest.WaitFor(t, standby.URI("postgres"), `select conflicting from pg_replication_slots where slot_name = 's_made'`, "t")
			slot, err := conn.Slot(t.Context(), "s_made")
			require.NoError(t, err)
			want := "wal_level_insufficient"
			if major < 17 {
				want = "conflict with recovery"
			}
			require.Equal(t, want, slot.Lost())
			_, err = conn.CreateSlot(t.Context(), SlotOptions{Name: "s_more"})
			require.Equal(t, Configuration, ClassOf(err))
			require.ErrorContains(t, err, "on the primary")
		})
	}
}

// slots waits until the server has so many that are the test's.
func slots(t *testing.T, server *cluster.Cluster, want string) {
	t.Helper()
	pgtest.WaitFor(t, server.URI("postgres"), `select count(*) from pg_replication_slots where slot_name like 's\_%'`, want)
}

// giveUp begins to make a slot and gives it up when a step is done. Nothing is left of it.
func giveUp(t *testing.T, server *cluster.Cluster, step func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	conn := connectTo(t, server.URI("postgres"))
	result := make(chan error, 1)
	go func() {
		_, err := conn.CreateSlot(ctx, SlotOptions{Name: "s_given_up", Snapshot: SnapshotExport})
		result <- err
	}()
	slots(t, server, "1")
	step()
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
	require.NoError(t, conn.Close())
	slots(t, server, "0")
}
