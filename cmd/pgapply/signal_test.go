package main

import (
	"context"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFirstSignalStopsAndSecondExits(t *testing.T) {
	exited := make(chan int, 1)
	ctx := untilSignal(t.Context(), func(code int) { exited <- code })
	self, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)

	require.NoError(t, self.Signal(syscall.SIGTERM))
	<-ctx.Done()
	require.ErrorContains(t, context.Cause(ctx), "terminated")
	require.NoError(t, self.Signal(syscall.SIGINT))
	require.Equal(t, 130, <-exited)
}
