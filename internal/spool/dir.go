// Package spool keeps volatile files: what has left memory and need not survive
// the process.
//
//	<dir>/pgapply-spool-<pid>-<random>/   one for each Dir, mode 0700
//	    lock                              held with flock while the process lives
//	    1.spool 2.spool ...               gone from here as soon as they are open
//
// A file is unlinked right after it is opened, where the system can do that. So
// its space, and the rows in it, are gone with the process however it dies; a
// spool of many gigabytes does not wait on a full disk for a next start, which
// may be on another machine. The price is that `du` does not see the files:
// Dir.Used tells what they take. The directory remains for the moment between
// the two calls, for systems that cannot unlink an open file, and to find out at
// the start, not in the middle of a transaction, that nothing can be written.
//
// A killed process leaves its directory with the lock. The next Open in the same
// place removes it, since nobody holds that lock, and touches nothing else.
//
// The package makes nothing durable: it never syncs.
package spool

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
)

// Dir is a directory of volatile files that one process owns. It is safe for
// concurrent use.
type Dir struct {
	parent string
	limit  int64
	used   atomic.Int64

	mu struct {
		sync.Mutex
		path   string
		lock   *os.File
		count  int // files created, for their names
		closed bool
	}
}

const (
	namePrefix = "pgapply-spool-"
	lockName   = "lock"
	fileSuffix = ".spool"
)

// Open makes a directory of its own inside parent, which it creates if need be,
// and removes those that dead processes have left there. An empty parent is the
// system's directory for temporary files; where that is in memory, choose
// another. All files together take at most limit bytes; zero means no limit.
func Open(parent string, limit int64) (*Dir, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, fmt.Errorf("open spool directory: %w", err)
	}
	d := &Dir{parent: parent, limit: limit}
	if err := d.claim(); err != nil {
		return nil, err
	}
	removeLeftovers(parent)
	return d, nil
}

// claim makes and locks a new directory. Somebody who looks for leftovers may
// take it for one until it is locked; then the next attempt has another name.
func (d *Dir) claim() error {
	if err := os.MkdirAll(d.parent, 0o700); err != nil {
		return d.fault(fmt.Errorf("create spool directory: %w", err))
	}
	for range 10 {
		path := filepath.Join(d.parent, namePrefix+strconv.Itoa(os.Getpid())+"-"+randomName())
		if err := os.Mkdir(path, 0o700); err != nil {
			return d.fault(fmt.Errorf("create spool directory: %w", err))
		}
		lock, err := lockDirectory(path, os.O_CREATE|os.O_EXCL)
		switch {
		case err == nil:
			d.mu.path, d.mu.lock = path, lock
			return nil
		case !errors.Is(err, errHeld) && !errors.Is(err, fs.ErrNotExist):
			err = fmt.Errorf("lock spool directory, which must be on a local disk (--spool-dir): %w", err)
			return errors.Join(d.fault(err), removeDirectory(path))
		}
	}
	return fmt.Errorf("create spool directory in %s: it is removed again each time", d.parent)
}

// randomName is eight hexadecimal digits. (rand.Read cannot fail.)
func randomName() string {
	var name [4]byte
	_, _ = rand.Read(name[:])
	return hex.EncodeToString(name[:])
}

// errHeld is the error of a lock that another process, or another Dir, holds.
var errHeld = errors.New("the lock is held")

// lockDirectory takes the lock in the directory, whose file it opens with those
// flags besides, and proves that it still is the lock in that place: somebody
// may have removed both in between.
func lockDirectory(path string, flags int) (*os.File, error) {
	name := filepath.Join(path, lockName)
	lock, err := takeLock(name, flags)
	if err != nil {
		return nil, err
	}
	held, err := lock.Stat()
	if err == nil {
		var current fs.FileInfo
		if current, err = os.Lstat(name); err == nil && !os.SameFile(held, current) {
			err = errHeld
		}
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// Create creates an empty file.
func (d *Dir) Create() (*File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return nil, fmt.Errorf("create spool file in %s: the directory is closed", d.parent)
	}
	file, err := d.open()
	if errors.Is(err, fs.ErrNotExist) {
		// Whoever tidies up the place of temporary files has taken our empty
		// directory away.
		_ = d.mu.lock.Close()
		if err := d.claim(); err != nil {
			return nil, err
		}
		file, err = d.open()
	}
	if err != nil {
		return nil, d.fault(fmt.Errorf("create spool file: %w", err))
	}
	if unlinkOpen {
		if err := os.Remove(file.Name()); err != nil {
			return nil, errors.Join(fmt.Errorf("unlink spool file: %w", err), file.Close())
		}
	}
	return &File{dir: d, file: file}, nil
}

func (d *Dir) open() (*os.File, error) {
	d.mu.count++
	name := filepath.Join(d.mu.path, strconv.Itoa(d.mu.count)+fileSuffix)
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// Used is what all files take, in bytes.
func (d *Dir) Used() int64 { return d.used.Load() }

// Close removes the directory. Files that are still open stay usable where the
// system can unlink them, and vanish when they are closed. Closing twice does
// nothing.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return nil
	}
	d.mu.closed = true
	return errors.Join(removeDirectory(d.mu.path), d.mu.lock.Close())
}

// reserve claims size bytes of the limit.
func (d *Dir) reserve(size int64) error {
	for {
		used := d.used.Load()
		if d.limit > 0 && size > d.limit-used {
			return &LimitError{Dir: d.parent, Limit: d.limit, Used: used, Wanted: size}
		}
		if d.used.CompareAndSwap(used, used+size) {
			return nil
		}
	}
}

// giveBack returns size bytes to the limit.
func (d *Dir) giveBack(size int64) { d.used.Add(-size) }
