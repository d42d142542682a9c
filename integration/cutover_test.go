package integration

import (
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// application is a writer that goes on until it is refused, and counts what it was told
// is committed. It reconnects as applications do.
func application(ctx context.Context, uri string) (committed int, refusal string) {
	for ctx.Err() == nil {
		conn, err := pgconn.Connect(ctx, uri)
		if err != nil {
			continue
		}
		for err == nil {
			if _, err = conn.Exec(ctx, `INSERT INTO work (what) VALUES ('x'); UPDATE total SET n = n + 1`).ReadAll(); err == nil {
				committed++
			}
		}
		_ = conn.Close(ctx)
		<-conn.CleanupDone()
		const readOnlyTransaction = "25006"
		if refused, ok := err.(*pgconn.PgError); ok && refused.Code == readOnlyTransaction { //nolint:errorlint // pgconn returns it as it is
			return committed, refused.Message
		}
	}
	return committed, ""
}

type cutOver struct {
	Safe     bool
	Reasons  []string
	Done     bool
	Steps    []struct{ Step, Text string }
	Next     []string
	Undo     []string
	FinalLSN string  `json:"final_lsn"`
	Downtime float64 `json:"downtime_seconds"`
}

func (l *link) cutover(code int, flags ...string) (report cutOver, stderr string) {
	l.t.Helper()
	stdout, stderr, got := shell(l.t, append([]string{"cutover", "--json", "--name", l.name, "--source", l.source, "--target", l.target}, flags...)...)
	require.Equal(l.t, code, got, "%s%s", stdout, stderr)
	require.NoError(l.t, json.Unmarshal([]byte(stdout), &report), stderr)
	return report, stderr
}

// TestCutover: an application writes until it may not any more. What it was told is
// committed is on the target then, whatever killed the cutover before; what it writes
// there comes back.
func TestCutover(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE work (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text)`, `CREATE TABLE total (id int PRIMARY KEY, n bigint)`,
		`INSERT INTO total VALUES (1, 0)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE work, total`)
	database := pgtest.Query(t, l.source, `SELECT current_database()`)
	t.Cleanup(func() {
		pgtest.Exec(t, l.target, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database() AND NOT active`)
	})
	l.start()
	written, refusal := make(chan int, 1), ""
	ctx, cancel := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		n, why := application(ctx, l.source)
		refusal = why
		written <- n
	})
	defer writer.Wait()
	defer cancel()
	pgtest.WaitFor(t, l.target, `SELECT count(*) > 50 FROM work`, "t")

	report, _ := l.cutover(3, "--dry-run", "--set-read-only", "--reverse")
	require.False(t, report.Safe)
	require.Contains(t, strings.Join(report.Reasons, "\n"), "without statistics on the target: public.total, public.work")
	l.onTarget(`ANALYZE`)
	report, _ = l.cutover(0, "--dry-run", "--set-read-only", "--reverse")
	require.True(t, report.Safe, report.Reasons)
	require.Empty(t, report.Steps)
	_, stderr := l.cutover(3, "--set-read-only")
	require.Contains(t, stderr, "not confirmed")

	// The sequence is held by somebody, so that the cutover is killed, or gives up, before
	// all is done: sessions are about to be ended, or are.
	holder := pgtest.Open(t, l.target)
	holder.Exec(`BEGIN`, `SELECT nextval('work_id_seq')`)
	program, err := build()
	require.NoError(t, err)
	flags := []string{"cutover", "--set-read-only", "--reverse", "--verify", "full", "--yes", "--name", l.name, "--source", l.source, "--target", l.target}
	killed := exec.CommandContext(t.Context(), "/proc/self/fd/3", flags...)
	killed.ExtraFiles, killed.Env = append(killed.ExtraFiles, program), environment()
	require.NoError(t, killed.Start())
	pgtest.WaitFor(t, l.source, `SELECT setconfig FROM pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())`, "{default_transaction_read_only=on}")
	_ = killed.Process.Signal(syscall.SIGKILL) // unless it has given up
	_ = killed.Wait()
	holder.Exec(`COMMIT`)
	require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT enabled FROM pgapply.subscription`), "nothing is done before the end")

	report, _ = l.cutover(0, "--set-read-only", "--reverse", "--verify", "full", "--yes")
	require.True(t, report.Done)
	committed := <-written
	require.Contains(t, refusal, "read-only")
	var steps []string
	for _, step := range report.Steps {
		steps = append(steps, step.Step)
	}
	require.Equal(t, "checked lag reverse stopped drained sequences verified reverse done", strings.Join(steps, " "))
	require.Contains(t, report.Undo[0], `ALTER DATABASE "`+database+`" RESET default_transaction_read_only`)
	require.GreaterOrEqual(t, pgtest.Query(t, l.target, `SELECT n FROM total`), "1")
	l.same(`SELECT count(*), max(id), (SELECT n FROM total) FROM work`)
	require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT n BETWEEN $1::int8 AND $1::int8 + 1 FROM total`, committed), "the last commit's answer may have been lost")

	report, _ = l.cutover(0, "--reverse", "--yes")
	require.True(t, report.Done)
	require.Len(t, report.Steps, 1)
	_, stderr, code := shell(t, "resume", "--name", l.name, "--target", l.target)
	require.Equal(t, 3, code, stderr)
	require.Contains(t, stderr, "not confirmed")
	require.Equal(t, "f", pgtest.Query(t, l.target, `SELECT enabled FROM pgapply.subscription`))

	// The target is written now, and that goes back as the report says.
	l.onTarget(`INSERT INTO work (what) VALUES ('on the target')`, `UPDATE total SET n = 0`)
	l.stop()
	_, command, _ := strings.Cut(report.Next[1], "pgapply ")
	command = strings.NewReplacer(`"$PGAPPLY_TARGET"`, l.target, `"$PGAPPLY_SOURCE"`, l.source).Replace(command)
	_, stderr, code = shell(t, append(strings.Fields(command), "--endpos", "current")...)
	require.Zero(t, code, stderr)
	l.same(`SELECT (SELECT n FROM total), what, count(*), max(id) FROM work GROUP BY what ORDER BY 2`)
	require.Equal(t, "0", pgtest.Query(t, l.source, `SELECT n FROM total`))
}

// TestCutoverFindsWritersThatGoOn: where the operator was wrong, nothing is done.
func TestCutoverFindsWritersThatGoOn(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE work (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE work`)
	l.start()
	pgtest.WaitFor(t, l.target, `SELECT status ->> 'state' FROM pgapply.runner`, "streaming")
	open := pgtest.Open(t, l.source)
	open.Exec(`BEGIN`, `INSERT INTO work VALUES (1)`)
	report, stderr := l.cutover(3, "--yes", "--timeout", "300ms")
	require.True(t, report.Safe, report.Reasons)
	require.Contains(t, stderr, "writes to the publisher have not ended within 300ms: process ")
	open.Exec(`COMMIT`)
	l.catchUp()
	l.onTarget(`ANALYZE`, `DELETE FROM work`)
	report, stderr = l.cutover(8, "--yes", "--verify", "full")
	require.Contains(t, stderr, "1 row in 1 table")
	require.False(t, report.Done)
	require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT enabled FROM pgapply.subscription`))
}
