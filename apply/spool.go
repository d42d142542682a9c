package apply

import (
	"context"
	"errors"
	"io/fs"

	"go.uber.org/zap"

	"pgapply/internal/spool"
)

// openSpool proves that there is room for what does not fit into memory before anything
// is asked of the servers.
func (a *attempt) openSpool(context.Context) error {
	var err error
	if a.files, err = spool.Open(a.options.SpoolDir, a.options.SpoolLimit); err == nil {
		return nil
	}
	_, full := errors.AsType[*spool.DiskFullError](err)
	return &Error{
		Class: Refused, Err: err, Retryable: full,
		Hint: "name a directory that the runner's user can write to with --spool-dir",
	}
}

func (a *attempt) closeSpool() {
	if a.files == nil {
		return
	}
	if err := a.files.Close(); err != nil {
		a.log.Warn("remove the spool", zap.Error(err))
	}
}

// spoolError classifies what a stream says of its spool; nil for anything else.
func spoolError(err error) *Error {
	const fits = "each transaction by itself must fit into --memory-limit and spool"
	if _, limit := errors.AsType[*spool.LimitError](err); limit {
		return &Error{Class: Other, Err: err, Retryable: true, Hint: "raise --spool-limit: " + fits}
	}
	if _, full := errors.AsType[*spool.DiskFullError](err); full {
		return &Error{Class: Other, Err: err, Retryable: true, Hint: "free space there, or name another disk with --spool-dir: " + fits}
	}
	if _, file := errors.AsType[*fs.PathError](err); file { // the only files of a stream are there
		return &Error{Class: Other, Err: err, Retryable: true, Hint: "mend the directory of --spool-dir, or name another one"}
	}
	return nil
}
