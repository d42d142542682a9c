package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// interruption is the cause of a context that a signal has ended.
type interruption struct{ signal os.Signal }

func (i interruption) Error() string { return fmt.Sprintf("interrupted by signal %q", i.signal) }

// untilSignal returns a context that the first SIGINT or SIGTERM ends: the command
// then stops in order. The second one exits at once, with 128 and its number as a
// shell expects. The goroutine lives as long as the process.
func untilSignal(parent context.Context, exit func(int)) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	received := make(chan os.Signal, 2)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		cancel(interruption{<-received})
		second := <-received
		number, _ := second.(syscall.Signal)
		exit(128 + int(number))
	}()
	return ctx
}
