package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// The command as a shell meets it: what it prints where, and how it exits.

// longestCommand bounds a command that should end and does not: so its test fails, not all.
const longestCommand = 3 * time.Minute

// shell runs the program to its end.
func shell(t *testing.T, arguments ...string) (stdout, stderr string, code int) {
	t.Helper()
	program, err := build()
	require.NoError(t, err)
	var out, log bytes.Buffer
	bounded, done := context.WithTimeout(t.Context(), longestCommand)
	defer done()
	command := exec.CommandContext(bounded, fmt.Sprintf("/proc/self/fd/%d", program.Fd()), arguments...)
	command.Env, command.Stdout, command.Stderr = environment(), &out, &log
	if err := command.Run(); err != nil {
		_, exited := errors.AsType[*exec.ExitError](err)
		require.True(t, exited, "%v", err)
		require.NoError(t, bounded.Err(), "pgapply %s has not ended by itself: %s%s", arguments, &out, &log)
	}
	return out.String(), log.String(), command.ProcessState.ExitCode()
}

func TestCommandReportsFaults(t *testing.T) {
	l := newLink(t)
	l.onSource("CREATE PUBLICATION p")
	flags := []string{"--name", l.name, "--source", l.source, "--target", l.target}
	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		says      []string
	}{
		{"usage", []string{"run", "--no-such-flag"}, 2, []string{"--no-such-flag", "hint: "}},
		{"initial copy", append([]string{"run", "--publication", "p", "--if-not-empty", "perhaps"}, flags...), 2, []string{"--if-not-empty", "append"}},
		{"publication", append([]string{"run", "--publication", "absent", "--copy-data=false"}, flags...), 3, []string{`"absent"`, "hint: "}},
		{"unknown subscription", append([]string{"status"}, flags...), 3, []string{l.name, "hint: "}},
		{"no such database", []string{"status", "--target", l.target + "&dbname=absent"}, 5, []string{"absent", "hint: "}},
		{"malformed URI", []string{"status", "--target", "postgres://%zz"}, 2, []string{"--target"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, stderr, code := shell(t, test.arguments...)
			require.Equal(t, test.code, code, stderr)
			require.Empty(t, stdout)
			require.Contains(t, stderr, "pgapply: ")
			for _, text := range test.says {
				require.Contains(t, stderr, text)
			}
		})
	}
	require.Equal(t, "0", pgtest.Query(t, l.source, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", l.name))
}

func TestCommandShowsAndTakesAwayASubscription(t *testing.T) {
	l := newLink(t)
	l.both("CREATE TABLE t (a int PRIMARY KEY)")
	l.onSource("CREATE PUBLICATION p FOR TABLE t")
	flags := []string{"--name", l.name, "--source", l.source, "--target", l.target}
	runner := l.spawn("--http", ":0")
	l.streams(runner)
	l.onSource("INSERT INTO t VALUES (1)")
	l.catchUp()
	runner.servesHTTP()
	// The runner writes its row at most once a second.
	pgtest.WaitFor(t, l.target, "SELECT status ->> 'state' FROM pgapply.runner", "streaming")

	stdout, stderr, code := shell(t, append([]string{"status"}, flags...)...)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "streaming")
	stdout, stderr, code = shell(t, append([]string{"status", "--json"}, flags...)...)
	require.Zero(t, code, stderr)
	var report struct {
		Subscription string `json:"subscription"`
		Runner       struct{ Alive bool }
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	require.Equal(t, l.name, report.Subscription)
	require.True(t, report.Runner.Alive)

	_, stderr, code = shell(t, append([]string{"cleanup", "--yes"}, flags...)...)
	require.Equal(t, 3, code, "the runner lives")
	require.Contains(t, stderr, "hint: stop the runner")
	runner.stop()
	_, stderr, code = shell(t, append([]string{"cleanup"}, flags...)...)
	require.Equal(t, 3, code, "nobody has agreed")
	require.Contains(t, stderr, "This drops: replication slot")
	stdout, stderr, code = shell(t, append([]string{"cleanup", "--yes"}, flags...)...)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "dropped replication slot")
	require.Equal(t, "0", pgtest.Query(t, l.source, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", l.name))
	require.Equal(t, "1", pgtest.Query(t, l.target, "SELECT count(*) FROM t"), "the rows stay")
}

// servesHTTP waits until a runner says over HTTP that it is ready, and has seen its slot.
func (p *process) servesHTTP() {
	p.t.Helper()
	p.says("serving HTTP on ")
	address := regexp.MustCompile(`serving HTTP on (\S+/)`).FindStringSubmatch(p.stderr.String())[1]
	get := func(path string) (int, string) {
		request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, address+path, nil)
		require.NoError(p.t, err)
		answer, err := http.DefaultClient.Do(request)
		require.NoError(p.t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(p.t, err)
		return answer.StatusCode, string(text)
	}
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		code, text := get("readyz")
		assert.Equal(c, http.StatusOK, code, text)
		_, metrics := get("metrics")
		assert.Regexp(c, `(?m)^pgapply_slot_active\{.*\} 1$`, metrics)
		assert.Regexp(c, `(?m)^pgapply_tables\{state="ready",.*\} 1$`, metrics)
	}, patience, 20*time.Millisecond)
	_, text := get("status")
	var report operate.Report
	require.NoError(p.t, json.Unmarshal([]byte(text), &report))
	require.EqualValues(p.t, 1, report.Status.Rows.Inserted)
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	l := newLink(t)
	l.both("CREATE TABLE t (a int PRIMARY KEY)")
	l.onSource("CREATE PUBLICATION p FOR TABLE t")
	runner := l.spawn()
	l.streams(runner)

	// The group in work waits for a lock, so that an orderly stop takes a while.
	conn, err := pgx.Connect(t.Context(), l.target)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(t.Context()) })
	_, err = conn.Exec(t.Context(), "BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	l.onSource("INSERT INTO t VALUES (1)")
	pgtest.WaitFor(t, l.target, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass", "1")

	// One that follows at once is the same wish again; a person needs longer to ask twice.
	runner.terminate()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for asking := true; asking; {
		select {
		case <-runner.exited:
			asking = false
		case <-again.C:
			_ = runner.command.Process.Signal(syscall.SIGINT) // it may have exited
		}
	}
	require.Contains(t, []int{130, 143}, runner.exitCode(patience), "128 and the number of the one that came last")
}

func TestReaderThatGoesAwayIsHarmless(t *testing.T) {
	program, err := build()
	require.NoError(t, err)
	for _, arguments := range [][]string{{"--help"}, {"version"}} {
		reader, writer, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, reader.Close())
		command := exec.CommandContext(t.Context(), fmt.Sprintf("/proc/self/fd/%d", program.Fd()), arguments...)
		command.Env, command.Stdout = environment(), writer
		require.NoError(t, command.Run(), "%s", arguments)
		require.NoError(t, writer.Close())
	}

	l := newLink(t)
	l.both("CREATE TABLE t (a int PRIMARY KEY)")
	l.onSource("CREATE PUBLICATION p FOR TABLE t")
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), fmt.Sprintf("/proc/self/fd/%d", program.Fd()), "run", "--copy-data=false", "--publication", "p",
		"--name", l.name, "--source", l.source, "--target", l.target, "--log-level", "debug")
	command.Env, command.Stderr = environment(), writer
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = time.Minute
	require.NoError(t, command.Start())
	require.NoError(t, writer.Close())
	require.NoError(t, reader.Close(), "nobody reads the log any more")
	pgtest.WaitFor(t, l.source, "SELECT active FROM pg_replication_slots WHERE slot_name = $1", "t", l.name)
	l.onSource("INSERT INTO t VALUES (1)")
	pgtest.WaitFor(t, l.target, "SELECT count(*) FROM t", "1")
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait(), "exit code 0")
}
