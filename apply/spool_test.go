package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/spool"
)

// fullErrors are what a stream ends with when there is no room for what it receives.
func fullErrors() map[string]error {
	return map[string]error{
		"limit": fmt.Errorf("receive: %w", &spool.LimitError{Dir: "/s", Limit: 10, Used: 9, Wanted: 8}),
		"disk":  fmt.Errorf("receive: %w", &spool.DiskFullError{Dir: "/s", Err: syscall.ENOSPC}),
	}
}

// A full spool is nobody's fault at the publisher's end, and receiving less at a
// time may cure it; once.
func TestFullSpool(t *testing.T) {
	for name, err := range fullErrors() {
		t.Run(name, func(t *testing.T) {
			trouble, ok := errors.AsType[*Error](streamError(err))
			require.True(t, ok)
			require.Equal(t, Other, trouble.Class)
			require.True(t, trouble.Retryable)
			require.Contains(t, trouble.Hint, "--spool-")
			require.Contains(t, trouble.Hint, "each transaction by itself must fit")

			engine := newEngine(t, nil)
			require.True(t, engine.calmDown(trouble))
			require.True(t, engine.calm.on)
			require.False(t, engine.calmDown(trouble), "it did not help")
			off := newEngine(t, func(o *Options) { o.Streaming = "off" })
			require.True(t, off.calmDown(trouble), "two that are committed may have filled it")
		})
	}
	broken, ok := errors.AsType[*Error](streamError(&fs.PathError{Op: "write", Path: "/s", Err: syscall.EIO}))
	require.True(t, ok)
	require.True(t, broken.Retryable)
	require.Contains(t, broken.Hint, "--spool-dir")
	require.False(t, newEngine(t, nil).calmDown(broken))
}

// A directory that cannot be used ends a start, and is waited for later. One whose disk
// is full has not been filled by the stream.
func TestUnusableSpool(t *testing.T) {
	engine := newEngine(t, func(o *Options) { o.SpoolDir = filepath.Join("/dev/null", "spool") })
	a := &attempt{engine: engine, options: &engine.options, log: engine.log}
	err := a.openSpool(t.Context())
	a.closeSpool()
	trouble, ok := errors.AsType[*Error](err)
	require.True(t, ok)
	require.Equal(t, Refused, trouble.Class)
	require.Contains(t, trouble.Hint, "--spool-dir")
	require.False(t, engine.retries(trouble))
	engine.streamed = true
	require.True(t, engine.retries(trouble))

	full := &Error{Class: Refused, Err: fullErrors()["disk"], Retryable: true}
	require.False(t, engine.calmDown(full))
}

func newEngine(t *testing.T, change func(*Options)) *Engine {
	t.Helper()
	options := DefaultOptions()
	options.Source, options.Target, options.Publications = "dbname=a", "dbname=b", []string{"p"}
	if change != nil {
		change(&options)
	}
	engine, err := New(options)
	require.NoError(t, err)
	return engine
}
