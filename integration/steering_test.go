package integration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// TestCommandsSteerASubscription: from the check before the first start to the
// transaction that is skipped, everything by the program alone.
func TestCommandsSteerASubscription(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE TABLE u (id int PRIMARY KEY)`, `CREATE PUBLICATION p FOR TABLE t, u`)
	l.onTarget(`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE TABLE u (id int PRIMARY KEY)`,
		`CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`,
		`CREATE TRIGGER sees AFTER INSERT ON u EXECUTE FUNCTION f(); ALTER TABLE u ENABLE ALWAYS TRIGGER sees`)
	tell := func(verb string, code int, parts ...string) {
		t.Helper()
		words := strings.Fields(verb)
		stdout, stderr, exit := shell(t, append(words, "--name", l.name, "--source", l.source, "--target", l.target)...)
		require.Equal(t, code, exit, "%s: %s%s", verb, stdout, stderr)
		for _, part := range parts {
			require.Contains(t, stdout+stderr, part, verb)
		}
	}
	publication := "check --publication p --name " + l.name
	tell(publication, 3, `is missing replicated column: "v"`, "add the column on the target", `statement trigger "sees"`, "1 error, 1 warning", "is not ready: 1 error")
	l.onTarget(`ALTER TABLE t ADD v text`)
	tell(publication, 0, l.name+" will be created", `statement trigger "sees"`, "0 errors, 1 warning")

	runner := l.spawn()
	l.streams(runner)
	require.Contains(t, runner.stderr.tail(1000), `statement trigger "sees" is enabled for replicated changes`, "it is said at the start")
	l.onSource(`INSERT INTO t VALUES (1, 'one'), (2, 'two')`)
	l.catchUp()
	// The runner writes its row at most once a second.
	pgtest.WaitFor(t, l.target, `SELECT status ->> 'state' FROM pgapply.runner`, "streaming")
	tell("check", 0, "a runner lives", "the target is at")

	tell("pause --reason maintenance", 0, "paused subscription", "applies nothing any more")
	tell("pause", 0, "was paused since", "maintenance")
	tell("status", 0, "paused since", "maintenance")
	l.onSource(`UPDATE t SET v = 'uno' WHERE id = 1`)
	tell("wait --for current --timeout 100ms", 1, "is not applied up to", "the subscription is paused since")
	tell("resume", 0, "resumed subscription", "streams")
	tell("wait --for current", 0, "is applied up to")
	require.Equal(t, "uno", pgtest.Query(t, l.target, `SELECT v FROM t WHERE id = 1`))

	tell("conflicts list", 0, "no conflicts recorded")
	l.onTarget(`DELETE FROM t WHERE id = 1`, `INSERT INTO t VALUES (3, 'mine')`)
	l.onSource(`DELETE FROM t WHERE id = 1`)
	l.catchUp()
	tell("conflicts list", 0, "delete_missing", "public.t", "skipped")
	id := pgtest.Query(t, l.target, `SELECT id FROM pgapply.conflict`)
	tell("conflicts show "+id, 0, `searched by   {"id": "1"}`, "by policy skip")
	tell("conflicts list --type update_missing --json", 0, `"conflicts": []`)

	l.onSource(`BEGIN; INSERT INTO t VALUES (4, 'four'), (3, 'three'); COMMIT`, `INSERT INTO t VALUES (5, 'five')`)
	pgtest.WaitFor(t, l.target, `SELECT last_error ~ 'finished at' FROM pgapply.runner`, "t")
	tell("conflicts list --type insert_exists", 0, "failed", "error")
	failed := pgtest.Query(t, l.target, `SELECT remote_commit_lsn FROM pgapply.conflict WHERE resolution = 'failed'`)
	tell("skip --lsn 0/1", 3, "is applied")
	tell("skip --lsn "+failed, 0, "will skip the transaction that finishes at "+failed, "it is the one that fails: apply INSERT on public.t")
	l.catchUp()
	require.Equal(t, "2|two\n3|mine\n5|five", pgtest.Query(t, l.target, `SELECT * FROM t ORDER BY id`))
	tell("conflicts list --type skipped", 0, "skipped_transaction")
	tell("status", 0, "1 insert_exists, 1 delete_missing, 2 skipped")
	pgtest.WaitFor(t, l.target, `SELECT coalesce(last_error, '') FROM pgapply.runner`, "")
	tell("skip --lsn "+failed, 3, "is applied")
	tell("skip --lsn none", 0, "had no transaction to skip")

	tell("conflicts clear", 3, "recorded conflicts: 4", "--yes")
	tell("conflicts clear --type insert_exists --yes", 0, "deleted recorded conflicts: 1")
	tell("conflicts clear --yes", 0, "deleted recorded conflicts: 3")
	runner.stop()
	tell("resume", 0, "was not paused", "no runner lives")
}
