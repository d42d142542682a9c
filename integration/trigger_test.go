package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// The tests in this file say what on the target answers to replicated changes:
// triggers, rules, constraints and foreign keys under session_replication_role =
// replica, and what TRUNCATE reaches.

// TestRowTriggers: ordinary ones are silent, those ENABLE REPLICA or ALWAYS fire.
func TestRowTriggers(t *testing.T) {
	eachMode(t, func(t *testing.T, l *link) {
		l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
		l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
		l.witness("AFTER INSERT", "BEFORE DELETE")
		l.onTarget(`CREATE TRIGGER ordinary AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION see()`,
			`CREATE TRIGGER replica BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION see()`, `ALTER TABLE t ENABLE REPLICA TRIGGER replica`,
			`CREATE TRIGGER off AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION see()`, `ALTER TABLE t ENABLE ALWAYS TRIGGER off`, `ALTER TABLE t DISABLE TRIGGER off`)
		l.play(`INSERT INTO t VALUES (1, 'a')`, `UPDATE t SET v = 'b'`, `DELETE FROM t`)
		require.Equal(t, "t AFTER INSERT\nt replica\nt BEFORE DELETE", l.seen())
	})
}

// TestTriggerThatLetsARowGo: a BEFORE trigger that returns NULL is the target's own
// decision, and no missing row.
func TestTriggerThatLetsARowGo(t *testing.T) {
	eachMode(t, func(t *testing.T, l *link) {
		l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
		l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
		l.onTarget(`CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF OLD.v = 'locked' THEN RETURN NULL; END IF; RETURN coalesce(NEW, OLD); END $$`,
			`CREATE TRIGGER veto BEFORE UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION veto()`, `ALTER TABLE t ENABLE ALWAYS TRIGGER veto`)
		l.play(`INSERT INTO t VALUES (1, 'locked'), (2, 'locked'), (3, 'free')`, `UPDATE t SET v = 'x' WHERE id <> 2`, `DELETE FROM t WHERE id = 2`)
		require.Equal(t, "1|locked\n2|locked\n3|x", pgtest.Query(t, l.target, `SELECT * FROM t ORDER BY id`))
		require.Empty(t, l.recorded())
	})
}

// TestTriggerThatSwallowsAnError in a subtransaction of its own holds nothing up: the
// position commits with the rows.
func TestTriggerThatSwallowsAnError(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.onTarget(`CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END; RETURN NEW; END $$`,
		`CREATE TRIGGER swallow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION swallow()`, `ALTER TABLE t ENABLE ALWAYS TRIGGER swallow`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	l.stop()
	l.onSource(`INSERT INTO t VALUES (2)`)
	l.start()
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
	require.Zero(t, l.engine.Status().Retries, "a row that came twice would be a violation of the key")
}

// TestStatementTriggersAndRulesFire where they are enabled for replicated changes.
// Natively they do not, since native apply runs no statements. Nothing can keep SQL
// from setting them off, so `check` and the start name them.
func TestStatementTriggersAndRulesFire(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE TABLE r (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t, r`)
	l.witness()
	l.onTarget(`CREATE TRIGGER always AFTER INSERT ON t EXECUTE FUNCTION see()`, `ALTER TABLE t ENABLE ALWAYS TRIGGER always`,
		`CREATE TRIGGER ordinary AFTER INSERT ON t EXECUTE FUNCTION see()`,
		`CREATE RULE always AS ON INSERT TO r DO ALSO INSERT INTO public.seen (what) VALUES ('rule')`, `ALTER TABLE r ENABLE ALWAYS RULE always`,
		`CREATE RULE ordinary AS ON INSERT TO t DO ALSO INSERT INTO public.seen (what) VALUES ('ordinary rule')`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1)`, `INSERT INTO r VALUES (1)`)
	l.catchUp()
	require.Equal(t, "t always\nrule", l.seen())
	l.same(`SELECT * FROM t`)
	l.same(`SELECT * FROM r`)
	stdout, _, _ := shell(t, "check", "--publication", "p", "--name", l.name, "--source", l.source, "--target", l.target)
	require.Contains(t, stdout, `statement trigger "always" is enabled for replicated changes`)
	require.Contains(t, stdout, `rule "always" is enabled for replicated changes`)
	require.NotContains(t, stdout, `"ordinary"`)
}

// TestForeignKeysAreNotChecked, nor do their actions run: the publisher's did.
func TestForeignKeysAreNotChecked(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE parent (id int PRIMARY KEY)`, `CREATE TABLE t (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`, `INSERT INTO parent VALUES (1)`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 1)`)
	l.catchUp()
	require.Equal(t, "1|1", l.same(`SELECT * FROM t`))
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM parent`))
}

// TestDeferrableUniqueIsNotEnforced, since it is a trigger: `check` warns.
func TestDeferrableUniqueIsNotEnforced(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, u int)`)
	l.onTarget(`ALTER TABLE t ADD CONSTRAINT later UNIQUE (u) DEFERRABLE`, `INSERT INTO t VALUES (9, 1)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1, 1)`)
	l.catchUp()
	require.Equal(t, "1|1\n9|1", pgtest.Query(t, l.target, `SELECT * FROM t ORDER BY id`))
	stdout, _, _ := shell(t, "check", "--publication", "p", "--name", l.name, "--source", l.source, "--target", l.target)
	require.Contains(t, stdout, "constraint later is deferrable")
}

// TestConstraintsAreEnforced: those that are no triggers stop what violates them, and
// no policy for conflicts of keys resolves that.
func TestConstraintsAreEnforced(t *testing.T) {
	for name, c := range map[string]struct{ target, code string }{
		"check":     {`CREATE TABLE t (id int PRIMARY KEY, a int, CONSTRAINT named CHECK (a < 10))`, "23514"},
		"not null":  {`CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL)`, "23502"},
		"exclusion": {`CREATE TABLE t (id int PRIMARY KEY, a int, CONSTRAINT named EXCLUDE (coalesce(a, 11) WITH =)); INSERT INTO t VALUES (99, 11)`, "23P01"},
		"domain":    {`CREATE DOMAIN small AS int NOT NULL CONSTRAINT named CHECK (VALUE < 10); CREATE TABLE t (id int PRIMARY KEY, a small)`, "2350"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t)
			l.onSource(`CREATE TABLE t (id int PRIMARY KEY, a int)`, `CREATE PUBLICATION p FOR TABLE t`)
			l.onTarget(c.target)
			l.start(onConflict("insert_exists=keep_local", "multiple_unique_conflicts=keep_local"))
			l.onSource(`INSERT INTO t VALUES (1, 1)`, `BEGIN; INSERT INTO t VALUES (2, 2); INSERT INTO t VALUES (3, NULL), (4, 11); COMMIT`)
			l.failure("public.t")
			if name == "check" {
				l.failure(c.code, "named")
			} else {
				l.failure(c.code)
			}
			require.Equal(t, "1|1", pgtest.Query(t, l.target, `SELECT * FROM t WHERE id < 99`))
			require.Empty(t, l.recorded())
		})
	}
}

// TestTruncateIsNotCascaded: the publisher's CASCADE came as the list of all tables that
// it emptied. A table that only the target has keeps its rows, and what it refers to
// cannot be emptied until somebody decides.
func TestTruncateIsNotCascaded(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE TABLE child (id int REFERENCES t)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t, child`)
	l.onTarget(`CREATE TABLE local (t int REFERENCES t)`)
	l.start()
	l.onSource(`INSERT INTO t VALUES (1), (2)`, `INSERT INTO child VALUES (1)`)
	l.catchUp()
	l.onTarget(`INSERT INTO local VALUES (2)`)
	l.onSource(`BEGIN; TRUNCATE t CASCADE; INSERT INTO t VALUES (3); COMMIT`)
	l.failure("TRUNCATE on public.", "0A000", "foreign key")
	require.Equal(t, "2|1|1", pgtest.Query(t, l.target, `SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM child), (SELECT count(*) FROM local)`))
	l.onTarget(`ALTER TABLE local DROP CONSTRAINT local_t_fkey`)
	l.catchUp()
	require.Equal(t, "3", l.same(`SELECT * FROM t`))
	require.Equal(t, "0|2", pgtest.Query(t, l.target, `SELECT (SELECT count(*) FROM child), t FROM local`))
}

// TestTruncateTriggers fire as row triggers do, natively too.
func TestTruncateTriggers(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	l.witness()
	l.onTarget(`CREATE TRIGGER always BEFORE TRUNCATE ON t EXECUTE FUNCTION see()`, `ALTER TABLE t ENABLE ALWAYS TRIGGER always`,
		`CREATE TRIGGER ordinary AFTER TRUNCATE ON t EXECUTE FUNCTION see()`)
	l.start()
	l.onSource(`TRUNCATE t`)
	l.catchUp()
	require.Equal(t, "t always", l.seen())
}
