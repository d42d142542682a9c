package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// File is a volatile file that is written at its end and read anywhere. One
// goroutine uses it at a time.
type File struct {
	dir    *Dir
	file   *os.File
	size   int64
	closed bool
}

// Write appends data. It writes nothing when that would exceed the limit of the
// directory, which a *LimitError says; a full disk is a *DiskFullError.
func (f *File) Write(data []byte) (int, error) {
	if err := f.dir.reserve(int64(len(data))); err != nil {
		return 0, err
	}
	n, err := f.file.WriteAt(data, f.size)
	f.size += int64(n)
	f.dir.giveBack(int64(len(data) - n))
	if err != nil {
		return n, f.dir.fault(fmt.Errorf("write spool file: %w", err))
	}
	return n, nil
}

// ReadAt reads from offset on, as io.ReaderAt says.
func (f *File) ReadAt(data []byte, offset int64) (int, error) {
	n, err := f.file.ReadAt(data, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("read spool file: %w", err)
	}
	return n, err
}

// Truncate cuts the file to its first size bytes and gives the space of the rest
// back. The next Write continues there.
func (f *File) Truncate(size int64) error {
	if size < 0 || size > f.size {
		return fmt.Errorf("truncate spool file %s of %d bytes to %d", f.file.Name(), f.size, size)
	}
	if err := f.file.Truncate(size); err != nil {
		return fmt.Errorf("truncate spool file: %w", err)
	}
	f.dir.giveBack(f.size - size)
	f.size = size
	return nil
}

// Close removes the file and gives its space back. Closing twice does nothing.
func (f *File) Close() error {
	if f.closed {
		return nil
	}
	f.closed = true
	err := f.file.Close()
	if !unlinkOpen {
		err = errors.Join(err, os.Remove(f.file.Name()))
	}
	f.dir.giveBack(f.size)
	f.size = 0
	if err != nil {
		return fmt.Errorf("close spool file: %w", err)
	}
	return nil
}
