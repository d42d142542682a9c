package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// forget takes the files of a cluster out of the page cache. Their server has just
// written all of its dirty pages; here they go to the disk, since dirty pages stay.
func forget(directory string) error {
	return filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // temporary
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer file.Close()
		if err := unix.Fdatasync(int(file.Fd())); err != nil {
			return err
		}
		return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}
