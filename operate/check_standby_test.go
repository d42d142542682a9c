package operate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// TestCheckOfAStandby: the publisher's end is a standby, and slots are to be kept by it.
func TestCheckOfAStandby(t *testing.T) {
	primary := pgtest.Start(t)
	_, target := pgtest.Shared(t)
	atPrimary := newBed(t, primary, target)
	pgtest.Exec(t, atPrimary.source, `create table t (a int primary key)`, `create publication p for table t`)
	pgtest.Exec(t, atPrimary.target, `create table t (a int primary key)`)
	standby := pgtest.Standby(t, primary, pgtest.With("sync_replication_slots", "on"))
	slot := pgtest.Query(t, atPrimary.source, `select slot_name from pg_replication_slots where slot_type = 'physical'`)
	set := func(setting string) {
		t.Helper()
		pgtest.Exec(t, atPrimary.source, `alter system set synchronized_standby_slots = `+setting, `select pg_reload_conf()`)
		pgtest.WaitFor(t, atPrimary.source, `select current_setting('synchronized_standby_slots')`, strings.Trim(setting, "'"))
	}
	failover := func(o *apply.Options) { o.Failover = true }

	pgtest.WaitFor(t, atPrimary.source, `select count(*) > 1 from pg_stat_activity where application_name = $1`, "t", slot)
	pgtest.WaitFor(t, atPrimary.source, `select xmin is not null from pg_replication_slots where slot_type = 'physical'`, "t")
	requireComplaint(t, atPrimary.check(failover), "warning failover: synchronized_standby_slots is empty")
	set(`'absent'`)
	requireComplaint(t, atPrimary.check(failover), `warning failover: synchronized_standby_slots names "absent", and the publisher has no such physical slot`)
	set(`'` + slot + `'`)
	checkup := atPrimary.check(failover)
	require.Empty(t, checkup.complaints())
	require.Contains(t, checkup.Text(), "a standby synchronizes slots, and the target does not get ahead of "+slot)

	replica := *atPrimary
	replica.source = standby.URI(pgtest.Query(t, atPrimary.source, `select current_database()`))
	replica.ends.Source = replica.source
	requireComplaint(t, replica.check(), "warning slot: creating it on a standby waits until its primary records", "--primary")
	requireComplaint(t, replica.check(failover, func(o *apply.Options) { o.Primary = atPrimary.source }), "error ends: the publisher is a standby: other standbys do not keep its slots")
	checkup = replica.check(func(o *apply.Options) { o.Primary = atPrimary.source })
	require.Empty(t, checkup.complaints())
	require.Contains(t, checkup.Text(), "a standby, database ")
	require.Contains(t, checkup.Text(), "it is the publisher's, and may be told")

	// Who is asked must be the primary, and allow it.
	requireComplaint(t, replica.check(func(o *apply.Options) { o.Primary = replica.source }), "error primary: --primary leads to a standby")
	requireComplaint(t, replica.check(func(o *apply.Options) { o.Primary = replica.target }), "error primary: --primary leads to system ")
	requireComplaint(t, replica.check(func(o *apply.Options) { o.Primary = nowhere(t) }), "error primary: connect to the primary: ", "--primary")
	pgtest.Exec(t, atPrimary.source, `create role plain login replication`)
	limited := func(o *apply.Options) { o.Primary = as(t, atPrimary.source, "plain") }
	requireComplaint(t, replica.check(limited), "error primary: the role of --primary may not execute pg_log_standby_snapshot()", "GRANT EXECUTE")
	pgtest.Exec(t, atPrimary.source, `grant execute on function pg_log_standby_snapshot() to plain`)
	require.Empty(t, replica.check(limited).complaints())

	writer := pgtest.Open(t, atPrimary.source)
	writer.Exec(`begin`, `insert into t values (1)`, `prepare transaction 'here'`)
	requireComplaint(t, replica.check(limited), "warning slot: creating it waits for what is prepared on the primary: prepared transaction \"here\"")
	writer.Exec(`rollback prepared 'here'`)
	require.Contains(t, atPrimary.check(func(o *apply.Options) { o.Primary = replica.source }).Text(), "not needed: the publisher is not a standby")
	pgtest.Exec(t, standby.URI("postgres"), `select pg_wal_replay_pause()`)
	requireComplaint(t, replica.check(limited), "warning standby: replay is paused", "pg_wal_replay_resume")
	pgtest.Exec(t, standby.URI("postgres"), `select pg_wal_replay_resume()`)

	// The primary removes what the standby needs, and knows of no other standby.
	pgtest.Exec(t, standby.URI("postgres"), `alter system set hot_standby_feedback = off`, `select pg_reload_conf()`)
	pgtest.WaitFor(t, atPrimary.source, `select xmin is null from pg_replication_slots where slot_type = 'physical'`, "t")
	requireComplaint(t, replica.check(limited), "warning standby: hot_standby_feedback is off", "primary_slot_name")
	require.Contains(t, atPrimary.check(failover).complaints()[0], "gives no hot_standby_feedback")
	require.NoError(t, standby.Stop(cluster.Immediate))
	pgtest.WaitFor(t, atPrimary.source, `select count(*) from pg_stat_activity where application_name = $1`, "0", slot)
	complaints := atPrimary.check(failover).complaints()
	require.Len(t, complaints, 2)
	require.Contains(t, complaints[0], "no standby uses slot")
	require.Contains(t, complaints[1], "no standby of the publisher synchronizes slots now")
}
