package main

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFirstSignalStopsAndSecondExits(t *testing.T) {
	exited := make(chan int, 1)
	ctx := untilSignal(t.Context(), func(code int) { exited <- code }, 0)
	self, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)

	require.NoError(t, self.Signal(syscall.SIGTERM))
	<-ctx.Done()
	require.ErrorContains(t, context.Cause(ctx), "terminated")
	require.NoError(t, self.Signal(syscall.SIGINT))
	require.Equal(t, 130, <-exited)
}

// TestSignalEcho: one wish that arrives twice does not count as two.
func TestSignalEcho(t *testing.T) {
	exited := make(chan int, 1)
	began := time.Now()
	const echo = 300 * time.Millisecond
	ctx := untilSignal(t.Context(), func(code int) { exited <- code }, echo)
	self, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	require.NoError(t, self.Signal(syscall.SIGTERM))
	<-ctx.Done()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-exited:
			require.GreaterOrEqual(t, time.Since(began), echo)
			return
		case <-again.C:
			require.NoError(t, self.Signal(syscall.SIGTERM))
		}
	}
}
