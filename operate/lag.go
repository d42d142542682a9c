package operate

import (
	"fmt"
	"time"

	"pgapply/apply/state"
)

// Lag is how far the target is behind. While a runner streams it is the one that knows:
// what it has received and not applied. What it said last means nothing once it does
// not; then the slot tells, where the publisher was asked. The JSON names are stable.
type Lag struct {
	// Known is false where nobody could tell.
	Known bool `json:"known"`
	// Streaming: Bytes were received and are not applied. Otherwise they are the WAL
	// between the publisher's end and what is applied, published or not.
	Streaming bool  `json:"streaming"`
	Bytes     int64 `json:"bytes"`
	// Seconds is how old the oldest transaction of those is that has committed, when the
	// runner said so; 0 where none has, or where it does not stream.
	Seconds float64 `json:"seconds"`
}

// measureLag sets Lag from what is known by now.
func (r *Report) measureLag() {
	r.Lag = Lag{}
	switch publisher := r.Publisher; {
	case r.Runner.Alive && r.Status != nil && r.Status.Phase == state.Streaming:
		r.Lag = Lag{Known: true, Streaming: true, Bytes: r.Status.LagBytes, Seconds: r.Status.LagSeconds}
	case publisher != nil && publisher.Reachable && publisher.Slot != nil && publisher.Slot.Lost == "":
		applied := max(publisher.Slot.ConfirmedFlush, r.Slot.Acknowledged)
		if r.Status != nil {
			applied = max(applied, r.Status.Applied)
		}
		r.Lag = Lag{Known: true, Bytes: behind(applied, publisher.Current)}
	}
}

// lagText says it; age is that of the runner's last word.
func (r *Report) lagText(age time.Duration) string {
	l := r.Lag
	switch {
	case !l.Known:
		return "unknown: no runner streams, and the publisher did not tell (--source)"
	case l.Bytes == 0:
		return "none"
	case l.Streaming && r.Status.OldestCommitTime == nil:
		return size(l.Bytes) + " received, of which nothing has committed yet"
	case l.Streaming:
		return fmt.Sprintf("%s not applied, the oldest commit in it is %s old", size(l.Bytes), duration(time.Duration(l.Seconds*float64(time.Second))+age))
	}
	return fmt.Sprintf("the publisher is %s of WAL ahead, and no runner streams", size(l.Bytes))
}
