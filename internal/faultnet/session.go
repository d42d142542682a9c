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
// and both connections are closed. Only a cut After lets the server end by itself.
type session struct {
	proxy          *Proxy
	client, server *net.TCPConn
	done           chan struct{} // closed by cut
	once           sync.Once

	// The pump from the client alone uses these two.
	prepared map[string][]string // commands of prepared statements, by name
	portals  map[string][]string // commands of portals, by name

	// Both pumps share these two.
	requests requests
	orphaned atomic.Bool // by a cut After: the client is gone, the server works on
}

func newSession(p *Proxy, client, server *net.TCPConn) *session {
	return &session{
		proxy:    p,
		client:   client,
		server:   server,
		done:     make(chan struct{}),
		prepared: make(map[string][]string),
		portals:  make(map[string][]string),
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

// run forwards until the session ends, and waits for its goroutines.
func (s *session) run() {
	delay := func() time.Duration { return time.Duration(s.proxy.delay.Load()) }
	var all sync.WaitGroup
	pump := func(from, to *net.TCPConn, g *gate, forward func(*wire) error) {
		l := newLine(delay, s.done)
		all.Go(func() { l.fill(from) })
		w := &wire{gate: g, done: s.done, in: bufio.NewReaderSize(l, lineChunk), out: bufio.NewWriterSize(to, lineChunk)}
		all.Go(func() {
			defer s.cut()
			_ = forward(w) // why a connection ended is its two ends' business
		})
	}
	pump(s.client, s.server, s.proxy.fromClient, s.forwardClient)
	pump(s.server, s.client, s.proxy.fromServer, s.forwardServer)
	all.Wait()
	s.rearm(s.requests.abandon()...)
}

// rearm lets faults wait for the next statement.
func (s *session) rearm(skipped ...*Fault) {
	for _, f := range skipped {
		s.proxy.arm(f)
	}
}

// forwardClient forwards what the client sends, counts statements, and cuts before
// or after the one that a fault waits for.
func (s *session) forwardClient(w *wire) error {
	if err := s.forwardStartup(w); err != nil {
		return err
	}
	for {
		f, err := w.next()
		if err != nil {
			return err
		}
		if !interesting(f.kind) {
			if err := w.copy(f); err != nil {
				return err
			}
			continue
		}
		body, err := w.body(f)
		if err != nil {
			return err
		}
		fault, err := s.observe(f.kind, body)
		if err != nil {
			return err
		}
		if fault != nil && fault.point == Before {
			return s.fire(fault)
		}
		err = w.write(f, body)
		if fault == nil {
			if err != nil {
				return err
			}
			continue
		}
		if err := errors.Join(err, w.out.Flush()); err != nil {
			s.rearm(fault) // the server is gone and has not seen it
			return err
		}
		// The server must not be disturbed: with its connection reset it might end
		// before it runs what it was sent. It sees the end of the input behind it.
		s.orphaned.Store(true)
		s.client.Close()
		_ = s.server.CloseWrite()
		close(fault.fired)
		<-s.done
		return errCut
	}
}

// forwardServer forwards what the server sends, and cuts in place of the reply that
// a fault waits for.
func (s *session) forwardServer(w *wire) error {
	err := s.forwardReplies(w)
	if s.orphaned.Load() {
		_, err = io.Copy(io.Discard, w.in)
	}
	return err
}

func (s *session) forwardReplies(w *wire) error {
	for {
		f, err := w.next()
		if err != nil {
			return err
		}
		fault, skipped := s.requests.answered(f.kind)
		s.rearm(skipped...)
		if fault != nil {
			_ = w.out.Flush() // a client that is gone will not learn the reply either
			return s.fire(fault)
		}
		if err := w.copy(f); err != nil {
			return err
		}
	}
}

// fire cuts the session, and then says so.
func (s *session) fire(f *Fault) error {
	s.cut()
	close(f.fired)
	return errCut
}
