// Package faultnet is a TCP proxy in front of one PostgreSQL server that breaks
// connections at chosen points of the protocol.
//
// A byte-level proxy can cut a connection after a time or a number of bytes. The
// failures that matter to us lie between two messages: COMMIT was sent, and its
// reply never came. So the proxy reads frames, knows which statement each request
// runs and which request each reply answers, and cuts there.
//
//	client --> line (delay) --> pump: gate, count commands, cut --> trickle --> server
//	client <-- trickle <-- pump: gate, match replies, cut <-- line (delay) <-- server
//
// What happens when is said by methods, or by a script such as
//
//	after COMMIT 3: reset, refuse for 1s
//
// Everything it forwards, it forwards once and unchanged, unless a [Rewriter] is asked for
// that makes of a good publisher a bad one. It does not speak TLS: it declines encryption
// on the server's behalf, as a server without ssl does.
package faultnet

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"
)

// Direction is one way or both ways through the proxy.
type Direction uint8

// The directions.
const (
	FromClient Direction = 1 << iota
	FromServer
	BothWays = FromClient | FromServer
)

// Proxy forwards connections to one server. Its methods may be called from any
// goroutine, and take effect on open connections as well as on later ones.
type Proxy struct {
	upstream string
	listener *net.TCPListener
	running  sync.WaitGroup // accept loop, sessions, and the timers of what lasts
	closed   chan struct{}  // by Close, under mu

	delay      setting // time.Duration
	refusing   setting
	fromClient *gate
	fromServer *gate
	clientRate setting // bytes a second
	serverRate setting

	mu struct {
		sync.Mutex
		sessions map[*session]struct{}
		armed    []*Fault
		era      int
		rewrite  func() Rewriter
		trace    *Trace
	}
}

// Listen starts a proxy on a free port of the loopback address. Upstream is the
// server's host:port.
func Listen(upstream string) (*Proxy, error) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("listen for a fault proxy of %s: %w", upstream, err)
	}
	p := &Proxy{upstream: upstream, listener: listener, closed: make(chan struct{}), fromClient: newGate(), fromServer: newGate()}
	p.mu.sessions = make(map[*session]struct{})
	p.running.Go(p.accept)
	return p, nil
}

// ListenURI starts a proxy in front of the server that a connection URI names,
// and returns the URI that leads to the same database through the proxy.
func ListenURI(uri string) (*Proxy, string, error) {
	parsed, err := url.Parse(uri)
	if err != nil || parsed.Port() == "" {
		return nil, "", errors.New("fault proxy: the server must be given as postgres://user@host:port/database")
	}
	p, err := Listen(parsed.Host)
	if err != nil {
		return nil, "", err
	}
	parsed.Host = p.Addr()
	return p, parsed.String(), nil
}

// Addr is the host:port on which the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Delay holds back everything that arrives from now on by d, in each direction,
// as a long link does: it costs latency, not throughput.
func (p *Proxy) Delay(d time.Duration) { p.delay.set(int64(d)) }

// Stall stops forwarding in the given directions, and keeps the connections open.
func (p *Proxy) Stall(which Direction) {
	for _, g := range p.gates(which) {
		g.stall()
	}
}

// Resume ends a Stall.
func (p *Proxy) Resume(which Direction) {
	for _, g := range p.gates(which) {
		g.resume()
	}
}

func (p *Proxy) gates(which Direction) []*gate {
	var gates []*gate
	if which&FromClient != 0 {
		gates = append(gates, p.fromClient)
	}
	if which&FromServer != 0 {
		gates = append(gates, p.fromServer)
	}
	return gates
}

func (p *Proxy) rates(which Direction) []*setting {
	var rates []*setting
	if which&FromClient != 0 {
		rates = append(rates, &p.clientRate)
	}
	if which&FromServer != 0 {
		rates = append(rates, &p.serverRate)
	}
	return rates
}

// Refuse makes the proxy hang up on each new connection, until Accept.
func (p *Proxy) Refuse() { p.refusing.set(1) }

// Accept ends a Refuse.
func (p *Proxy) Accept() { p.refusing.set(0) }

// DropAll cuts every open connection now.
func (p *Proxy) DropAll() { p.each((*session).cut) }

func (p *Proxy) each(do func(*session)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.mu.sessions {
		do(s)
	}
}

// Connections is the number of connections that are open through the proxy.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.sessions)
}

// Close cuts every connection, stops listening, and waits for all goroutines of
// the proxy.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !isClosed(p.closed) {
		close(p.closed)
	}
	p.mu.Unlock()
	p.listener.Close()
	p.DropAll()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.AcceptTCP()
		if err != nil {
			return // closed
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	server, err := net.Dial("tcp", p.upstream)
	if err != nil {
		client.Close()
		return
	}
	s := newSession(p, client, server.(*net.TCPConn))
	if !p.admit(s) {
		s.cut()
		return
	}
	defer p.forget(s)
	s.run()
}

func (p *Proxy) admit(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isClosed(p.closed) || p.refusing.get() != 0 {
		return false
	}
	p.mu.sessions[s] = struct{}{}
	return true
}

func (p *Proxy) forget(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.sessions, s)
}
