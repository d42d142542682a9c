package integration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// TestConflictHints: the error at which a subscription stops names the record of the
// conflict, what helps, and the transaction to leave out, whatever follows on it.
func TestConflictHints(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	strict := []func(*apply.Options){onConflict("delete_missing=error", "update_missing=error"), func(o *apply.Options) { o.OnError = "stop" }}
	l.start(strict...)
	l.stop()
	for _, c := range []struct{ source, target, mended, what, remedy string }{
		{`INSERT INTO t VALUES (1)`, `INSERT INTO t VALUES (1)`, `DELETE FROM t`, "INSERT on public.t", "remove or change the row on the target that holds the key"},
		{`UPDATE t SET id = 2`, `DELETE FROM t`, `INSERT INTO t VALUES (1)`, "the row to update does not exist", "put the row on the target"},
		{`DELETE FROM t`, `DELETE FROM t`, `INSERT INTO t VALUES (2)`, "the row to delete does not exist", "put the row on the target"},
	} {
		l.onTarget(c.target)
		l.onSource(c.source)
		err := l.run(strict...)
		requireClass(t, apply.Conflict, err, c.what, c.remedy)
		hint := apply.HintOf(err)
		require.Contains(t, hint, "`pgapply skip --lsn "+finishedAt(t, err.Error())+"`")
		require.Contains(t, hint, "`pgapply conflicts show "+pgtest.Query(t, l.target, `SELECT max(id) FROM pgapply.conflict`)+"`")
		require.Contains(t, hint, "--on-conflict "+pgtest.Query(t, l.target, `SELECT conflict_type FROM pgapply.conflict ORDER BY id DESC LIMIT 1`)+"=")
		require.NotContains(t, hint, "again")
		require.Equal(t, hint, pgtest.Query(t, l.target, `SELECT last_error_hint FROM pgapply.subscription`))
		l.onTarget(c.mended)
		l.start(strict...)
		l.catchUp()
		l.stop()
	}
}

// TestPublisherLoginHints: a refused login says what the publisher lacks.
func TestPublisherLoginHints(t *testing.T) {
	l := newLink(t)
	l.onSource(`CREATE PUBLICATION p`)
	role := l.name + "_role"
	l.onSource(`CREATE ROLE ` + role + ` LOGIN`)
	t.Cleanup(func() { pgtest.Exec(t, l.source, `DROP ROLE `+role) })
	as := func(user string) func(*apply.Options) {
		return func(o *apply.Options) { o.Source = strings.Replace(l.source, "postgres@", user+"@", 1) }
	}
	err := l.run(as(role))
	requireClass(t, apply.Source, err, role, "ALTER ROLE ... REPLICATION")
	err = l.run(as("nobody"))
	requireClass(t, apply.Source, err, "nobody", "pg_hba.conf")
	require.NotContains(t, err.Error(), "pg_hba.conf", "it is in the hint alone")
}
