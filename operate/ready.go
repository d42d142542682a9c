package operate

import (
	"fmt"
	"time"

	"pgapply/apply/state"
)

// WhyNotReady says why the target does not show what the publisher has: no reason where a
// runner streams, every table takes part, and the lag is not above the limit; a limit of
// 0 is none. Without details nothing is said that could come from the data.
func (r *Report) WhyNotReady(limit time.Duration, details bool) []string {
	var reasons []string
	because := func(format string, arguments ...any) {
		reasons = append(reasons, fmt.Sprintf(format, arguments...))
	}
	status := r.Status
	switch {
	case !r.Runner.Alive:
		return []string{"no runner lives"}
	case status == nil:
		return []string{"the runner is starting"}
	case status.Phase == state.Streaming:
	case status.Phase == state.Waiting && details && status.WaitingFor != "":
		because("waiting: %s", status.WaitingFor)
	case status.Phase == state.Retrying && details && r.LastError != "":
		because("retrying after an error: %s", r.LastError)
	default:
		because("%s", status.Phase)
	}
	all := 0
	for _, count := range r.Tables {
		all += count
	}
	if ready := r.Tables[string(rune(state.TableReady))]; ready < all {
		because("%d of %d tables are ready", ready, all)
	}
	lag := time.Duration(status.LagSeconds * float64(time.Second))
	if limit > 0 && status.Phase == state.Streaming && lag > limit {
		because("%s behind, more than --ready-lag %s", lag.Round(time.Second), limit)
	}
	return reasons
}
