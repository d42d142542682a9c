package faultnet

import "sync"

// gate lets frames pass, or holds them back.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // closed while frames may pass
}

func newGate() *gate {
	g := &gate{opened: make(chan struct{})}
	close(g.opened)
	return g
}

// stall returns what ends it, unless somebody has ended it, and stalled anew, since.
func (g *gate) stall() (end func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if isClosed(g.opened) {
		g.opened = make(chan struct{})
	}
	held := g.opened
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.opened == held {
			g.release()
		}
	}
}

func (g *gate) resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.release()
}

// release opens the gate; g.mu is held.
func (g *gate) release() {
	if !isClosed(g.opened) {
		close(g.opened)
	}
}

// open is closed once frames may pass.
func (g *gate) open() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
