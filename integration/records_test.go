package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/conflict"
	"pgapply/internal/pgtest"
)

// TestRecords: the engine reads what the state says about it, again when a conflict comes,
// and what it has read stays when the target is gone.
func TestRecords(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`INSERT INTO t VALUES (1, 'x')`, `CREATE PUBLICATION p FOR TABLE t`)
	l.start(func(o *apply.Options) { o.ReadRecords = true })
	require.WithinDuration(t, time.Now(), l.engine.Pulse(), time.Minute)
	l.onSource(`UPDATE t SET v = 'y'`)

	deadline := time.After(time.Minute)
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for l.engine.Records() == nil || l.engine.Records().Conflicts.Total == 0 {
		select {
		case <-pause.C:
		case <-deadline:
			require.Fail(t, "no conflict in the records", "%+v", l.engine.Records())
		}
	}
	records := l.engine.Records()
	require.Len(t, records.Tables, 1)
	require.Equal(t, "public.t", records.Tables[0].Text)
	require.Equal(t, state.TableReady, records.Tables[0].State)
	require.True(t, records.Subscription.Enabled)
	require.Equal(t, pgtest.Query(t, l.target, `SELECT current_database()`), records.Target.Database)
	require.Len(t, records.Recent, 1)
	require.Equal(t, conflict.UpdateMissing, records.Recent[0].Type)
	require.JSONEq(t, `{"id": "1", "v": "y"}`, string(records.Recent[0].RemoteTuple))
	l.stop()
	require.Same(t, records, l.engine.Records())
}
