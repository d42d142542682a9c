package operate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply/state"
)

func TestWhyNotReady(t *testing.T) {
	alive := func(phase state.Phase, change func(*Report)) *Report {
		r := newReport("orders", state.Target{}, observation{holder: &state.Holder{PID: 1}, runner: &state.Runner{PID: 2, Status: &state.Status{Phase: phase}}})
		if change != nil {
			change(r)
		}
		return r
	}
	for name, test := range map[string]struct {
		report  *Report
		details bool
		want    []string
	}{
		"ready":               {alive(state.Streaming, nil), true, nil},
		"dead":                {newReport("orders", state.Target{}, observation{}), true, []string{"no runner lives"}},
		"begins":              {newReport("orders", state.Target{}, observation{holder: &state.Holder{PID: 1}}), true, []string{"the runner is starting"}},
		"paused":              {alive(state.Paused, nil), true, []string{"paused"}},
		"retrying":            {alive(state.Retrying, func(r *Report) { r.LastError = "no room" }), true, []string{"retrying after an error: no room"}},
		"retrying, said less": {alive(state.Retrying, func(r *Report) { r.LastError = "no room" }), false, []string{"retrying"}},
		"waiting":             {alive(state.Waiting, func(r *Report) { r.Status.WaitingFor = "a slot" }), true, []string{"waiting: a slot"}},
		"copying":             {alive(state.Streaming, func(r *Report) { r.Tables = map[string]int{"r": 2, "d": 1} }), true, []string{"2 of 3 tables are ready"}},
		"at the limit":        {alive(state.Streaming, func(r *Report) { r.Status.LagSeconds = 60 }), true, nil},
		"behind":              {alive(state.Streaming, func(r *Report) { r.Status.LagSeconds = 61 }), true, []string{"1m1s behind, more than --ready-lag 1m0s"}},
	} {
		require.Equal(t, test.want, test.report.WhyNotReady(time.Minute, test.details), name)
	}
	behind := alive(state.Streaming, func(r *Report) { r.Status.LagSeconds = 1e6 })
	require.Empty(t, behind.WhyNotReady(0, true), "any lag")
	both := &Overview{Subscriptions: []*Report{alive(state.Streaming, nil), alive(state.Paused, nil)}}
	require.Equal(t, []string{"orders: paused"}, both.WhyNotReady(time.Minute))
	require.Equal(t, []string{"the target knows no subscription"}, (&Overview{}).WhyNotReady(time.Minute))
}

func TestOverviewAsText(t *testing.T) {
	other := newReport("other_one", state.Target{}, observation{subscription: &state.Subscription{Enabled: true, AckLSN: 0x1000}})
	golden(t, "overview.txt", (&Overview{Subscriptions: []*Report{exampleReport(), other}}).Text())
}

func TestOverviewOfATarget(t *testing.T) {
	b := sharedBed(t)
	overview, err := ReadOverview(t.Context(), b.ends)
	require.NoError(t, err)
	require.Equal(t, "the target knows no subscription\n", overview.Text())
	b.complete()
	other := b.subscription()
	other.SlotName = "another_slot"
	require.NoError(t, b.store("another").AdoptSlot(t.Context(), other, 1))
	ends := b.ends
	ends.Name, ends.Source = "of no matter", ""
	overview, err = ReadOverview(t.Context(), ends)
	require.NoError(t, err)
	require.Len(t, overview.Subscriptions, 2)
	require.Equal(t, "another", overview.Subscriptions[0].Subscription)
	require.Equal(t, "orders", overview.Subscriptions[1].Subscription)
	require.Equal(t, map[string]int{"r": 1}, overview.Subscriptions[1].Tables)
}

func TestWatchGoesOnAfterAnError(t *testing.T) {
	broken := errors.New("broken")
	answers := []error{nil, broken, nil}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	read := func(context.Context) (int, error) {
		err := answers[0]
		answers = answers[1:]
		return len(answers), err
	}
	var seen []error
	require.NoError(t, Watch(ctx, time.Millisecond, read, func(left int, err error) {
		seen = append(seen, err)
		if left == 0 {
			stop()
		}
	}))
	require.Equal(t, []error{nil, broken, nil}, seen)
	require.ErrorIs(t, Watch(t.Context(), time.Hour, func(context.Context) (int, error) { return 0, broken }, nil), broken, "at first it is the answer")
}
