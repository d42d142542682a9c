package faultnet

import "sync"

// setting is a property of a proxy that can be set for good or for a time; zero is
// what a plain wire has.
type setting struct {
	mu    sync.Mutex
	value int64
	turn  int
}

func (s *setting) get() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// set returns what ends it.
func (s *setting) set(value int64) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value = value
	s.turn++
	turn := s.turn
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.turn == turn { // else somebody has set it since
			s.value = 0
		}
	}
}
