package operate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

func TestWhatAWaitWaitsFor(t *testing.T) {
	holder := &state.Holder{PID: 99}
	runner := func(phase state.Phase, lastError string) *state.Runner {
		return &state.Runner{PID: 1, Host: "here", LastError: lastError, LastErrorHint: "mend it", Status: &state.Status{Phase: phase, Applied: 200}}
	}
	known := &state.Subscription{Enabled: true, AckLSN: 100}
	ready, copying := []state.Table{{State: state.TableReady}}, []state.Table{{State: state.TableReady}, {State: state.TableDataSync}}
	isReady, at := Goal{}, func(position lsn.LSN) Goal { return Goal{Position: position} }
	for name, test := range map[string]struct {
		goal     Goal
		seen     observation
		progress lsn.LSN
		class    apply.Class
		missing  string // empty where the goal is reached
	}{
		"ready":                      {isReady, observation{subscription: known, holder: holder, runner: runner(state.Streaming, ""), tables: ready}, 0, apply.Other, ""},
		"unknown":                    {isReady, observation{}, 0, apply.Refused, `the target knows no subscription "orders"; no runner lives`},
		"begins":                     {isReady, observation{holder: holder}, 0, apply.Other, "a runner is starting, and has recorded nothing yet"},
		"copying":                    {isReady, observation{subscription: known, holder: holder, runner: runner(state.Copying, ""), tables: copying}, 0, apply.Other, "tables are not ready: 1 copying, 1 ready"},
		"dead":                       {isReady, observation{subscription: known, runner: runner(state.Streaming, ""), tables: ready}, 0, apply.Refused, "no runner lives: process 1 on here ended without order"},
		"starting":                   {isReady, observation{subscription: known, holder: holder, runner: runner(state.Starting, ""), tables: ready}, 0, apply.Other, "the runner does not stream"},
		"with an error":              {isReady, observation{subscription: known, holder: holder, runner: runner(state.Streaming, "no room"), tables: ready}, 0, apply.Other, "nothing shows yet that the last error is gone; the runner tries again after an error: no room"},
		"applied, says the state":    {at(100), observation{subscription: known, tables: ready}, 0, apply.Other, ""},
		"applied, says the target":   {at(150), observation{subscription: known, tables: ready}, 150, apply.Other, ""},
		"applied, says the runner":   {at(200), observation{subscription: known, holder: holder, runner: runner(state.Retrying, "no room"), tables: ready}, 0, apply.Other, ""},
		"not applied":                {at(201), observation{subscription: known, holder: holder, runner: runner(state.Streaming, ""), tables: ready}, 0, apply.Other, "it is at 0/C8"},
		"not applied in every table": {at(100), observation{subscription: known, holder: holder, runner: runner(state.Streaming, ""), tables: copying}, 0, apply.Other, "tables are not ready"},
		"nobody applies":             {at(201), observation{subscription: known, tables: ready}, 0, apply.Refused, "it is at 0/64; no runner lives"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &waiter{goal: test.goal, begin: time.Now()}
			done, err := w.judge(newReport("orders", state.Target{}, test.seen), test.seen.subscription, test.progress)
			if test.missing == "" {
				require.NoError(t, err)
				require.Equal(t, state.Position(test.goal.Position), done.Position)
				return
			}
			require.ErrorIs(t, err, errNotYet)
			requireClass(t, err, test.class, test.missing)
		})
	}
}

// A wait that begins before anything is there sees what comes.
func TestWaitSeesWhatComes(t *testing.T) {
	b := sharedBed(t)
	ends := b.ends
	_, err := Wait(t.Context(), ends, Goal{}, time.Millisecond)
	require.Equal(t, apply.Refused, apply.ClassOf(err))
	require.ErrorContains(t, err, `subscription "orders" is not ready after 0.0s: database`)

	waits := func(goal Goal) func() (*Waiting, error) {
		type result struct {
			done *Waiting
			err  error
		}
		ended := make(chan result, 1)
		go func() {
			done, err := Wait(t.Context(), ends, goal, 0)
			ended <- result{done, err}
		}()
		return func() (*Waiting, error) { r := <-ended; return r.done, r.err }
	}
	awaitReady, awaitCurrent := waits(Goal{}), waits(Goal{Current: true})
	store := b.store("orders")
	_, err = store.TryLock(t.Context())
	require.NoError(t, err)
	b.startRunner(store)
	b.beginSlot(store)
	b.createSlot(store)
	require.NoError(t, store.SlotCreated(t.Context(), 1))
	b.registerTables(store)
	require.NoError(t, store.WriteStatus(t.Context(), &state.Status{Phase: state.Streaming}))
	done, err := awaitReady()
	require.NoError(t, err)
	require.Contains(t, done.Text(), `subscription "orders" is ready after`)

	position, err := lsn.Parse(pgtest.Query(t, b.source, `select pg_current_wal_insert_lsn()`))
	require.NoError(t, err)
	require.NoError(t, store.Acknowledge(t.Context(), position))
	done, err = awaitCurrent()
	require.NoError(t, err)
	require.LessOrEqual(t, done.Position, done.Applied)
	require.Contains(t, done.Text(), "is applied up to "+done.Position.String())
}

func TestWaitEndsWhereItIsInVain(t *testing.T) {
	b := sharedBed(t)
	b.complete()
	_, err := Wait(t.Context(), b.ends, Goal{Position: 1 << 62}, time.Millisecond)
	requireClass(t, err, apply.Refused, "is not applied up to 40000000/0 after", "no runner lives", "pgapply run")

	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped by the test")
	cancel(stop)
	_, err = Wait(ctx, b.ends, Goal{}, 0)
	require.ErrorIs(t, err, stop)

	ends := b.ends
	ends.Target = nowhere(t)
	_, err = Wait(t.Context(), ends, Goal{}, time.Millisecond)
	requireClass(t, err, apply.Target, "is not ready after")
	ends.Target = "host=h sslmode=maybe"
	_, err = Wait(t.Context(), ends, Goal{}, 0)
	requireClass(t, err, apply.Configuration, "cannot be used")
	ends = b.ends
	ends.Source = nowhere(t)
	_, err = Wait(t.Context(), ends, Goal{Current: true}, time.Millisecond)
	requireClass(t, err, apply.Source, "is not applied up to the publisher's position after")
}
