package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/internal/notify"
	"pgapply/operate/monitor"
)

// runner is an *apply.Engine.
type runner interface {
	Run(ctx context.Context) error
	Status() state.Status
	Pulse() time.Time
}

// runAsService runs an engine, and tells the service manager that has started us, if one
// has, what it does.
func runAsService(ctx context.Context, log *zap.Logger, engine runner) error {
	manager, err := notify.New(os.Getenv)
	if err != nil {
		log.Warn("the service manager is told nothing", zap.Error(err))
	}
	if manager == nil {
		return engine.Run(ctx)
	}
	defer manager.Close()
	pause := tellPause
	if watchdog := manager.Watchdog(); watchdog > 0 {
		pause = min(pause, watchdog/2)
	}
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	teller := teller{manager: manager, engine: engine}
	until, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var task sync.WaitGroup
	defer task.Wait()
	defer cancel()
	task.Go(func() {
		if err := teller.run(until, ctx.Done(), ticker.C); err != nil {
			log.Warn("the service manager is told no more", zap.Error(err))
		}
	})
	return engine.Run(ctx)
}

// tellPause is how often the service manager hears of us.
const tellPause = time.Second

// teller tells a service manager how the engine is doing.
type teller struct {
	manager *notify.Manager
	engine  runner
	ready   bool
	said    string
}

// run tells it at each tick, until ctx ends.
func (t *teller) run(ctx context.Context, stopping <-chan struct{}, tick <-chan time.Time) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-stopping:
			stopping = nil
			if err := t.manager.Send(notify.Stopping, notify.Status("stopping: what is being applied has 8 s to finish")); err != nil {
				return err
			}
		case <-tick:
			if messages := t.news(stopping == nil); len(messages) > 0 {
				if err := t.manager.Send(messages...); err != nil {
					return err
				}
			}
		}
	}
}

// news are the messages of one tick. The start is over when the engine has got beyond
// what would have made it exit: then it copies, streams, waits or tries again by itself,
// which may all take long.
func (t *teller) news(stopping bool) (messages []string) {
	status := t.engine.Status()
	if !t.ready && status.Phase != state.Starting && status.Phase != state.Stopped {
		t.ready = true
		messages = append(messages, notify.Ready)
	}
	if text := inOneLine(&status); text != t.said && !stopping {
		t.said = text
		messages = append(messages, notify.Status(text))
	}
	if t.manager.Watchdog() > 0 && monitor.Stuck(t.engine.Pulse()) == nil {
		messages = append(messages, notify.Watchdog)
	}
	return messages
}

// inOneLine is for `systemctl status`.
func inOneLine(s *state.Status) string {
	if since := s.TargetSilentSince; since != nil {
		return fmt.Sprintf("the target has not answered for %s", s.UpdatedAt.Sub(*since).Round(time.Second))
	}
	switch s.Phase {
	case state.Streaming:
		if s.LagBytes == 0 {
			return "streaming, nothing left to apply"
		}
		return fmt.Sprintf("streaming, %.1f MiB to apply, the oldest commit in it %.1f s old", float64(s.LagBytes)/(1<<20), s.LagSeconds)
	case state.Copying:
		if c := s.Copy; c != nil {
			return fmt.Sprintf("copying: %d of %d tables done, about %.0f %% of the rows", c.Done, c.Tables, 100*c.Share)
		}
	case state.Waiting:
		if s.WaitingFor != "" {
			return "waiting: " + s.WaitingFor
		}
	case state.Retrying:
		return "retrying after: " + s.LastError
	case state.Starting, state.Paused, state.Stopped:
	}
	return string(s.Phase)
}
