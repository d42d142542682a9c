package faultnet

import "sync/atomic"

// Rewriter stands in one replication stream, as a server would that has lost its mind. It
// is called by both pumps of a session, Server by one and Client by the other.
type Rewriter interface {
	// Server returns the bytes that the client gets in place of a frame of the server's:
	// none, the frame itself, another, or no frame at all.
	Server(frame []byte) []byte
	// Client is shown a CopyData frame of the client's, which is forwarded as it is.
	Client(frame []byte)
}

// Rewrite puts a Rewriter into each replication stream that begins from now on, just
// behind the server's CopyBothResponse. One that begin returns nil for is left alone, and
// so are all once begin is nil.
func (p *Proxy) Rewrite(begin func() Rewriter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.rewrite = begin
}

// rewriting is the Rewriter of a session, once its stream has begun.
type rewriting struct{ atomic.Pointer[Rewriter] }

func (r *rewriting) get() Rewriter {
	if rewriter := r.Load(); rewriter != nil {
		return *rewriter
	}
	return nil
}

// begin gives the session a Rewriter, if one is wanted. The client cannot have sent
// anything into the stream yet: it has not seen that it began.
func (s *session) begin() {
	s.proxy.mu.Lock()
	begin := s.proxy.mu.rewrite
	s.proxy.mu.Unlock()
	if begin == nil {
		return
	}
	if rewriter := begin(); rewriter != nil {
		s.rewriting.Store(&rewriter)
	}
}

// rewrite forwards what the Rewriter makes of a frame.
func (w *wire) rewrite(f frame, rewriter Rewriter) error {
	body, err := w.body(f)
	if err != nil {
		return err
	}
	_, err = w.out.Write(rewriter.Server(append(f.head[:], body...)))
	return err
}
