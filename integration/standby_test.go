package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// TestSlotNamesWhatItWaitsFor: transactions that are older than the slot keep it from
// being made. They are named, in log and status, and to stop leaves nothing behind.
func TestSlotNamesWhatItWaitsFor(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY)`)
	l.onSource(`INSERT INTO a VALUES (1)`, `CREATE PUBLICATION p FOR TABLE a`)
	gid := "of " + l.name
	old := pgtest.Open(t, l.source+"&application_name=nightly")
	old.Exec(`BEGIN; INSERT INTO a VALUES (2)`)
	l.onSource(`BEGIN; INSERT INTO a VALUES (3); PREPARE TRANSACTION '` + gid + `'`)

	p := l.spawn("--copy-data=true")
	process := fmt.Sprintf(`process %d (application "nightly", role postgres, database %s, idle in transaction`, old.PID(), l.name)
	waits := func(text, want string) {
		t.Helper()
		pgtest.WaitFor(t, l.target, `SELECT status ->> 'state', position($1 in status ->> 'waiting_for') > 0 FROM pgapply.runner`, "waiting|"+want, text)
	}
	waits(process, "t")
	waits(gid, "t")
	p.says("waiting: replication slot", process, gid, "pg_terminate_backend(PID), COMMIT PREPARED or ROLLBACK PREPARED in its database")
	old.Exec(`COMMIT`)
	waits(process, "f")
	waits(gid, "t")
	p.terminate()
	require.Zero(t, p.exitCode(10*time.Second))
	pgtest.WaitFor(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`, "0")

	p = l.spawn("--copy-data=true")
	waits(gid, "t")
	l.onSource(`COMMIT PREPARED '` + gid + `'`)
	l.streams(p)
	l.catchUp()
	require.Equal(t, "1\n2\n3", l.same(`SELECT id FROM a ORDER BY id`))

	// So it is beside the stream, for the slot of a table that comes later. No standby is
	// to keep that one.
	l.both(`CREATE TABLE b (id int PRIMARY KEY)`)
	l.onSource(`INSERT INTO b VALUES (1)`, `ALTER PUBLICATION p ADD TABLE b`)
	old.Exec(`BEGIN; INSERT INTO a VALUES (4)`)
	_, err := operate.Refresh(t.Context(), operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}, true)
	require.NoError(t, err)
	pgtest.WaitFor(t, l.target, `SELECT status ->> 'state', position($1 in status ->> 'waiting_for') > 0 FROM pgapply.runner`, "streaming|t", process)
	old.Exec(`COMMIT`)
	pgtest.WaitFor(t, l.target, `SELECT string_agg(table_name || state::text, ' ' ORDER BY table_name) FROM pgapply.subscription_table`, "ar br")
	l.catchUp()
	l.same(`SELECT id FROM b`)
	p.stop()
}

// standbyLink is a link whose publisher is a standby. What is written goes to its primary,
// which is the link's source.
type standbyLink struct {
	*link
	primary, standby *cluster.Cluster
	// replica is the standby's database.
	replica string
}

func newStandbyLink(t *testing.T, settings ...pgtest.Option) *standbyLink {
	t.Helper()
	_, target := pgtest.Shared(t)
	s := &standbyLink{primary: pgtest.Start(t, settings...)}
	s.link = linkOf(t, s.primary, target)
	s.standby = pgtest.Standby(t, s.primary)
	s.replica = s.standby.URI(s.name)
	return s
}

// caughtUpFrom waits until a server knows that what another one has written so far is
// durable on the target.
func (s *standbyLink) caughtUpFrom(written, asked string) {
	s.t.Helper()
	position := pgtest.Query(s.t, written, `SELECT pg_current_wal_flush_lsn()`)
	pgtest.WaitFor(s.t, asked, `SELECT confirmed_flush_lsn >= $1::pg_lsn AND active FROM pg_replication_slots WHERE slot_name = $2`, "t", position, s.name)
}

// TestStandby: the publisher is a standby, which waits for its primary where it has to
// make a slot, and is promoted in the end.
func TestStandby(t *testing.T) {
	t.Parallel()
	s := newStandbyLink(t)
	s.loadTables()
	s.onSource(`INSERT INTO entry SELECT 100, g, 'before' FROM generate_series(1, 5000) g`)
	s.onTarget(`TRUNCATE counter`)
	slots := func(want string) {
		t.Helper()
		pgtest.WaitFor(t, s.replica, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`, want)
	}
	// The tables are there before anybody looks for them.
	pgtest.WaitFor(t, s.replica, `SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, "t", pgtest.Query(t, s.source, `SELECT pg_current_wal_flush_lsn()`))

	// The primary writes nothing, so the slot is not made.
	p := s.spawn("--copy-data=true", "--source", s.replica)
	p.says("waiting: replication slot", "SELECT pg_log_standby_snapshot() on the primary, or start with --primary")
	pgtest.WaitFor(t, s.target, `SELECT status ->> 'state', status ->> 'waiting_for' LIKE '%--primary%' FROM pgapply.runner`, "waiting|t")
	slots("1")
	p.terminate()
	require.Zero(t, p.exitCode(10*time.Second))
	slots("0")

	writer := pgtest.Open(t, s.source)
	writer.Exec(`BEGIN; INSERT INTO entry VALUES (101, 1, 'open')`)
	p = s.spawn("--copy-data=true", "--source", s.replica, "--primary", s.source)
	p.says("what writes on the primary has ended: " + fmt.Sprintf("process %d", writer.PID()))
	load := s.startLoad(2)
	load.issue(100)
	writer.Exec(`COMMIT`)
	p.says("streaming")
	load.issue(100)

	// A table that comes later has a slot of its own.
	s.both(`CREATE TABLE late (id int PRIMARY KEY, v text)`)
	s.onSource(`INSERT INTO late SELECT g, 'before' FROM generate_series(1, 1000) g`, `ALTER PUBLICATION p ADD TABLE late`, `CREATE SEQUENCE number OWNED BY late.id; SELECT setval('number', 42)`)
	s.onTarget(`CREATE SEQUENCE number`)
	s.caughtUpFrom(s.source, s.replica)
	ends := operate.Endpoints{Name: s.name, Source: s.replica, Target: s.target}
	_, err := operate.Refresh(t.Context(), ends, true)
	require.NoError(t, err)
	s.onSource(`UPDATE late SET v = 'changed' WHERE id % 3 = 0`)
	pgtest.WaitFor(t, s.target, `SELECT string_agg(table_name || state::text, ' ' ORDER BY table_name) FROM pgapply.subscription_table`, "counterr entryr later")
	load.finish()
	s.caughtUpFrom(s.source, s.replica)
	s.sameLoad()
	s.same(`SELECT * FROM late ORDER BY id`)
	slots("1")

	checkup, err := operate.Check(t.Context(), s.options(func(o *apply.Options) { o.Source, o.Primary = s.replica, s.source }))
	require.NoError(t, err)
	require.Zero(t, checkup.Errors, checkup.Text())
	_, err = operate.Sequences(t.Context(), operate.SequencesOptions{Endpoints: ends, Publications: []string{"p"}})
	require.NoError(t, err)
	require.Equal(t, "t", pgtest.Query(t, s.target, `SELECT last_value >= 42 FROM number`))

	status, err := operate.ReadStatus(t.Context(), ends)
	require.NoError(t, err)
	require.True(t, status.Publisher.Reachable)
	require.NotZero(t, status.Publisher.Current)

	// The stream goes on behind its promotion.
	require.NoError(t, s.primary.Stop(cluster.Immediate))
	require.Equal(t, "t", pgtest.Query(t, s.replica, `SELECT pg_promote()`))
	pgtest.Exec(t, s.replica, `INSERT INTO late VALUES (5000, 'promoted')`, `UPDATE counter SET n = n + 1`)
	s.caughtUpFrom(s.replica, s.replica)
	s.source = s.replica
	s.sameLoad()
	s.same(`SELECT * FROM late ORDER BY id`)
	p.stop()
	p = s.spawn("--copy-data=true", "--source", s.replica, "--primary", s.source)
	p.says("a standby was promoted", "streaming")
	s.onSource(`DELETE FROM late WHERE id < 100`)
	s.caughtUpFrom(s.replica, s.replica)
	s.same(`SELECT * FROM late ORDER BY id`)
	p.stop()
}

// TestFailover: a standby keeps the slot, and goes on with it when it is promoted.
func TestFailover(t *testing.T) {
	t.Parallel()
	s := newStandbyLink(t)
	s.loadTables()
	view := func(uri, want string) {
		t.Helper()
		pgtest.WaitFor(t, uri, `SELECT failover, synced, temporary FROM pg_replication_slots WHERE slot_name = $1`, want, s.name)
	}
	// It can be asked for at a later start, and taken back.
	ask := func(failover bool) func(*apply.Options) {
		return func(o *apply.Options) {
			o.Failover, o.CopyData = failover, true
			o.Source = fmt.Sprintf("postgres://postgres@%s:%d,%s:%d/%s?sslmode=disable&target_session_attrs=read-write",
				cluster.Host, s.primary.Port(), cluster.Host, s.standby.Port(), s.name)
		}
	}
	s.onTarget(`TRUNCATE counter`)
	s.start(ask(true))
	view(s.source, "t|f|f")
	s.stop()
	s.start(ask(false))
	view(s.source, "f|f|f")
	s.stop()
	s.start(ask(true))
	view(s.source, "t|f|f")

	// The slot that a later table is copied on is no affair of the standby.
	s.both(`CREATE TABLE late (id int PRIMARY KEY)`)
	s.onSource(`INSERT INTO late VALUES (1)`, `ALTER PUBLICATION p ADD TABLE late`)
	writer := pgtest.Open(t, s.source)
	writer.Exec(`BEGIN; INSERT INTO late VALUES (2)`)
	_, err := operate.Refresh(t.Context(), operate.Endpoints{Name: s.name, Source: s.source, Target: s.target}, true)
	require.NoError(t, err)
	pgtest.WaitFor(t, s.source, `SELECT failover FROM pg_replication_slots WHERE slot_name LIKE '%\_sync'`, "f")
	writer.Exec(`COMMIT`)
	pgtest.WaitFor(t, s.target, `SELECT string_agg(table_name || state::text, ' ' ORDER BY table_name) FROM pgapply.subscription_table`, "counterr entryr later")

	physical := pgtest.Query(t, s.source, `SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'physical'`)
	s.onSource(`ALTER SYSTEM SET synchronized_standby_slots = '`+physical+`'`, `SELECT pg_reload_conf()`)
	load := s.startLoad(2)
	load.issue(100)
	load.finish()
	s.caughtUpFrom(s.source, s.source)
	// The copy is one for the time being until the slot needs nothing that the standby does
	// not keep, which it knows behind a record of what runs.
	for range 2 {
		s.onSource(`SELECT pg_log_standby_snapshot()`)
		s.caughtUpFrom(s.source, s.source)
	}
	pgtest.WaitFor(t, s.replica, `SELECT pg_sync_replication_slots(); SELECT failover, synced, temporary FROM pg_replication_slots WHERE slot_name = '`+s.name+`'`, "\nt|t|f")

	// The copy is not to be used before the standby is promoted.
	checkup, err := operate.Check(t.Context(), s.options(func(o *apply.Options) { o.Source = s.replica }))
	require.NoError(t, err)
	require.Contains(t, checkup.Text(), "is the copy that a standby keeps")

	require.NoError(t, s.primary.Stop(cluster.Immediate))
	require.Equal(t, "t", pgtest.Query(t, s.replica, `SELECT pg_promote()`))
	s.source = s.replica
	s.onSource(`INSERT INTO entry VALUES (100, 1, 'promoted')`, `UPDATE counter SET n = n + 1`)
	s.caughtUpFrom(s.source, s.source)
	s.sameLoad()
	s.same(`SELECT * FROM late ORDER BY id`)
}

// TestStandbyLosesTheSlot: the primary removes rows that the standby's slot needs, since
// the standby does not tell it of them.
func TestStandbyLosesTheSlot(t *testing.T) {
	t.Parallel()
	s := newStandbyLink(t)
	s.both(`CREATE TABLE a (id int PRIMARY KEY)`)
	s.onSource(`CREATE PUBLICATION p FOR TABLE a`)
	pgtest.WaitFor(t, s.replica, `SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, "t", pgtest.Query(t, s.source, `SELECT pg_current_wal_flush_lsn()`))
	s.launch(s.options(func(o *apply.Options) { o.Source, o.Primary = s.replica, s.source }))
	pgtest.WaitFor(t, s.replica, `SELECT state FROM pg_stat_replication WHERE application_name = $1`, "streaming", s.name)
	pgtest.Exec(t, s.replica, `ALTER SYSTEM SET hot_standby_feedback = off`, `SELECT pg_reload_conf()`)
	pgtest.WaitFor(t, s.source, `SELECT xmin IS NULL AND catalog_xmin IS NULL FROM pg_replication_slots WHERE slot_type = 'physical'`, "t")
	s.onSource(`CREATE TABLE gone (id int)`, `DROP TABLE gone`, `VACUUM pg_catalog.pg_class`, `INSERT INTO a VALUES (1)`)
	requireClass(t, apply.SlotLost, s.wait(), "rows_removed", "hot_standby_feedback = on")
}
