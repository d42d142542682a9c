package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuildFillsOnce(t *testing.T) {
	c := cacheForTest(t)
	fills := 0 // not guarded: one caller at a time fills, as the race detector confirms
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			directory, err := c.build(t.Context(), "things", "one", func(string) {}, func(directory string) error {
				fills++
				return os.WriteFile(filepath.Join(directory, "file"), []byte("whole"), 0o644)
			})
			if err != nil || directory != filepath.Join(c.directory, "things", "one") {
				t.Errorf("got %q, %v", directory, err)
			}
		})
	}
	callers.Wait()
	require.Equal(t, 1, fills)
}

func TestBuildNeverShowsWhatIsHalfMade(t *testing.T) {
	c := cacheForTest(t)
	final := filepath.Join(c.directory, "things", "one")
	// A process that was killed in the middle left this.
	write(t, final+".partial-123/file", "half", 0o644)

	broken := errors.New("broken")
	_, err := c.build(t.Context(), "things", "one", func(string) {}, func(directory string) error {
		require.NoDirExists(t, final)
		write(t, filepath.Join(directory, "file"), "half", 0o644)
		return broken
	})
	require.ErrorIs(t, err, broken)
	require.NoDirExists(t, final)

	directory, err := c.build(t.Context(), "things", "one", func(string) {}, func(directory string) error {
		entries, err := os.ReadDir(directory)
		require.NoError(t, err)
		require.Empty(t, entries)
		return os.WriteFile(filepath.Join(directory, "file"), []byte("whole"), 0o644)
	})
	require.NoError(t, err)
	content, err := os.ReadFile(filepath.Join(directory, "file"))
	require.NoError(t, err)
	require.Equal(t, "whole", string(content))
	require.Equal(t, []string{"one"}, c.parts(t, "things"))
}

func TestBuildStopsWaitingWithItsContext(t *testing.T) {
	c := cacheForTest(t)
	require.NoError(t, makeDirectories(filepath.Join(c.directory, "things")))
	unlock, err := tryLock(filepath.Join(c.directory, "things", "one.lock"))
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	_, err = c.build(ctx, "things", "one", func(what string) {
		require.Equal(t, "waiting for another process that prepares things/one", what)
		cancel(enough)
	}, nil)
	require.ErrorIs(t, err, enough)
}

func TestBaseMustBeReachableForTheAccount(t *testing.T) {
	account, err := serverAccount()
	require.NoError(t, err)
	if !account.dropped {
		// We are the account ourselves: nothing of ours is out of its reach, so let
		// it be a directory that nobody can walk through.
		t.Setenv(cacheVariable, filepath.Join(lockedDirectory(t), "cache"))
	} else {
		t.Setenv(cacheVariable, filepath.Join(t.TempDir(), "cache")) // mode 0700
	}
	_, err = openCache(account)
	require.ErrorContains(t, err, "set "+cacheVariable+" to a directory that user "+account.name+" can reach")
}

func lockedDirectory(t *testing.T) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "locked")
	require.NoError(t, os.Mkdir(directory, 0o500))
	return directory
}

func TestCacheOfSomebodyElseIsRefused(t *testing.T) {
	account, err := serverAccount()
	require.NoError(t, err)
	base := reachable(t)
	for name, spoil := range map[string]func(directory string) error{
		"writable for all": func(directory string) error { return os.Chmod(directory, 0o777) },
		"a link": func(directory string) error {
			return errors.Join(os.Remove(directory), os.Symlink(base, directory))
		},
		"a file": func(directory string) error {
			return errors.Join(os.Remove(directory), os.WriteFile(directory, nil, 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			directory := filepath.Join(base, name)
			require.NoError(t, makeDirectories(directory))
			require.NoError(t, prepareBase(directory, account))
			require.NoError(t, spoil(directory))
			require.Error(t, prepareBase(directory, account))
		})
	}
}

func TestCacheIsOutsideOfAPrivateHome(t *testing.T) {
	t.Setenv(cacheVariable, "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", "")
	account, err := serverAccount()
	require.NoError(t, err)
	c, err := openCache(account)
	require.NoError(t, err)
	if account.dropped {
		require.NotContains(t, c.directory, os.Getenv("HOME"))
	}
	require.NoError(t, prepareBase(c.directory, account))
}
