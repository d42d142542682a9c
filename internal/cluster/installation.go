package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// NewestMajor is the newest major that can be fetched, and the one that is used
// unless another is asked for.
const NewestMajor = 18

// Origin says how an installation was come by.
type Origin string

const (
	Explicit  Origin = "explicit"  // named by the caller or by PGAPPLY_PG_DIR_<major>
	Installed Origin = "installed" // found among the machine's servers
	Fetched   Origin = "fetched"   // from the npm registry, or from the cache of earlier fetches
	Fallback  Origin = "fallback"  // not the wanted major: that one could not be had
)

// Installation is a PostgreSQL server's programs.
type Installation struct {
	Major   int
	Version string // as the server says it: "18.4", "15.18 (Debian 15.18-0+deb12u1)"
	BinDir  string // holds postgres and initdb, seldom more
	Origin  Origin

	// Wanted is the major that was asked for. It differs from Major only when
	// Origin is Fallback, and Reason then says why.
	Wanted int
	Reason string
}

// String names the version and says aloud when it is not the wanted one.
func (i Installation) String() string {
	if i.Origin == Fallback {
		return fmt.Sprintf("PostgreSQL %s (%s) instead of %d, which could not be had: %s", i.Version, i.BinDir, i.Wanted, i.Reason)
	}
	return fmt.Sprintf("PostgreSQL %s (%s, %s)", i.Version, i.Origin, i.BinDir)
}

// Find returns a server of the major: from the directory that the environment
// names in PGAPPLY_PG_DIR_<major>, else installed on this machine, else fetched
// with npm into the cache. Only when none of them has it, it returns the newest
// one installed, with Origin Fallback. progress hears in words what takes time;
// it may be nil. Find is safe for concurrent use, also by several processes.
func Find(ctx context.Context, major int, progress func(string)) (Installation, error) {
	account, err := serverAccount()
	if err != nil {
		return Installation{}, err
	}
	cache, err := openCache(account)
	if err != nil {
		return Installation{}, err
	}
	return newFinder(cache, progress).find(ctx, major)
}

// Newest returns a server of NewestMajor, or the newest installed one where that
// cannot be had.
func Newest(ctx context.Context, progress func(string)) (Installation, error) {
	return Find(ctx, NewestMajor, progress)
}

// finder is one search for a server.
type finder struct {
	cache     *cache
	account   account
	progress  func(string)
	patterns  []string // where packages of servers put their programs
	releaseOf func(major int) (release, bool)
}

func newFinder(c *cache, progress func(string)) *finder {
	if progress == nil {
		progress = func(string) {}
	}
	return &finder{
		cache: c, account: c.account, progress: progress, releaseOf: releaseOf,
		patterns: []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"},
	}
}

func directoryVariable(major int) string { return "PGAPPLY_PG_DIR_" + strconv.Itoa(major) }

// choose finds the server that the options ask for.
func (f *finder) choose(ctx context.Context, options Options) (Installation, error) {
	if options.ServerDir != "" {
		return f.explicit(ctx, options.ServerDir, options.Major)
	}
	return f.find(ctx, cmp.Or(options.Major, NewestMajor))
}

func (f *finder) find(ctx context.Context, major int) (Installation, error) {
	if directory := os.Getenv(directoryVariable(major)); directory != "" {
		found, err := f.explicit(ctx, directory, major)
		if err != nil {
			return Installation{}, fmt.Errorf("%s: %w", directoryVariable(major), err)
		}
		return found, nil
	}
	installed := f.installed(ctx)
	for _, i := range installed {
		if i.Major == major {
			i.Wanted = major
			return i, nil
		}
	}
	fetched, err := f.fetched(ctx, major)
	if err == nil {
		return fetched, nil
	}
	if ctx.Err() != nil {
		return Installation{}, err
	}
	installed = append(installed, f.named(ctx)...)
	if len(installed) == 0 {
		return Installation{}, fmt.Errorf(
			"no PostgreSQL %d: install npm, which fetches it, or install a PostgreSQL server, or set %s to the directory of one: %w",
			major, directoryVariable(major), err)
	}
	newest := slices.MaxFunc(installed, func(a, b Installation) int { return a.Major - b.Major })
	newest.Origin, newest.Wanted, newest.Reason = Fallback, major, err.Error()
	f.progress("using " + newest.String())
	return newest, nil
}

// explicit takes the server in a directory, or in its bin, at its word: one that
// is missing, cannot run or is of another major is an error. Major 0 takes any.
func (f *finder) explicit(ctx context.Context, directory string, major int) (Installation, error) {
	directory, err := filepath.Abs(directory)
	if err != nil {
		return Installation{}, fmt.Errorf("resolve a server's directory: %w", err)
	}
	if inner := filepath.Join(directory, "bin"); isDirectory(inner) {
		directory = inner
	}
	found, err := f.inspect(ctx, directory)
	if err != nil {
		return Installation{}, err
	}
	if major != 0 && found.Major != major {
		return Installation{}, fmt.Errorf("%s holds PostgreSQL %s, wanted is %d", directory, found.Version, major)
	}
	found.Origin, found.Wanted = Explicit, found.Major
	return found, nil
}

// installed lists the servers that the machine's packages brought and those of
// the pg_config on PATH.
func (f *finder) installed(ctx context.Context) []Installation {
	var directories []string
	for _, pattern := range f.patterns {
		matches, err := filepath.Glob(pattern)
		if err == nil {
			directories = append(directories, matches...)
		}
	}
	if output, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		directories = append(directories, strings.TrimSpace(string(output)))
	}
	return f.usable(ctx, Installed, directories)
}

// named lists the servers that the environment names for other majors: they may
// stand in for the wanted one.
func (f *finder) named(ctx context.Context) []Installation {
	var found []Installation
	for major := 10; major <= NewestMajor+1; major++ {
		if directory := os.Getenv(directoryVariable(major)); directory != "" {
			if i, err := f.explicit(ctx, directory, major); err == nil {
				found = append(found, i)
			}
		}
	}
	return found
}

// usable keeps the directories that hold a server which runs. The others are no
// error: half an installation is common (clients only, another user's build).
func (f *finder) usable(ctx context.Context, origin Origin, directories []string) []Installation {
	slices.Sort(directories)
	var found []Installation
	for _, directory := range slices.Compact(directories) {
		if i, err := f.inspect(ctx, directory); err == nil {
			i.Origin = origin
			found = append(found, i)
		}
	}
	return found
}

func (f *finder) fetched(ctx context.Context, major int) (Installation, error) {
	r, ok := f.releaseOf(major)
	if !ok {
		return Installation{}, fmt.Errorf("no release of PostgreSQL %d is known for this platform", major)
	}
	directory, err := f.cache.fetch(ctx, r, f.progress)
	if err != nil {
		return Installation{}, err
	}
	found, err := f.inspect(ctx, filepath.Join(directory, "bin"))
	if err != nil {
		return Installation{}, err
	}
	found.Origin, found.Wanted = Fetched, major
	return found, nil
}

// inspect asks a server for its version, as the account that will run it: this
// also proves that the account can reach and execute it.
func (f *finder) inspect(ctx context.Context, bin string) (Installation, error) {
	for _, program := range []string{"postgres", "initdb"} {
		if _, err := os.Stat(filepath.Join(bin, program)); err != nil {
			return Installation{}, fmt.Errorf("%s holds no server: %w", bin, err)
		}
	}
	output, err := f.account.run(ctx, filepath.Join(bin, "postgres"), "--version")
	if err != nil {
		return Installation{}, fmt.Errorf("run %s/postgres as %s: %w: %s", bin, f.account.name, err, lastLines(output, 3))
	}
	version, major, err := parseVersion(output)
	if err != nil {
		return Installation{}, fmt.Errorf("%s/postgres: %w", bin, err)
	}
	return Installation{Major: major, Version: version, BinDir: bin}, nil
}

// parseVersion reads "postgres (PostgreSQL) 18.4" and the like.
func parseVersion(output string) (version string, major int, err error) {
	_, version, ok := strings.Cut(strings.TrimSpace(output), "(PostgreSQL) ")
	digits := version
	if end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = version[:end]
	}
	major, err = strconv.Atoi(digits)
	if !ok || err != nil {
		return "", 0, errors.New("its version cannot be read from " + strconv.Quote(output))
	}
	return version, major, nil
}

// templateKey names what a template of this installation depends on: the version
// and the very program, since development builds change without a new version.
func (i Installation) templateKey() (string, error) {
	program := filepath.Join(i.BinDir, "postgres")
	info, err := os.Stat(program)
	if err != nil {
		return "", fmt.Errorf("inspect a server: %w", err)
	}
	hash := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", program, info.Size(), info.ModTime().UnixNano()))
	version := regexp.MustCompile(`[^0-9a-zA-Z.]+`).ReplaceAllString(i.Version, "-")
	return strings.Trim(version, "-") + "-" + hex.EncodeToString(hash[:6]), nil
}
