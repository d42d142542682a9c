package apply

import (
	"errors"
	"fmt"
	"math"

	"pgapply/apply/state"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
)

// A promotion, and a restore to a point in time, begin a new timeline: from there on the
// log has other contents at the same positions. The subscription knows the line that it
// followed, and the publisher the one that it is on:
//
//	followed   1 ────────┬─ 2 ─────────────►
//	publisher  1 ────────┴────────┬─ 3 ────►    both have the log up to the end of 1
//
// Up to the fork a position means the same on both. What was applied from beyond it, the
// publisher does not have.

// endless is the fork of two lines where there is none.
const endless = lsn.LSN(math.MaxUint64)

// errOldTimeline says that the server is where the subscription was before it followed a
// promotion: it is not the publisher any more.
var errOldTimeline = errors.New("the server is on a timeline that the subscription has left behind")

// fork returns up to where the publisher's log is the one that was followed.
func fork(followed state.Source, now source.Identity) (lsn.LSN, error) {
	history, err := source.ParseHistory(followed.History)
	if err != nil {
		return 0, err
	}
	was := line(followed.Timeline, history)
	is := line(now.Timeline, now.History)
	// One whose history is not known begins with the timeline that it is on.
	was, is = from(was, is[0].Timeline), from(is, was[0].Timeline)
	if len(was) == 0 || len(is) == 0 {
		return 0, fmt.Errorf("whether timeline %d comes from timeline %d, which was followed, cannot be told", now.Timeline, followed.Timeline)
	}
	var shared lsn.LSN
	for i := range min(len(was), len(is)) {
		if was[i].Timeline != is[i].Timeline {
			break
		}
		shared = min(was[i].At, is[i].At)
		if is[i].At == endless && was[i].At != endless {
			return shared, errOldTimeline
		}
		if was[i].At != is[i].At {
			break
		}
	}
	return shared, nil
}

// line is a history with the timeline that has not ended.
func line(timeline int32, history source.History) source.History {
	return append(history[:len(history):len(history)], source.Ended{Timeline: timeline, At: endless})
}

// from is a line from a timeline on, nothing where that is not part of it. On the first
// timeline all lines are one.
func from(line source.History, timeline int32) source.History {
	for i := range line {
		if line[i].Timeline == timeline {
			return line[i:]
		}
	}
	if timeline == 1 {
		return line
	}
	return nil
}
