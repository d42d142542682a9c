package spool

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// directoryName is what claim makes; nothing else is ever looked at.
var directoryName = regexp.MustCompile(`^` + namePrefix + `[0-9]+-[0-9a-f]{8}$`)

// removeLeftovers removes the directories of dead processes: those that bear a
// name of ours, belong to our user, and whose lock nobody holds. A directory
// that cannot be removed stays: it is in nobody's way.
func removeLeftovers(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !entry.IsDir() || !directoryName.MatchString(entry.Name()) || !ours(info) {
			continue
		}
		path := filepath.Join(parent, entry.Name())
		lock, err := lockDirectory(path, 0)
		if errors.Is(err, fs.ErrNotExist) {
			// It is about to be locked, or to vanish, or its process died at
			// that moment. The first notices when it is gone, and tries again.
			_ = os.Remove(path)
			continue
		}
		if err != nil {
			continue
		}
		_ = removeDirectory(path)
		_ = lock.Close()
	}
}

// removeDirectory removes our files in a directory whose lock we hold, the lock
// last, and the directory. It fails when something else is in there.
func removeDirectory(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return unlessGone(err)
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), fileSuffix) {
			err = errors.Join(err, unlessGone(os.Remove(filepath.Join(path, entry.Name()))))
		}
	}
	err = errors.Join(err, unlessGone(os.Remove(filepath.Join(path, lockName))))
	return errors.Join(err, unlessGone(os.Remove(path)))
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
