package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// signalEcho is far below what a person takes to ask twice.
const signalEcho = 200 * time.Millisecond

// interruption is the cause of a context that a signal has ended.
type interruption struct{ signal os.Signal }

func (i interruption) Error() string { return fmt.Sprintf("interrupted by signal %q", i.signal) }

// untilSignal returns a context that the first SIGINT or SIGTERM ends: the command
// then stops in order. The second one exits at once, with 128 and its number as a
// shell expects. The goroutine lives as long as the process.
//
// A signal that follows within echo is the same wish once more: timeout(1) and
// others send it to the process and to its group.
func untilSignal(parent context.Context, exit func(int), echo time.Duration) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	received := make(chan os.Signal, 2)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		cancel(interruption{<-received})
		first := time.Now()
		second := <-received
		for time.Since(first) < echo {
			second = <-received
		}
		number, _ := second.(syscall.Signal)
		exit(128 + int(number))
	}()
	return ctx
}
