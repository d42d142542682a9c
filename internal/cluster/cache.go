package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// cacheVariable overrides where servers and templates are kept.
const cacheVariable = "PGAPPLY_CACHE"

// cache is the directory that holds fetched servers and initdb templates. It is
// shared by all processes of one user; whoever fills a part of it holds that
// part's lock, and a part appears under its name only when it is complete.
type cache struct {
	directory string
	account   account
}

// openCache finds a directory for the cache that the account can reach. Only a
// directory that the environment names is not exchanged for another one.
func openCache(a account) (*cache, error) {
	candidates, err := cacheCandidates()
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, directory := range candidates {
		err := prepareBase(directory, a)
		if err == nil {
			return &cache{directory: directory, account: a}, nil
		}
		problems = append(problems, err)
	}
	return nil, fmt.Errorf("no usable cache for PostgreSQL servers, set %s to a directory that user %s can reach and execute from: %w",
		cacheVariable, a.name, errors.Join(problems...))
}

func cacheCandidates() ([]string, error) {
	if given := os.Getenv(cacheVariable); given != "" {
		absolute, err := filepath.Abs(given)
		if err != nil {
			return nil, fmt.Errorf("resolve %s: %w", cacheVariable, err)
		}
		return []string{absolute}, nil
	}
	shared := filepath.Join("/var/tmp", "pgapply-"+strconv.Itoa(os.Geteuid()))
	if os.Geteuid() == 0 {
		return []string{"/var/cache/pgapply", shared}, nil
	}
	if own, err := os.UserCacheDir(); err == nil {
		return []string{filepath.Join(own, "pgapply"), shared}, nil
	}
	return []string{shared}, nil
}

// prepareBase makes the directory and proves that the account can walk to it and
// execute a file in it, which a parent of mode 0700, a mount with noexec or a
// security module may forbid.
func prepareBase(directory string, a account) error {
	if err := makeDirectories(directory); err != nil {
		return err
	}
	if err := checkOwner(directory); err != nil {
		return err
	}
	probe, err := os.CreateTemp(directory, ".probe-")
	if err != nil {
		return fmt.Errorf("write below %s: %w", directory, err)
	}
	defer func() { _ = os.Remove(probe.Name()) }() // an empty file in the cache harms nobody
	_, err = probe.WriteString("#!/bin/sh\nexit 0\n")
	if err := errors.Join(err, probe.Chmod(0o755), probe.Close()); err != nil {
		return fmt.Errorf("write %s: %w", probe.Name(), err)
	}
	// A thread that forks in this moment still holds the probe open for writing
	// in its child, and execution then answers "text file busy" until that child
	// has executed its own program.
	for wait := time.Millisecond; ; wait *= 2 {
		err = a.command("/", probe.Name()).Run()
		if !errors.Is(err, syscall.ETXTBSY) || wait > time.Second {
			break
		}
		time.Sleep(wait)
	}
	if err != nil {
		return fmt.Errorf("user %s cannot execute files below %s: %w", a.name, directory, err)
	}
	return nil
}

// makeDirectories makes a directory and its missing parents so that others can
// walk through them whatever the umask says.
func makeDirectories(directory string) error {
	if _, err := os.Stat(directory); err == nil {
		return nil
	}
	if err := makeDirectories(filepath.Dir(directory)); err != nil {
		return err
	}
	if err := os.Mkdir(directory, 0o755); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		return fmt.Errorf("make a directory: %w", err)
	}
	if err := os.Chmod(directory, 0o755); err != nil {
		return fmt.Errorf("make %s traversable: %w", directory, err)
	}
	return nil
}

// checkOwner refuses a directory that somebody else prepared or that everybody can
// write to: we run programs from it.
func checkOwner(directory string) error {
	info, err := os.Lstat(directory)
	if err != nil {
		return fmt.Errorf("inspect a directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", directory)
	}
	status, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(status.Uid) != os.Geteuid() || info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("%s must belong to uid %d and not be writable for everybody", directory, os.Geteuid())
	}
	return nil
}

// build returns the directory <kind>/<name> of the cache. When it is missing,
// one caller of all processes runs fill on a fresh directory, which then appears
// under its name at once and complete; the others wait for it.
func (c *cache) build(ctx context.Context, kind, name string, progress func(string), fill func(directory string) error) (string, error) {
	final := filepath.Join(c.directory, kind, name)
	if isDirectory(final) {
		return final, nil
	}
	if err := makeDirectories(filepath.Join(c.directory, kind)); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(c.directory, kind, name+".lock"), func() {
		progress(fmt.Sprintf("waiting for another process that prepares %s/%s", kind, name))
	})
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDirectory(final) {
		return final, nil
	}

	// Of a killed caller not only the directory may be left but also a program that
	// goes on filling it. That one must not find its path again, hence a new name
	// each time; what it still writes may survive the removal until the next one.
	leftovers, err := filepath.Glob(filepath.Join(c.directory, kind, name+".partial-*"))
	if err != nil {
		return "", fmt.Errorf("look for half-made directories: %w", err)
	}
	for _, leftover := range leftovers {
		_ = os.RemoveAll(leftover)
	}
	partial, err := os.MkdirTemp(filepath.Join(c.directory, kind), name+".partial-")
	if err != nil {
		return "", fmt.Errorf("make a directory for %s/%s: %w", kind, name, err)
	}
	if err := os.Chmod(partial, 0o755); err != nil {
		return "", fmt.Errorf("make %s traversable: %w", partial, err)
	}
	if err := fill(partial); err != nil {
		return "", errors.Join(err, os.RemoveAll(partial))
	}
	// The name may reach the disk before the content does. After a power failure
	// a template of empty files would be taken for a complete one.
	syscall.Sync()
	if err := os.Rename(partial, final); err != nil {
		return "", fmt.Errorf("complete %s: %w", final, err)
	}
	return final, nil
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// errLocked says that somebody else holds a lock.
var errLocked = errors.New("locked by somebody else")

// tryLock takes an exclusive lock, which the kernel gives back when the process
// dies. The file stays: removing it would let two processes lock two files of one
// name.
func tryLock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open a lock: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil
}

// lock waits until it has the lock. It calls waiting once if somebody else holds
// it.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		unlock, err := tryLock(path)
		if !errors.Is(err, errLocked) {
			return unlock, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the lock %s: %w", path, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}
