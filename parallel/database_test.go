package parallel

import (
	"errors"
	"sync"
	"time"
)

// database is the target of the schedules: rows that are locked from their first
// change to the end of the transaction, and waits that only a cancel ends.
type database struct {
	mu      sync.Mutex
	changed sync.Cond
	rows    map[int]int
	locks   map[int]*session
}

// session is one connection to it. It is used by one goroutine, but for cancel and
// blockers.
type session struct {
	db       *database
	worker   int // 0 is the head
	task     *modelTask
	writes   map[int]int
	blocker  *session // whom it waits for
	canceled bool
}

func newDatabase() *database {
	db := &database{rows: map[int]int{}, locks: map[int]*session{}}
	db.changed.L = &db.mu
	return db
}

func (db *database) session(worker int) *session {
	return &session{db: db, worker: worker, writes: map[int]int{}}
}

// elapse waits for the timer of a statement, or a message, on the virtual clock of the
// bubble: it orders what happens, and no real time goes by.
func elapse(latency time.Duration) {
	if latency > 0 {
		<-time.After(latency)
	}
}

// apply makes a change whose result depends on all changes of the row before it.
func (s *session) apply(c change) error {
	elapse(c.latency)
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	for _, key := range []int{c.key, c.hidden} {
		if err := s.lock(key); err != nil {
			return err
		}
	}
	old, ok := s.writes[c.key]
	if !ok {
		old = s.db.rows[c.key]
	}
	s.writes[c.key] = c.of(old)
	return nil
}

// lock waits for the lock on a key.
func (s *session) lock(key int) error {
	for {
		s.blocker = s.db.locks[key]
		if s.blocker == nil || s.blocker == s {
			s.blocker = nil
			s.db.locks[key] = s
			return nil
		}
		s.db.changed.Wait()
		if s.canceled {
			s.blocker, s.canceled = nil, false
			return errors.New("canceled by request")
		}
	}
}

// cancel ends the wait that it meets. Between two statements it has no effect.
func (s *session) cancel() {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if s.blocker != nil {
		s.canceled = true
		s.db.changed.Broadcast()
	}
}

// end commits, or rolls back.
func (s *session) end(commit bool) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	for key, value := range s.writes {
		if commit {
			s.db.rows[key] = value
		}
	}
	clear(s.writes)
	for key, holder := range s.db.locks {
		if holder == s {
			delete(s.db.locks, key)
		}
	}
	s.db.changed.Broadcast()
}

// blockers follows those for whom the session waits, and gives their workers.
func (s *session) blockers() []int {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	var workers []int
	seen := map[*session]bool{s: true}
	for b := s.blocker; b != nil && !seen[b]; b = b.blocker {
		seen[b] = true
		workers = append(workers, b.worker)
	}
	return workers
}
