package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/state"
)

// orphanGrace is how long a session of an earlier runner may take to end by itself.
const orphanGrace = 10 * time.Second

// fence proves that no session of an earlier runner, or of an earlier attempt, writes
// any more: its client may be gone while the server has not noticed yet. We hold the
// runner's lock, so such a session is nobody's; what it has committed by the end of it
// counts, and nothing of it can come later.
func (a *attempt) fence(ctx context.Context) (err error) {
	store := a.control.store
	if a.epoch, err = store.RaiseEpoch(ctx); errors.Is(err, state.ErrNoSubscription) {
		a.epoch, err = 0, nil // there was no runner yet
	}
	if err != nil {
		return TargetError(err)
	}
	started, ended, grace := time.Now(), false, orphanGrace
	if a.engine.displaced {
		grace = 0
	}
	err = a.wait(ctx, func() (string, error) {
		writers, err := store.TryFence(ctx)
		if err != nil || len(writers) == 0 {
			return "", err
		}
		if !ended && time.Since(started) >= grace {
			ended = true
			a.log.Warn("a session of an earlier runner does not end: it is terminated", zap.Stringer("session", writers[0]))
			if err := store.EndWriters(ctx); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("a session of an earlier runner of subscription %q lives on the target: %s", a.options.Name, writers[0]), nil
	})
	return targetErrorOrNil(err)
}
