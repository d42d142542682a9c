package httpd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// A request is a few hundred bytes, and an answer at most some hundred thousand: who
	// takes longer holds a connection for no good. But a browser opens connections ahead of
	// its requests.
	headerTime  = 30 * time.Second
	requestTime = 30 * time.Second
	answerTime  = 30 * time.Second
	idleTime    = 2 * time.Minute
	mostHeaders = 16 << 10
	// farewellTime is what requests have when the server stops.
	farewellTime = time.Second
)

// Server listens from New to the end of Run.
type Server struct {
	listener net.Listener
	http     *http.Server
	door     door
	source   Source
	history  history
}

// New listens. Its error names the address and what is wrong with it.
func New(options Options, source Source) (*Server, error) {
	address, err := options.address()
	if err != nil {
		return nil, err
	}
	if options.Token != "" {
		if err := CheckToken(options.Token); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	s := &Server{listener: listener, source: source, door: newDoor(options.Token, loopback(listener.Addr()))}
	s.http = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerTime, ReadTimeout: requestTime, WriteTimeout: answerTime, IdleTimeout: idleTime,
		MaxHeaderBytes: mostHeaders, ErrorLog: options.Log,
	}
	return s, nil
}

// Address is where the server listens, with the port that it has got.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Open tells whether other machines reach the server and need no token.
func (s *Server) Open() bool { return !s.door.loopback && !s.door.guarded }

// Run serves until ctx ends, and returns nil then, at most a second later.
func (s *Server) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tasks.Go(func() { s.sample(ctx) })
	tasks.Go(func() {
		<-ctx.Done()
		farewell, cancel := context.WithTimeout(context.Background(), farewellTime)
		defer cancel()
		if s.http.Shutdown(farewell) != nil {
			_ = s.http.Close() // whoever still reads has had a second
		}
	})
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", s.Address(), err)
	}
	return nil
}

// sample keeps the history until ctx ends.
func (s *Server) sample(ctx context.Context) {
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	for {
		s.history.add(s.source.Sample())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
