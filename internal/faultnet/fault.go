package faultnet

import "slices"

// Point is where something happens, relative to one statement.
type Point uint8

// The points.
const (
	// Before: the server has not seen the statement yet. With a Cut it never does.
	Before Point = iota
	// After: the statement was forwarded. With a Cut the client is cut off at once; the
	// server runs it, at a time of its own, and finds nobody to tell.
	After
	// Reply: the server has answered, so a COMMIT is done. With a Cut, or a Mute, the
	// client never learns it.
	Reply
)

// StatusUpdate names, beside the statements, what a client tells a walsender about how
// far it is. It has no reply.
const StatusUpdate = "STATUS UPDATE"

// Fault waits for its statement. It happens once.
type Fault struct {
	point     Point
	command   string
	remaining int // statements still to come, this one included
	actions   []Action
	fired     chan struct{}
	era       int // of the proxy: see Disarm
}

// Fired is closed when the fault has happened.
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
// PREPARED, ROLLBACK PREPARED and ROLLBACK TO are commands of their own, and so is
// StatusUpdate.
//
// Where the n-th statement gets no reply (it was skipped after an error, or its
// connection ended), a Reply fault waits for the next one.
func (p *Proxy) Cut(at Point, command string, n int) *Fault {
	return p.await(Moment{Point: at, Command: command, Nth: n}, Action{Verb: Cut})
}

// await arms a fault.
func (p *Proxy) await(m Moment, actions ...Action) *Fault {
	f := &Fault{point: m.Point, command: m.Command, remaining: max(m.Nth, 1), actions: actions, fired: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	f.era = p.mu.era
	p.mu.armed = append(p.mu.armed, f)
	return f
}

// rearm lets faults wait for the next statement.
func (p *Proxy) rearm(faults ...*Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range faults {
		if f.era == p.mu.era {
			p.mu.armed = append(p.mu.armed, f)
		}
	}
}

// Disarm forgets the faults that have not happened. One whose statement is on its way
// may still happen.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.armed = nil
	p.mu.era++
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
