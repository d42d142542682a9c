package apply

import (
	"context"
	"sync"
)

// A start asks both servers many things, and each answer takes a round trip. What does not
// wait for one another is asked at a time.

// step is a part of a start.
type step func(ctx context.Context) error

// inTurn makes one step of several, up to the first that fails.
func inTurn(steps ...step) step {
	return func(ctx context.Context) error {
		for _, step := range steps {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// together makes one step of several that run side by side. What comes of it is what would
// have come of them in turn: one that fails ends those behind it in the list, and not those
// before it, of which each may have a reason of its own. No step may keep its context.
func together(steps ...step) step {
	return func(ctx context.Context) error {
		errs := make([]error, len(steps))
		var running sync.WaitGroup
		for i, step := range steps {
			behind, stop := context.WithCancel(ctx)
			defer stop()
			mine := ctx
			running.Go(func() {
				if errs[i] = step(mine); errs[i] != nil {
					stop()
				}
			})
			ctx = behind
		}
		running.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	}
}
