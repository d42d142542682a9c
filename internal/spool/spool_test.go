package spool

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// childVariable makes the test binary a process that opens a spool in the
// directory that it names, says where, and waits to be killed.
const childVariable = "PGAPPLY_SPOOL_TEST_CHILD"

func TestMain(m *testing.M) {
	if parent := os.Getenv(childVariable); parent != "" {
		if err := child(parent); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func child(parent string) error {
	dir, err := Open(parent, 0)
	if err != nil {
		return err
	}
	file, err := dir.Create()
	if err != nil {
		return err
	}
	if _, err := file.Write(make([]byte, 1<<20)); err != nil {
		return err
	}
	fmt.Println(dir.mu.path)
	_, err = io.Copy(io.Discard, os.Stdin) // until killed
	return err
}

// startChild returns the directory of a child that has a file open, and the
// function that kills it with SIGKILL.
func startChild(t *testing.T, parent string) (path string, kill func()) {
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), childVariable+"="+parent)
	command.Stderr = os.Stderr
	_, err := command.StdinPipe() // its end ends the child if we die first
	require.NoError(t, err)
	stdout, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	kill = sync.OnceFunc(func() {
		require.NoError(t, command.Process.Kill())
		require.Error(t, command.Wait(), "the child was to be killed")
	})
	t.Cleanup(kill)
	path, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err, "the child ended early")
	return strings.TrimSpace(path), kill
}

func names(t *testing.T, path string) []string {
	entries, err := os.ReadDir(path)
	require.NoError(t, err)
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func open(t *testing.T, parent string, limit int64) *Dir {
	dir, err := Open(parent, limit)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dir.Close()) })
	return dir
}

func create(t *testing.T, dir *Dir) *File {
	file, err := dir.Create()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	return file
}

func write(t *testing.T, file *File, text string) {
	n, err := file.Write([]byte(text))
	require.NoError(t, err)
	require.Equal(t, len(text), n)
}

func content(t *testing.T, file *File) string {
	data, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<20))
	require.NoError(t, err)
	return string(data)
}

func TestFile(t *testing.T) {
	dir := open(t, filepath.Join(t.TempDir(), "made", "for", "us"), 0)
	file, other := create(t, dir), create(t, dir)
	write(t, file, "first second")
	write(t, other, "other")
	require.NoError(t, file.Truncate(5))
	write(t, file, " third")
	require.Equal(t, "first third", content(t, file))
	require.Equal(t, "other", content(t, other))
	require.EqualValues(t, len("first third")+len("other"), dir.Used())

	require.ErrorContains(t, file.Truncate(12), "of 11 bytes to 12")
	require.NoError(t, file.Truncate(11))

	require.NoError(t, file.Close())
	require.NoError(t, file.Close(), "closing again does nothing")
	require.EqualValues(t, len("other"), dir.Used())
}

func TestDirectoryIsPrivateAndGone(t *testing.T) {
	parent := t.TempDir()
	dir := open(t, parent, 0)
	info, err := os.Stat(dir.mu.path)
	require.NoError(t, err)
	require.Equal(t, fs.ModeDir|0o700, info.Mode())

	file := create(t, dir)
	write(t, file, "row")
	require.Equal(t, []string{lockName}, names(t, dir.mu.path), "an open file must have no name")

	require.NoError(t, dir.Close())
	require.NoError(t, dir.Close(), "closing again does nothing")
	require.Empty(t, names(t, parent))
	require.Equal(t, "row", content(t, file), "a file outlives its directory")
	_, err = dir.Create()
	require.ErrorContains(t, err, "closed")
}

func TestLimit(t *testing.T) {
	parent := t.TempDir()
	dir := open(t, parent, 10)
	file, other := create(t, dir), create(t, dir)
	write(t, file, "123456")
	write(t, other, "789")

	n, err := other.Write([]byte("too much"))
	require.Zero(t, n)
	limit, ok := errors.AsType[*LimitError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, &LimitError{Dir: parent, Limit: 10, Used: 9, Wanted: 8}, limit)
	require.ErrorContains(t, err, parent)
	require.ErrorContains(t, err, "--spool-limit")
	require.Equal(t, "789", content(t, other))

	write(t, other, "0")
	_, err = other.Write([]byte("1"))
	require.Error(t, err)

	require.NoError(t, file.Truncate(4))
	write(t, other, "12")
	require.NoError(t, other.Close())
	write(t, file, "567890")
	require.Equal(t, "1234567890", content(t, file))
}

// Writers that race for the last bytes get exactly the limit between them.
func TestLimitIsShared(t *testing.T) {
	const writers, each, limit = 4, 100, 250
	dir := open(t, t.TempDir(), limit)
	var group sync.WaitGroup
	for range writers {
		file := create(t, dir)
		group.Go(func() {
			for range each {
				if _, err := file.Write([]byte("x")); err != nil {
					return
				}
			}
		})
	}
	group.Wait()
	require.EqualValues(t, limit, dir.Used())
}

func TestOpenSaysWhatIsInTheWay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := Open(file, 0)
	require.ErrorContains(t, err, "create spool directory")
	require.ErrorContains(t, err, file)
}

func TestKilledProcessLeavesNothing(t *testing.T) {
	parent := t.TempDir()
	path, kill := startChild(t, parent)

	// While the child lives its directory is sacred.
	open(t, parent, 0)
	require.Equal(t, []string{lockName}, names(t, path))

	kill()
	require.Equal(t, []string{lockName}, names(t, path), "the file's space must be free at once")
	// As if the process had died between creating and unlinking a file.
	require.NoError(t, os.WriteFile(filepath.Join(path, "7"+fileSuffix), []byte("row"), 0o600))

	open(t, parent, 0)
	require.NoDirExists(t, path)
}

func TestOpenTouchesOnlyItsOwn(t *testing.T) {
	parent, elsewhere := t.TempDir(), t.TempDir()
	keep := func(path ...string) {
		name := filepath.Join(append([]string{parent}, path...)...)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte("precious"), 0o600))
		t.Cleanup(func() { require.FileExists(t, name) })
	}
	keep("1.spool")
	keep("pgapply-spool-1-0000000", "1.spool")   // a digit short
	keep("pgapply-spool-x-00000000", "1.spool")  // no process id
	keep("pgapply-spool-1-00000000x", "1.spool") // something follows
	keep("pgapply-spool-2-00000000")             // a file
	keep("pgapply-spool-3-00000000", "notes.txt")
	require.NoError(t, os.WriteFile(filepath.Join(parent, "pgapply-spool-3-00000000", lockName), nil, 0o600))
	link := filepath.Join(parent, "pgapply-spool-4-00000000")
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "1.spool"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, lockName), nil, 0o600))
	require.NoError(t, os.Symlink(elsewhere, link))
	if os.Geteuid() == 0 {
		keep("pgapply-spool-6-00000000", "1.spool")
		keep("pgapply-spool-6-00000000", lockName)
		require.NoError(t, os.Chown(filepath.Join(parent, "pgapply-spool-6-00000000"), 1, 1))
	}
	// Ours, and dead before it could take its lock.
	dead := filepath.Join(parent, "pgapply-spool-5-00000000")
	require.NoError(t, os.Mkdir(dead, 0o700))

	open(t, parent, 0)
	require.NoDirExists(t, dead)
	require.FileExists(t, filepath.Join(elsewhere, "1.spool"))
	_, err := os.Lstat(link)
	require.NoError(t, err)
}

func TestTwoInOneProcess(t *testing.T) {
	parent := t.TempDir()
	first := open(t, parent, 0)
	second := open(t, parent, 0)
	require.NotEqual(t, first.mu.path, second.mu.path)
	write(t, create(t, first), "first")
	write(t, create(t, second), "second")
}

// Something that tidies up old temporary files may take the directory away.
func TestDirectoryTidiedAway(t *testing.T) {
	dir := open(t, t.TempDir(), 0)
	old := dir.mu.path
	require.NoError(t, os.RemoveAll(dir.parent))
	file := create(t, dir)
	write(t, file, "row")
	require.Equal(t, "row", content(t, file))
	require.NotEqual(t, old, dir.mu.path)
}

// Processes that start at the same moment must not take each other's new
// directories for leftovers.
func TestOpenAtOnce(t *testing.T) {
	parent := t.TempDir()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 20 {
				dir, err := Open(parent, 0)
				if err != nil {
					t.Error(err)
					return
				}
				file, err := dir.Create()
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(file.Close(), dir.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.Empty(t, names(t, parent))
}

func TestFree(t *testing.T) {
	free, known := Free(t.TempDir())
	require.Equal(t, known, free > 0)
	_, known = Free(filepath.Join(t.TempDir(), "nowhere"))
	require.False(t, known)
}
