package operate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/pgtest"
)

// live is a subscription with a runner in some phase.
func (b *bed) live(phase state.Phase) *state.Store {
	b.t.Helper()
	store := b.complete()
	_, err := store.TryLock(b.t.Context())
	require.NoError(b.t, err)
	b.report(store, phase)
	return store
}

func (b *bed) report(store *state.Store, phase state.Phase) {
	b.t.Helper()
	require.NoError(b.t, store.WriteStatus(b.t.Context(), &state.Status{Subscription: "orders", Phase: phase, LastError: "the last error", LastErrorHint: "mend it"}))
}

func TestPauseAndResumeWithoutARunner(t *testing.T) {
	b := sharedBed(t)
	b.complete()
	b.ends.Source = "" // the publisher has no say in it
	s, err := Resume(t.Context(), b.ends, nil)
	require.NoError(t, err)
	require.Equal(t, "subscription \"orders\" was not paused\nno runner lives: start one with `pgapply run --name orders`\n", s.Text())

	s, err = Pause(t.Context(), b.ends, "maintenance")
	require.NoError(t, err)
	require.True(t, s.Changed)
	require.Equal(t, "paused subscription \"orders\"\nno runner lives; one that is started waits until `pgapply resume --name orders`\n", s.Text())
	require.Equal(t, "f|maintenance", pgtest.Query(t, b.target, `select enabled, pause_reason from pgapply.subscription`))

	s, err = Pause(t.Context(), b.ends, "")
	require.NoError(t, err)
	require.False(t, s.Changed)
	require.Regexp(t, `^subscription "orders" was paused since 20.*Z: maintenance\n`, s.Text())

	s, err = Resume(t.Context(), b.ends, nil)
	require.NoError(t, err)
	require.Equal(t, "resumed subscription \"orders\"\nno runner lives: start one with `pgapply run --name orders`\n", s.Text())
	require.Equal(t, "t", pgtest.Query(t, b.target, `select enabled from pgapply.subscription`))
}

// The runner follows while the command waits.
func TestPauseAndResumeWaitForTheRunner(t *testing.T) {
	b := sharedBed(t)
	store := b.live(state.Streaming)
	listener, _ := b.control("orders")
	_, err := listener.Exec(t.Context(), `LISTEN `+state.Channel)
	require.NoError(t, err)
	follow := func(phase state.Phase) chan error {
		done := make(chan error, 1)
		go func() {
			if _, err := listener.WaitForNotification(t.Context()); err != nil {
				done <- err
				return
			}
			done <- store.WriteStatus(t.Context(), &state.Status{Phase: phase})
		}()
		return done
	}

	done := follow(state.Paused)
	s, err := Pause(t.Context(), b.ends, "")
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.True(t, s.Followed)
	require.Equal(t, "paused subscription \"orders\"\nthe runner, process 4242 on here, applies nothing any more\n", s.Text())

	done = follow(state.Streaming)
	s, err = Resume(t.Context(), b.ends, nil)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.True(t, s.Followed)
	require.Equal(t, "resumed subscription \"orders\"\nthe runner, process 4242 on here, streams\n", s.Text())
}

// The error is met again: the runner streams for a moment, and pauses.
func TestResumeIsInVain(t *testing.T) {
	b := sharedBed(t)
	runner := b.live(state.Paused)
	_, err := runner.Pause(t.Context(), "an apply error")
	require.NoError(t, err)
	s, err := throw(t.Context(), b.ends, state.Streaming, time.Minute, func(store *state.Store) (bool, error) {
		changed, err := store.Resume(t.Context())
		require.NoError(t, err)
		b.report(runner, state.Streaming)
		_, err = store.Pause(t.Context(), "an apply error")
		return changed, err
	})
	require.NoError(t, err)
	require.True(t, s.Changed)
	requireClass(t, s.Err(), apply.Conflict, `resumed subscription "orders", but it paused again: the last error`, "mend it")

	s, err = throw(t.Context(), b.ends, state.Streaming, 10*time.Millisecond, func(store *state.Store) (bool, error) {
		return store.Resume(t.Context())
	})
	require.NoError(t, err)
	require.NoError(t, s.Err())
	require.Contains(t, s.Text(), "streams, and nothing shows yet that the last error is gone: the last error\n")
}

func TestRunnerThatDoesNotFollow(t *testing.T) {
	b := sharedBed(t)
	store := b.live(state.Retrying)
	soon := func() string {
		s, err := throw(t.Context(), b.ends, state.Streaming, 10*time.Millisecond, func(*state.Store) (bool, error) { return false, nil })
		require.NoError(t, err)
		require.False(t, s.Followed)
		return s.Text()
	}
	require.Contains(t, soon(), "\nthe runner, process 4242 on here, is still retrying: the last error: see `pgapply status --name orders`\n")

	require.NoError(t, store.EndRunner(t.Context()))
	require.Contains(t, soon(), "\na runner is starting: see `pgapply status --name orders`\n")

	b.startRunner(store)
	pgtest.Exec(t, b.target, `update pgapply.runner set heartbeat = now() - interval '1 hour'`)
	require.Contains(t, soon(), "\nthe runner, process 4242 on here, gave no sign of life for 1h0m: see `pgapply status --name orders`\n")
}

// Whoever is interrupted while the runner is still at work learns what is told already.
func TestInterruptedSwitch(t *testing.T) {
	b := sharedBed(t)
	b.live(state.Streaming)
	signal := errors.New("interrupted by a signal")
	ctx, interrupt := context.WithCancelCause(t.Context())
	_, err := throw(ctx, b.ends, state.Paused, time.Minute, func(store *state.Store) (bool, error) {
		defer interrupt(signal)
		return store.Pause(ctx, "")
	})
	requireClass(t, err, apply.Other, `subscription "orders" is paused, and the runner was not seen to follow yet: interrupted by a signal`, "pgapply status")
	require.Equal(t, "f", pgtest.Query(t, b.target, `select enabled from pgapply.subscription`))

	ctx, interrupt = context.WithCancelCause(t.Context())
	_, err = throw(ctx, b.ends, state.Streaming, time.Minute, func(store *state.Store) (bool, error) {
		interrupt(signal)
		return store.Resume(ctx)
	})
	requireClass(t, err, apply.Other, `whether subscription "orders" is resumed is not known: interrupted by a signal`, "pgapply status")
}

// A target that goes away meanwhile has been told all the same.
func TestTargetLostWhileTheRunnerFollows(t *testing.T) {
	b := sharedBed(t)
	b.live(state.Streaming)
	_, err := throw(t.Context(), b.ends, state.Paused, time.Minute, func(store *state.Store) (bool, error) {
		changed, err := store.Pause(t.Context(), "")
		pgtest.Exec(t, b.target, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`)
		return changed, err
	})
	requireClass(t, err, apply.Target, `subscription "orders" is paused, and the runner was not seen to follow yet: `)
}

func TestSwitchesOfTheUnknown(t *testing.T) {
	b := sharedBed(t)
	_, err := Resume(t.Context(), b.ends, nil)
	requireClass(t, err, apply.Refused, `knows no subscription "orders"`, "pgapply run")
	require.NoError(t, b.store("other").AdoptSlot(t.Context(), b.subscription(), 1))
	_, err = Pause(t.Context(), b.ends, "")
	requireClass(t, err, apply.Refused, `knows no subscription "orders", only "other"`, "--name")
}

// To go on after a cutover undoes it.
func TestResumeAfterACutoverAsks(t *testing.T) {
	b := sharedBed(t)
	store := b.complete()
	b.ends.Source = ""
	_, err := store.Pause(t.Context(), "cut over at 0/10 of the publisher")
	require.NoError(t, err)
	report, err := ReadStatus(t.Context(), b.ends)
	require.NoError(t, err)
	require.Regexp(t, `the subscription is cut over at 0/10 of the publisher, 20\S+: the new server is the one that writes`, report.Text())
	require.NotContains(t, report.Text(), "pgapply resume")

	_, err = Resume(t.Context(), b.ends, nil)
	requireClass(t, err, apply.Refused, "cut over at 0/10 of the publisher", "not confirmed", "--yes")
	require.Equal(t, "f", pgtest.Query(t, b.target, `select enabled from pgapply.subscription`))
	_, err = Resume(t.Context(), b.ends, func(q Question) bool {
		require.Contains(t, q.Text, "over what was written on the target")
		return q.Word == "orders"
	})
	require.NoError(t, err)
	require.Equal(t, "t", pgtest.Query(t, b.target, `select enabled from pgapply.subscription`))
}
