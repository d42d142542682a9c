// Package demo shows pgapply at work on a machine that has nothing prepared: two
// servers of its own, a busy bank in one of them, replication to the other, and a
// comparison of every row in the end.
//
//	tellers ──► publisher ──► apply.Engine ──► target
//	                └────────── compare ──────────┘
//
// It is a user of the engine like any other, and knows nothing of flags.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"pgapply/apply"
)

// Options say how to run the demo.
type Options struct {
	// Duration is how long the tellers work.
	Duration time.Duration
	// Keep leaves servers and replication running until the context ends.
	Keep bool
	// Out receives what a person should see; Terminal says that it can rewrite a line.
	Out      io.Writer
	Terminal bool
	// Log receives what the engine has to say, Version is what its status calls it.
	Log     *zap.Logger
	Version string
}

// DifferenceError says that the two sides do not hold the same rows.
type DifferenceError struct{ Tables []string }

func (e *DifferenceError) Error() string {
	return fmt.Sprintf("publisher and target differ in %q", e.Tables)
}

// Run runs the demo. It returns a *DifferenceError when the two sides do not hold
// the same rows, and nil when they do. Whatever it started is gone when it returns.
func Run(ctx context.Context, options Options) (err error) {
	out := &screen{out: options.Out, terminal: options.Terminal}
	bank, err := openBank(ctx, out.say)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bank.close()) }()
	engine, err := apply.New(bank.replication(options, out.say))
	if err != nil {
		return err
	}

	tasks, ctx := errgroup.WithContext(ctx)
	engineCtx, stopEngine := context.WithCancel(ctx)
	tasks.Go(func() error {
		err := engine.Run(engineCtx)
		if err == nil && engineCtx.Err() == nil {
			err = errors.New("the engine ended by itself")
		}
		return err
	})
	tasks.Go(func() error {
		defer stopEngine()
		s := &show{options: options, out: out, bank: bank, engine: engine}
		return s.run(ctx)
	})
	return tasks.Wait()
}
