package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// birth is what dieAsChild tells of its cluster.
type birth struct {
	Directory, URI string
	Postmaster     int
}

// dieAsChild starts a cluster and does not close it.
func dieAsChild(role string) {
	c, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	line, _ := json.Marshal(birth{Directory: c.Dir(), URI: c.URI("postgres"), Postmaster: c.PID()})
	fmt.Println(string(line))
	runtime.GC()        // c is not used any more, but the cluster is
	_, _ = fmt.Scanln() // until the parent closes our standard input or kills us
	switch role {
	case "exit":
		os.Exit(3)
	case "panic":
		panic("a test went wrong")
	}
}

func TestClusterDiesWithItsProcess(t *testing.T) {
	bystander := startForTest(t, Options{})
	t.Run("of", func(t *testing.T) { testDeaths(t) })
	require.True(t, bystander.Running(), "a guard ends no other cluster of the same program")
	require.Equal(t, "1", ask(t, bystander.URI("postgres"), `select 1`))
}

func testDeaths(t *testing.T) {
	for _, role := range []string{"kill", "interrupt", "exit", "panic"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			command, output, hangUp := child(t, role)
			var born birth
			receive(t, output, &born)
			session := connect(t, born.URI)
			defer disconnect(t, session)
			postmaster := identify(t, born.Postmaster)
			backend := identify(t, int(session.PID()))
			require.True(t, postmaster.alive())

			// To the whole group, as a terminal and many a supervisor do.
			switch role {
			case "kill":
				require.NoError(t, syscall.Kill(-command.Process.Pid, syscall.SIGKILL))
			case "interrupt":
				require.NoError(t, syscall.Kill(-command.Process.Pid, syscall.SIGINT))
			default:
				require.NoError(t, hangUp())
			}
			require.Error(t, command.Wait())

			eventually(t, func() bool { return !isDirectory(born.Directory) }, "the directory outlived its process")
			require.False(t, postmaster.alive(), "the postmaster outlived its directory")
			require.False(t, backend.alive(), "a backend outlived its directory")
		})
	}
}

func TestDetachedServerIsLeftAlone(t *testing.T) {
	c, err := Start(t.Context(), Options{})
	require.NoError(t, err)
	c.Detach()
	require.NoError(t, c.Close())
	require.True(t, c.Running())
	require.Equal(t, "1", ask(t, c.URI("postgres"), `select 1`))

	require.NoError(t, c.Stop(Immediate))
	require.NoError(t, os.RemoveAll(c.Dir()))
}

func TestGuardEndsWhatCloseCannot(t *testing.T) {
	c, err := Start(t.Context(), Options{})
	require.NoError(t, err)
	session := connect(t, c.URI("postgres"))
	defer disconnect(t, session)
	backend := identify(t, int(session.PID()))
	c.guard.act()
	require.False(t, backend.alive())
	require.NoDirExists(t, c.Dir())
	require.NoError(t, c.Close())
}
