package operate

import (
	"context"
	"errors"
	"time"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/plain"
)

// Overview is what there is to know about all subscriptions of a target. The JSON names
// are stable.
type Overview struct {
	Subscriptions []*Report `json:"subscriptions"`
}

// ReadOverview is ReadStatus for every subscription that the target's database knows. The
// publishers, which may be several, are not asked.
func ReadOverview(ctx context.Context, ends Endpoints) (*Overview, error) {
	target, err := ends.openTarget(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	overview := &Overview{Subscriptions: []*Report{}}
	store, err := state.OpenExisting(ctx, target.conn, ends.Name)
	if errors.Is(err, state.ErrNoSchema) {
		return overview, nil
	}
	if err != nil {
		return nil, apply.TargetError(err)
	}
	names, err := store.Names(ctx)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	for _, name := range names {
		store, err := state.OpenExisting(ctx, target.conn, name)
		if err != nil {
			return nil, apply.TargetError(err)
		}
		seen, err := observe(ctx, target, store)
		if err != nil {
			return nil, apply.TargetError(err)
		}
		overview.Subscriptions = append(overview.Subscriptions, newReport(name, target.server, seen))
	}
	return overview, nil
}

// WhyNotReady are the reasons of all subscriptions, each with its name.
func (o *Overview) WhyNotReady(limit time.Duration) []string {
	var reasons []string
	for _, report := range o.Subscriptions {
		for _, reason := range report.WhyNotReady(limit, true) {
			reasons = append(reasons, report.Subscription+": "+reason)
		}
	}
	if len(o.Subscriptions) == 0 {
		return []string{"the target knows no subscription"}
	}
	return reasons
}

// Text is a line for each subscription, and then what needs attention.
func (o *Overview) Text() string {
	if len(o.Subscriptions) == 0 {
		return "the target knows no subscription\n"
	}
	rows := [][]string{{"subscription", "runner", "applied", "lag", "as of", "tables", "conflicts"}}
	var attention [][]string
	for _, r := range o.Subscriptions {
		applied := r.Slot.Acknowledged
		if r.Status != nil {
			applied = max(applied, r.Status.Applied)
		}
		rows = append(rows, []string{r.Subscription, r.phase(), applied.String(), r.shortLag(), r.asOf(), tablesLine(r.Tables), count(r.Conflicts.Total)})
		for _, problem := range r.Problems {
			attention = append(attention, []string{"attention", r.Subscription + ":", plain.Line(problem)})
		}
	}
	text := columns(rows, "llllllr")
	if len(attention) > 0 {
		text += "\n" + columns(attention, "lll")
	}
	return text
}

// phase is what the runner does, in a word.
func (r *Report) phase() string {
	switch {
	case r.Runner.Lock == "":
		return "none"
	case !r.Runner.Alive:
		return "silent"
	case r.Status == nil:
		return string(state.Starting)
	}
	return string(r.Status.Phase)
}

func (r *Report) shortLag() string {
	switch {
	case !r.Lag.Known:
		return "unknown"
	case r.Lag.Bytes == 0:
		return "none"
	}
	return size(r.Lag.Bytes) + ", " + seconds(r.Lag.Seconds)
}

// asOf is how old what the runner knows is; empty where no runner has told anything.
func (r *Report) asOf() string {
	if r.Status == nil {
		return ""
	}
	return seconds(r.Runner.HeartbeatAge) + " ago"
}

// Watch calls draw with what read returns, at once and then every interval, until ctx
// ends, which is no error. So is what read says later than at its first call: a server
// that restarts is what one wants to watch.
func Watch[T any](ctx context.Context, interval time.Duration, read func(context.Context) (T, error), draw func(T, error)) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for first := true; ; first = false {
		result, err := read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && first {
			return err
		}
		draw(result, err)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}
