package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// TestTruncateBesideALateTable: the publisher truncates together what the target has to
// empty apart, since one table is not ready, and it refers to the other.
func TestTruncateBesideALateTable(t *testing.T) {
	t.Parallel()
	l := lateLink(t)
	l.both(`ALTER TABLE a ADD n serial`, `CREATE TABLE child (id int PRIMARY KEY, a int REFERENCES a)`)
	l.onTarget(`SELECT setval('a_n_seq', 1000)`)
	l.stop()
	// The stream comes by this before the copy begins, which no TRUNCATE follows.
	l.onSource(`INSERT INTO child VALUES (1, 1)`, `TRUNCATE a, child RESTART IDENTITY`, `INSERT INTO a (id, n) VALUES (10, 1)`, `INSERT INTO child VALUES (10, 10)`)
	l.start(copying)
	l.states("ar childr")
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.same(`SELECT * FROM child ORDER BY id`)
	require.Equal(t, "1|f", pgtest.Query(t, l.target, `SELECT last_value, is_called FROM a_n_seq`))
	l.onlySlot()

	// A table that has nothing to do with the subscription protects the rows.
	l.onTarget(`CREATE TABLE stranger (a int REFERENCES a)`, `INSERT INTO stranger VALUES (10)`)
	l.onSource(`TRUNCATE a, child`)
	l.failure("apply TRUNCATE on public.child", "cannot truncate a table referenced")
	l.stop() // so as not to wait for the back-off
	l.onTarget(`DROP TABLE stranger`)
	l.start(copying)
	l.catchUp()
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM a`))
}

// TestStoppedStreamBesideACopy: a stream that stops again and again does not begin the
// copy beside it anew each time.
func TestStoppedStreamBesideACopy(t *testing.T) {
	t.Parallel()
	l := lateLink(t)
	l.both(`CREATE TABLE x (id int PRIMARY KEY)`)
	l.onTarget(`INSERT INTO a VALUES (2, 'a stranger')`)
	l.onSource(`INSERT INTO x VALUES (1)`, `INSERT INTO a VALUES (2, 'two')`)
	l.failure("insert_exists")
	l.refresh()
	l.tableError("x", "before the stream has applied")
	l.states("ar xi")
	require.Equal(t, l.name, pgtest.Query(t, l.source, `SELECT string_agg(slot_name, ' ') FROM pg_replication_slots WHERE database = current_database()`))
	l.onTarget(`DELETE FROM a WHERE id = 2`)
	l.states("ar xr")
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.same(`SELECT * FROM x`)
	l.onlySlot()
}

// TestMissingTableSkipWithACopy: what the target lacks is passed over by the copy too, and
// copied once it is there.
func TestMissingTableSkipWithACopy(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY)`)
	l.onSource(`CREATE TABLE lacking (id int PRIMARY KEY)`, `INSERT INTO a VALUES (1)`, `INSERT INTO lacking VALUES (1)`, `CREATE PUBLICATION p FOR ALL TABLES`)
	skipping := func(o *apply.Options) { o.MissingTable = "skip" }
	require.NoError(t, l.run(copying, skipping, func(o *apply.Options) { o.EndAtCurrent = true }))
	l.same(`SELECT * FROM a`)
	l.start(copying, skipping)
	l.onSource(`INSERT INTO a VALUES (2)`, `INSERT INTO lacking VALUES (2)`)
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.tableError("lacking", "the target has no table")
	l.stop() // so as not to wait for the back-off
	l.onTarget(`CREATE TABLE lacking (id int PRIMARY KEY)`)
	l.start(copying, skipping)
	l.states("ar lackingr")
	l.catchUp()
	l.same(`SELECT * FROM lacking ORDER BY id`)
	l.onlySlot()
}

// TestCleanupBetweenDropAndBuild: indexes that a copy has dropped are told by a cleanup,
// and made by whoever comes next.
func TestCleanupBetweenDropAndBuild(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.both(`CREATE TABLE a (id int PRIMARY KEY, v text)`, `CREATE INDEX by_v ON a (v)`, `CREATE TABLE b (id int PRIMARY KEY)`)
	l.onSource(`INSERT INTO a VALUES (1, 'one')`, `INSERT INTO b VALUES (1)`, `CREATE PUBLICATION p FOR ALL TABLES`)
	deferring := func(o *apply.Options) { o.DeferIndexes, o.TableJobs = true, 1 }
	lock := session(t, l.target)
	lock(`BEGIN; LOCK TABLE b IN SHARE MODE`)
	p := l.spawn("--copy-data", "--defer-indexes", "--table-jobs", "1")
	l.states("ar bd")
	p.kill()
	lock(`ROLLBACK`)
	pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, $1)`, "0", l.name)
	pgtest.WaitFor(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, "0", l.name)
	removal, err := operate.Cleanup(t.Context(), operate.CleanupOptions{Endpoints: l.endpoints(), Confirmed: true})
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(removal.Remains), `CREATE INDEX by_v ON public.a USING btree (v)`)
	require.Contains(t, fmt.Sprint(removal.Done), "pgapply.deferred_index")

	l.onTarget(`TRUNCATE a, b`)
	l.start(copying, deferring)
	l.states("ar br")
	l.same(`SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1`)
	l.stop()
	l.cleanedUp()
}

// TestDiskFullDuringACopy: the table whose rows found no room leaves none behind, the
// others go on, and it is copied once there is room.
func TestDiskFullDuringACopy(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	for _, name := range []string{"a", "large"} {
		l.both(`CREATE TABLE ` + name + ` (id int PRIMARY KEY, v text)`)
		l.onSource(`INSERT INTO ` + name + ` SELECT g, repeat('x', 300) FROM generate_series(1, 10000) g`)
	}
	l.onSource(`CREATE PUBLICATION p FOR ALL TABLES`)
	l.onTarget(`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF new.id > 9000 THEN RAISE 'could not extend file "base/1/2": No space left on device' USING ERRCODE = 'disk_full', HINT = 'Check free disk space.'; END IF;
			RETURN new; END $$`,
		`CREATE TRIGGER full_disk BEFORE INSERT ON large FOR EACH ROW EXECUTE FUNCTION full_disk()`, `ALTER TABLE large ENABLE ALWAYS TRIGGER full_disk`)
	l.start(copying, inParts)
	l.tableError("large", "No space left on device")
	l.states("ar largei")
	l.onSource(`UPDATE a SET v = 'goes on' WHERE id < 100`, `UPDATE large SET v = 'changed' WHERE id % 3 = 0`)
	l.catchUp()
	l.same(`SELECT * FROM a ORDER BY id`)
	l.onTarget(`DROP TRIGGER full_disk ON large`)
	l.stop() // so as not to wait for the back-off
	l.start(copying, inParts)
	l.states("ar larger")
	l.catchUp()
	l.same(`SELECT * FROM large ORDER BY id`)
	l.onlySlot()
}
