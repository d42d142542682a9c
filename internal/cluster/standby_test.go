package cluster

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStandby(t *testing.T) {
	for _, major := range []int{16, NewestMajor} {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			t.Parallel()
			primary := startForTest(t, Options{Major: major, Settings: map[string]string{"max_connections": "70"}})
			ask(t, primary.URI("postgres"), `create table t as select generate_series(1, 1000) a`)
			standby, err := StartStandby(t.Context(), primary, Options{Settings: map[string]string{"work_mem": "1MB"}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, standby.Close()) })
			require.Equal(t, "t 70 1MB on", ask(t, standby.URI("postgres"), `select concat_ws(' ', pg_is_in_recovery(), current_setting('max_connections'),
				current_setting('work_mem'), current_setting('hot_standby_feedback'))`))
			require.Equal(t, ask(t, primary.URI("postgres"), `select system_identifier from pg_control_system()`),
				ask(t, standby.URI("postgres"), `select system_identifier from pg_control_system()`))

			ask(t, primary.URI("postgres"), `insert into t values (0)`)
			eventually(t, func() bool { return ask(t, standby.URI("postgres"), `select count(*) from t`) == "1001" }, "the standby follows")
			require.Equal(t, "t", ask(t, primary.URI("postgres"), `select active from pg_replication_slots`))

			// It outlives its primary.
			require.NoError(t, primary.Stop(Immediate))
			require.NoError(t, standby.Restart(t.Context()))
			require.Equal(t, "t", ask(t, standby.URI("postgres"), `select pg_promote()`))
			ask(t, standby.URI("postgres"), `insert into t values (-1)`)
		})
	}
}
