package cluster

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStartMajors(t *testing.T) {
	for _, major := range []int{NewestMajor, 14} {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			t.Parallel()
			c := startForTest(t, Options{Major: major, Settings: map[string]string{"application_name": `it's a \ test`}})
			require.Equal(t, c.Installation().Origin == Fallback, c.Major() != major)
			require.Equal(t, c.Installation().Version, ask(t, c.URI("postgres"), `show server_version`))
			require.Equal(t, "logical off UTF8 C postgres 20 "+c.Dir()+"/data", ask(t, c.URI("postgres"), `select concat_ws(' ',
				current_setting('wal_level'), current_setting('fsync'), current_setting('server_encoding'), datcollate, current_user,
				current_setting('max_prepared_transactions'), current_setting('data_directory')) from pg_database where datname = current_database()`))
			require.Equal(t, `it's a \ test`, ask(t, c.URI("postgres"), `select reset_val from pg_settings where name = 'application_name'`))

			local := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/template1", RawQuery: url.Values{
				"host": {c.SocketDir()}, "port": {strconv.Itoa(c.Port())},
			}.Encode()}
			require.Equal(t, "t", ask(t, local.String(), `select inet_client_addr() is null`))

			require.NoError(t, c.Close())
			require.False(t, c.Running())
			require.Zero(t, c.PID())
			require.NoDirExists(t, c.Dir())
			require.ErrorContains(t, c.Restart(t.Context()), "closed")
		})
	}
}

func TestStartsAtOnceKeepApart(t *testing.T) {
	clusters := make([]*Cluster, 3)
	errs := make([]error, len(clusters))
	var starts sync.WaitGroup
	for i := range clusters {
		starts.Go(func() { clusters[i], errs[i] = Start(t.Context(), Options{}) })
	}
	starts.Wait()
	identifiers, ports := map[string]bool{}, map[int]bool{}
	for i, c := range clusters {
		require.NoError(t, errs[i])
		identifiers[ask(t, c.URI("postgres"), `select system_identifier from pg_control_system()`)] = true
		ports[c.Port()] = true
	}
	require.Len(t, identifiers, len(clusters))
	require.Len(t, ports, len(clusters))
	for _, c := range clusters {
		require.NoError(t, c.Close())
	}
}

func TestTemplateIsMadeOnce(t *testing.T) {
	account, err := serverAccount()
	require.NoError(t, err)
	real, err := openCache(account)
	require.NoError(t, err)
	installation, err := newFinder(real, nil).find(t.Context(), NewestMajor)
	require.NoError(t, err)

	c := cacheForTest(t)
	var made sync.WaitGroup
	templates := make([]string, 3)
	for i := range templates {
		made.Go(func() {
			var err error
			if templates[i], err = c.template(t.Context(), installation, func(string) {}); err != nil {
				t.Error(err)
			}
		})
	}
	made.Wait()
	before, err := os.Stat(templates[0])
	require.NoError(t, err)

	again, err := c.template(t.Context(), installation, func(string) {})
	require.NoError(t, err)
	after, err := os.Stat(again)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.Equal(t, []string{filepath.Base(again)}, c.parts(t, "templates"))
}

func TestRestartKeepsPortAndData(t *testing.T) {
	c := startForTest(t, Options{})
	uri, pid := c.URI("postgres"), c.PID()
	ask(t, uri, `create table t as select 42 as a`)
	require.NoError(t, c.Restart(t.Context()))
	require.Equal(t, uri, c.URI("postgres"))
	require.NotEqual(t, pid, c.PID())
	require.Equal(t, "42", ask(t, uri, `select a from t`))
	for _, mode := range []Mode{Fast, Immediate, Smart} {
		require.NoError(t, c.Stop(mode))
		require.False(t, c.Running())
		require.NoError(t, c.Stop(mode), "a stopped server is left as it is")
		require.NoError(t, c.Restart(t.Context()))
		require.Equal(t, "42", ask(t, uri, `select a from t`))
	}
	said, err := c.Log(0)
	require.NoError(t, err)
	require.Contains(t, said, "database system was not properly shut down", "Immediate recovers")
}

func TestKillLeavesWhatRecoveryNeeds(t *testing.T) {
	for name, kill := range map[string]func(ctx context.Context, c *Cluster) error{
		"everything": func(_ context.Context, c *Cluster) error { return c.Kill() },
		"postmaster": func(ctx context.Context, c *Cluster) error {
			if err := c.KillPostmaster(); err != nil {
				return err
			}
			return c.AwaitGone(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := startForTest(t, Options{Durable: true})
			uri := c.URI("postgres")
			ask(t, uri, `create table t as select 42 as a`)
			session := connect(t, uri)
			defer disconnect(t, session)
			_, err := session.Exec(t.Context(), `begin; insert into t values (99)`).ReadAll()
			require.NoError(t, err)
			backend := identify(t, int(session.PID()))

			require.NoError(t, kill(t.Context(), c))
			require.False(t, backend.alive())
			require.False(t, c.Running())
			require.FileExists(t, filepath.Join(c.Dir(), "data", "postmaster.pid"))

			require.NoError(t, c.Restart(t.Context()))
			require.Equal(t, "43 42", ask(t, uri, `insert into t values (43); select max(a) || ' ' || min(a) from t`))
			require.Equal(t, "2", ask(t, uri, `select count(*) from t`))
		})
	}
}

func TestCloseAfterKillGivesSharedMemoryBack(t *testing.T) {
	c := startForTest(t, Options{})
	content, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
	require.NoError(t, err)
	segment := strings.Fields(strings.Split(string(content), "\n")[6])[1] // "key id", see src/include/utils/pidfile.h
	files := sharedMemoryFiles(t, c.PID())
	require.True(t, segmentExists(t, segment))
	require.NotEmpty(t, files)

	require.NoError(t, c.Kill())
	require.True(t, segmentExists(t, segment), "a killed server cannot give it back")
	require.NoError(t, c.Close())
	require.False(t, segmentExists(t, segment))
	for _, file := range files {
		require.NoFileExists(t, file)
	}
}

// segmentExists looks for a System V segment in the kernel's list.
func segmentExists(t *testing.T, id string) bool {
	t.Helper()
	list, err := os.ReadFile("/proc/sysvipc/shm")
	require.NoError(t, err)
	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == id {
			return true
		}
	}
	return false
}

// sharedMemoryFiles lists the POSIX segments that a process has mapped.
func sharedMemoryFiles(t *testing.T, pid int) []string {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	var files []string
	for line := range strings.Lines(string(maps)) {
		if fields := strings.Fields(line); len(fields) > 5 && strings.HasPrefix(fields[5], "/dev/shm/PostgreSQL.") {
			files = append(files, fields[5])
		}
	}
	return files
}

func TestStartTriesAnotherPort(t *testing.T) {
	stranger, err := net.Listen("tcp4", Host+":0")
	require.NoError(t, err)
	defer stranger.Close()
	account, err := serverAccount()
	require.NoError(t, err)
	cache, err := openCache(account)
	require.NoError(t, err)
	attempts := 0
	c, err := start(t.Context(), Options{}, newFinder(cache, nil), func(ctx context.Context) (int, func(), error) {
		if attempts++; attempts < 3 {
			return stranger.Addr().(*net.TCPAddr).Port, func() {}, nil
		}
		return cache.reservePort(ctx)
	})
	require.NoError(t, err)
	require.Equal(t, 3, attempts)
	require.Equal(t, "1", ask(t, c.URI("postgres"), `select 1`))
	require.NoError(t, c.Close())
}

func TestReservedPortsDiffer(t *testing.T) {
	c := cacheForTest(t)
	taken := map[int]bool{}
	for range 50 {
		port, release, err := c.reservePort(t.Context())
		require.NoError(t, err)
		defer release()
		require.False(t, taken[port])
		taken[port] = true
	}
}

func TestStartInPrivatePlaces(t *testing.T) {
	private := t.TempDir() // mode 0700, as a home may be
	t.Chdir(private)
	t.Setenv("HOME", private)
	t.Setenv("TMPDIR", private)
	c := startForTest(t, Options{})
	require.Equal(t, "1", ask(t, c.URI("postgres"), `select 1`))
	require.NotEmpty(t, c.SocketDir())
}

func TestStartBelowADeepPath(t *testing.T) {
	deep := filepath.Join(reachable(t), strings.Repeat("d", 60), strings.Repeat("e", 60))
	require.NoError(t, makeDirectories(deep))
	t.Setenv("TMPDIR", deep)
	elsewhere := startForTest(t, Options{})
	require.NotContains(t, elsewhere.Dir(), deep)
	require.NotEmpty(t, elsewhere.SocketDir())

	c := startForTest(t, Options{Dir: filepath.Join(deep, "wanted")})
	require.Equal(t, filepath.Join(deep, "wanted"), c.Dir())
	require.Empty(t, c.SocketDir())
	require.Equal(t, "1", ask(t, c.URI("postgres"), `select 1`))

	_, err := Start(t.Context(), Options{Dir: c.Dir()})
	require.ErrorContains(t, err, "exists")
	require.Equal(t, "1", ask(t, c.URI("postgres"), `select 1`))
}

func TestStartThatFailsLeavesNothing(t *testing.T) {
	directory := filepath.Join(reachable(t), "c")
	_, err := Start(t.Context(), Options{Dir: directory, Settings: map[string]string{"no_such_setting": "1"}})
	require.ErrorContains(t, err, `unrecognized configuration parameter "no_such_setting"`)
	require.NoDirExists(t, directory)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Start(ctx, Options{Dir: directory})
	require.ErrorIs(t, err, context.Canceled)
	require.NoDirExists(t, directory)
}
