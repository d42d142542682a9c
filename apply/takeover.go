package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/state"
)

// One process runs a subscription, others wait to take over from it. Most deaths end its
// sessions, and with them the lock. A process that is frozen, or cut off from the target
// without a word, keeps both: it is known by its heartbeat, which stops.

// watchTime is for how long a runner must be seen to be silent. One that has just taken
// the lock writes its heartbeat sooner.
const watchTime = 5 * time.Second

// errWaited ends an attempt that has become the runner after a wait: what it has seen of
// both ends before may be old.
var errWaited = errors.New("the earlier runner is gone")

// lock makes this process the subscription's only runner.
func (a *attempt) lock(ctx context.Context) error {
	if a.control.locked {
		return nil
	}
	if err := a.control.open(a.found); err != nil {
		return err
	}
	var seen *sighting
	err := a.wait(ctx, func() (string, error) {
		holder, err := a.control.store.TryLock(ctx)
		if err != nil || holder == nil {
			return "", err
		}
		if seen == nil {
			seen = &sighting{}
			_ = a.publisher.Close() // it is asked anew afterwards
			a.publisher = nil
		}
		a.displace(ctx, seen, holder)
		return fmt.Sprintf("subscription %q is run by another process: %s on the target", a.options.Name, holder), nil
	})
	if err != nil {
		return TargetError(err)
	}
	if err := a.control.reign(); err != nil {
		return err
	}
	if seen != nil {
		return errWaited
	}
	return nil
}

// sighting is what was last seen of the runner that is waited for, and since when.
type sighting struct {
	holder    int
	heartbeat time.Time
	since     time.Time
	ended     bool
}

// displace ends the sessions of a runner that gives no sign of life.
func (a *attempt) displace(ctx context.Context, seen *sighting, holder *state.Holder) {
	runner, err := a.control.store.Runner(ctx)
	if err != nil || runner == nil {
		return // whoever holds the lock is about to begin, or to end
	}
	if seen.holder != holder.PID || !seen.heartbeat.Equal(runner.Heartbeat) {
		*seen = sighting{holder: holder.PID, heartbeat: runner.Heartbeat, since: time.Now()}
	}
	if seen.ended || runner.HeartbeatAge < state.Silence || time.Since(seen.since) < watchTime {
		return
	}
	ended, err := a.control.store.EndHolder(ctx, holder.PID)
	switch {
	case err != nil:
		seen.ended = true // it will not work another time
		a.log.Warn("end the session of a runner that gives no sign of life: it is waited for", zap.Error(err))
	case ended:
		seen.ended, a.engine.displaced = true, true
		a.log.Warn("the runner gives no sign of life: its sessions are terminated", zap.Stringer("session", holder),
			zap.String("host", runner.Host), zap.Int("pid", runner.PID), zap.Duration("silent_for", runner.HeartbeatAge.Round(time.Second)))
	}
}

// endReceiver ends the session in which a runner that was displaced still receives: its
// socket is alive as long as its machine is, and the publisher waits for wal_sender_timeout.
func (a *attempt) endReceiver(ctx context.Context) error {
	if !a.engine.displaced {
		return nil
	}
	return a.publisher.EndHolder(ctx, a.options.SlotName(), a.options.Name)
}
