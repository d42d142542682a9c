package faultnet

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// session is one proxied connection: two lines that read, two pumps that forward
// frames. It ends as a whole: when one side ends, what that side sent is forwarded,
// and both connections are closed. Only an end After lets the server end by itself, and
// a muted one lasts until the client leaves.
type session struct {
	proxy          *Proxy
	client, server *net.TCPConn
	done           chan struct{} // closed by cut
	once           sync.Once

	// The pump from the client alone uses these two.
	prepared map[string][]string // commands of prepared statements, by name
	portals  map[string][]string // commands of portals, by name

	conversation *conversation // nil without a trace

	// Both pumps share these.
	requests  requests
	orphaned  atomic.Bool // by an end After: the client is gone, the server works on
	muted     atomic.Bool // what the server sends is read and dropped
	streams   atomic.Bool // the server streams: CopyData of the client are status updates
	rewriting rewriting
}

func newSession(p *Proxy, client, server *net.TCPConn) *session {
	return &session{
		proxy:    p,
		client:   client,
		server:   server,
		done:     make(chan struct{}),
		prepared: make(map[string][]string),
		portals:  make(map[string][]string),

		conversation: p.converse(),
	}
}

// cut ends the session now. It does not wait.
func (s *session) cut() {
	s.once.Do(func() {
		close(s.done)
		s.client.Close()
		s.server.Close()
	})
}

// reset is cut with a reset in place of an orderly end.
func (s *session) reset() {
	_ = s.client.SetLinger(0)
	_ = s.server.SetLinger(0)
	s.cut()
}

// mute lets the client hear nothing of the server any more. What was sent to it is
// neither taken back nor held up.
func (s *session) mute() { s.muted.Store(true) }

// run forwards until the session ends, and waits for its goroutines.
func (s *session) run() {
	delay := func() time.Duration { return time.Duration(s.proxy.delay.get()) }
	var all sync.WaitGroup
	pump := func(from, to *net.TCPConn, g *gate, rate *setting, forward func(*wire) error) {
		l := newLine(delay, s.done)
		all.Go(func() { l.fill(from) })
		slowly := &trickle{to: to, rate: rate, done: s.done}
		w := &wire{gate: g, done: s.done, in: bufio.NewReaderSize(l, lineChunk), out: bufio.NewWriterSize(slowly, lineChunk)}
		all.Go(func() {
			defer s.cut()
			_ = forward(w) // why a connection ended is its two ends' business
		})
	}
	pump(s.client, s.server, s.proxy.fromClient, &s.proxy.clientRate, s.forwardClient)
	pump(s.server, s.client, s.proxy.fromServer, &s.proxy.serverRate, s.forwardServer)
	all.Wait()
	s.proxy.rearm(s.requests.abandon()...)
}

// forwardClient forwards what the client sends. A server that is gone does not end a
// muted session: the client would hear of it.
func (s *session) forwardClient(w *wire) error {
	err := s.forwardRequests(w)
	switch {
	case s.orphaned.Load():
		<-s.done
	case s.muted.Load():
		_, err = io.Copy(io.Discard, w.in)
	}
	return err
}

// forwardRequests counts statements, and lets happen what waits for them.
func (s *session) forwardRequests(w *wire) error {
	if err := s.forwardStartup(w); err != nil {
		return err
	}
	for {
		f, err := w.next()
		if err != nil {
			return err
		}
		if !s.interesting(f.kind) {
			s.conversation.asks(f.kind, nil)
			if err := w.copy(f); err != nil {
				return err
			}
			continue
		}
		body, err := w.body(f)
		if err != nil {
			return err
		}
		if !s.streams.Load() {
			s.conversation.asks(f.kind, body)
		}
		fault, err := s.observe(f.kind, body)
		if err != nil {
			return err
		}
		if fault != nil && fault.point == Before {
			if err := s.strike(w, fault); err != nil {
				return err
			}
		}
		if rewriter := s.rewriting.get(); rewriter != nil && f.kind == 'd' {
			rewriter.Client(append(f.head[:], body...))
		}
		err = w.write(f, body)
		if fault != nil && fault.point == After {
			if err := errors.Join(err, w.out.Flush()); err != nil {
				s.proxy.rearm(fault) // the server is gone and has not seen it
				return err
			}
			if err := s.strike(w, fault); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// forwardServer forwards what the server sends.
func (s *session) forwardServer(w *wire) error {
	err := s.forwardReplies(w)
	switch {
	case s.orphaned.Load():
		_, err = io.Copy(io.Discard, w.in)
	case s.muted.Load():
		<-s.done
	}
	return err
}

// forwardReplies lets happen, in place of a reply, what waits for it.
func (s *session) forwardReplies(w *wire) error {
	for {
		f, err := w.next()
		if err != nil {
			return err
		}
		rewriter := s.rewriting.get() // not yet, for the one that begins the stream
		switch f.kind {
		case 'W': // CopyBothResponse
			s.streams.Store(true)
			s.begin()
		case 'Z': // ReadyForQuery
			s.streams.Store(false)
		}
		s.conversation.answers()
		fault, skipped := s.requests.answered(f.kind)
		s.proxy.rearm(skipped...)
		if fault != nil {
			_ = w.out.Flush() // a client that is gone will not learn the reply either
			if err := s.strike(w, fault); err != nil {
				return err
			}
		}
		switch {
		case s.muted.Load():
			err = w.drop(f)
		case rewriter != nil:
			err = w.rewrite(f, rewriter)
		default:
			err = w.copy(f)
		}
		if err != nil {
			return err
		}
	}
}

// strike does what a fault does, to the proxy first: a connection that is cut finds the
// proxy as it is to be. errCut ends the pump of a connection that is gone.
func (s *session) strike(w *wire, f *Fault) error {
	defer close(f.fired)
	var ending *Action
	for i, action := range f.actions {
		switch {
		case action.ends():
			ending = &f.actions[i]
		case action.onConnection():
			s.mute()
		default:
			s.proxy.Do(action)
		}
	}
	switch {
	case ending == nil:
		return w.pass() // what was stalled begins here
	case f.point == After:
		s.orphan(ending.Verb == Reset)
	case ending.Verb == Reset:
		s.reset()
	default:
		s.cut()
	}
	return errCut
}

// orphan ends the client's connection and lets the server be. It must not be disturbed:
// with its connection reset it might end before it runs what it was sent. It sees the
// end of the input behind it.
func (s *session) orphan(reset bool) {
	s.orphaned.Store(true)
	if reset {
		_ = s.client.SetLinger(0)
	}
	s.client.Close()
	_ = s.server.CloseWrite()
}
