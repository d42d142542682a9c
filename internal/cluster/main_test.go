package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// childVariable makes this test binary, executed once more by a test, do that
// test's part as another process.
const childVariable = "PGAPPLY_CLUSTER_TEST_CHILD"

func TestMain(m *testing.M) {
	switch role := os.Getenv(childVariable); role {
	case "":
		goleak.VerifyTestMain(m)
	case "fetch":
		fetchAsChild()
	default:
		dieAsChild(role)
	}
}

// child executes the test binary in a role, as a process group of its own. What it
// says comes from output; it reads its standard input until hangUp.
func child(t *testing.T, role string, environment ...string) (command *exec.Cmd, output *bufio.Reader, hangUp func() error) {
	t.Helper()
	command = exec.Command(os.Args[0])
	command.Env = append(append(os.Environ(), childVariable+"="+role), environment...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := command.StdinPipe()
	require.NoError(t, err)
	said, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() })
	return command, bufio.NewReader(said), input.Close
}

// receive reads a value that a child wrote as one line of JSON.
func receive(t *testing.T, from *bufio.Reader, value any) {
	t.Helper()
	line, err := from.ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(line, value))
}

// startForTest starts a cluster that ends with the test.
func startForTest(t *testing.T, options Options) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// ask runs SQL on a connection of its own and returns the single value.
func ask(t *testing.T, uri, sql string) string {
	t.Helper()
	connection := connect(t, uri)
	defer disconnect(t, connection)
	results, err := connection.Exec(t.Context(), sql).ReadAll()
	require.NoError(t, err)
	if last := results[len(results)-1]; len(last.Rows) > 0 {
		return string(last.Rows[0][0])
	}
	return ""
}

func connect(t *testing.T, uri string) *pgconn.PgConn {
	t.Helper()
	connection, err := pgconn.Connect(t.Context(), uri)
	require.NoError(t, err)
	return connection
}

func disconnect(t *testing.T, connection *pgconn.PgConn) {
	t.Helper()
	_ = connection.Close(t.Context())
	<-connection.CleanupDone()
}

// eventually waits for what another process does.
func eventually(t *testing.T, reached func() bool, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, poll(ctx, reached), what)
}

// reachable makes a directory that the servers' account can walk to, unlike
// t.TempDir, which belongs to us alone.
func reachable(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("/var/tmp", "pgapply-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(directory)) })
	require.NoError(t, os.Chmod(directory, 0o755))
	return directory
}

// identify takes hold of a process for alive.
func identify(t *testing.T, pid int) process {
	t.Helper()
	s, err := readStat(pid)
	require.NoError(t, err)
	return process{pid: pid, started: s.started}
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, makeDirectories(filepath.Dir(path)))
	require.NoError(t, os.WriteFile(path, []byte(content), mode))
	require.NoError(t, os.Chmod(path, mode))
}
