package spool

import "fmt"

// LimitError says that the files would exceed their limit.
type LimitError struct {
	Dir    string // as given to Open
	Limit  int64  // bytes of all files together
	Used   int64
	Wanted int64 // bytes that were to be written
}

// Error names the directory and the remedy.
func (e *LimitError) Error() string {
	return fmt.Sprintf("spool directory %s is at its limit: %d of %d bytes are in use and %d more are needed; raise --spool-limit",
		e.Dir, e.Used, e.Limit, e.Wanted)
}

// DiskFullError says that the disk of the spool directory, or the quota there,
// is exhausted.
type DiskFullError struct {
	Dir string // as given to Open
	Err error
}

// Error names the directory and the remedy.
func (e *DiskFullError) Error() string {
	return fmt.Sprintf("no space for spool directory %s: free some there or set --spool-dir to another disk (%v)", e.Dir, e.Err)
}

// Unwrap returns the system's error.
func (e *DiskFullError) Unwrap() error { return e.Err }

// fault makes an error say what can be done about it.
func (d *Dir) fault(err error) error {
	if isFull(err) {
		return &DiskFullError{Dir: d.parent, Err: err}
	}
	return err
}
