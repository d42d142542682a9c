package faultnet

import (
	"io"
	"time"
)

// tricklePause is how far apart the pieces of a trickle are.
const tricklePause = 20 * time.Millisecond

// trickle writes in small pieces, so many bytes a second, as long as a rate is set. A
// frame then arrives in parts, and a reader waits in the middle of it.
type trickle struct {
	to   io.Writer
	rate *setting        // bytes a second; zero is as fast as it goes
	done <-chan struct{} // the session has ended
}

func (t *trickle) Write(p []byte) (written int, err error) {
	for written < len(p) {
		piece := p[written:]
		rate := t.rate.get()
		if rate > 0 {
			piece = piece[:min(len(piece), max(1, int(rate*int64(tricklePause)/int64(time.Second))))]
		}
		n, err := t.to.Write(piece)
		written += n
		if err != nil {
			return written, err
		}
		if rate > 0 && !rests(tricklePause, t.done) {
			return written, errCut
		}
	}
	return written, nil
}

// rests waits, and reports false when done came first.
func rests(wait time.Duration, done <-chan struct{}) bool {
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	}
}
