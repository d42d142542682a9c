package faultnet

import "slices"

// Point is where a connection is cut, relative to one statement.
type Point uint8

// The points.
const (
	// Before: the server never sees the statement.
	Before Point = iota
	// After: the statement was forwarded, and the client is cut off at once. The
	// server runs it, at a time of its own, and finds nobody to tell.
	After
	// Reply: the server has answered, so a COMMIT is done, and the client never
	// learns it.
	Reply
)

// Fault is a cut that waits for its statement. It happens once.
type Fault struct {
	point     Point
	command   string
	remaining int // statements still to come, this one included
	fired     chan struct{}
}

// Fired is closed when the client has been cut off.
func (f *Fault) Fired() <-chan struct{} { return f.fired }

// CutBeforeCommit cuts the connection that sends the n-th COMMIT from now on,
// counted over all connections, before the server sees it.
func (p *Proxy) CutBeforeCommit(n int) *Fault { return p.Cut(Before, "COMMIT", n) }

// CutAfterCommit cuts as soon as the n-th COMMIT was forwarded.
func (p *Proxy) CutAfterCommit(n int) *Fault { return p.Cut(After, "COMMIT", n) }

// CutCommitReply cuts when the server's reply to the n-th COMMIT has arrived, in
// place of forwarding it.
func (p *Proxy) CutCommitReply(n int) *Fault { return p.Cut(Reply, "COMMIT", n) }

// Cut arms a cut at the n-th statement of a command from now on, counted over all
// connections. Command is in upper case, and spelt as the server's own tag where
// SQL has several spellings: COMMIT is also END; PREPARE TRANSACTION, COMMIT
// PREPARED, ROLLBACK PREPARED and ROLLBACK TO are commands of their own.
//
// Where the n-th statement gets no reply (it was skipped after an error, or its
// connection ended), a Reply fault waits for the next one.
func (p *Proxy) Cut(at Point, command string, n int) *Fault {
	f := &Fault{point: at, command: command, remaining: max(n, 1), fired: make(chan struct{})}
	p.arm(f)
	return f
}

func (p *Proxy) arm(f *Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.armed = append(p.mu.armed, f)
}

// count tells the armed faults that a statement is about to be forwarded, and
// returns the one that it sets off, no longer armed, or nil.
func (p *Proxy) count(command string) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	var due *Fault
	for _, f := range p.mu.armed {
		if f.command != command {
			continue
		}
		if f.remaining > 1 {
			f.remaining--
		} else if due == nil {
			due = f
		}
	}
	if due != nil {
		p.mu.armed = slices.DeleteFunc(p.mu.armed, func(f *Fault) bool { return f == due })
	}
	return due
}
