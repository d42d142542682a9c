package faultnet

import "sync"

// request is a message that the server has yet to answer.
type request struct {
	kind    byte     // of the client's message: Execute, Query, Sync or FunctionCall
	replies []*Fault // for each statement not yet answered: the cut in place of its reply, or nil
}

// requests is the queue of messages between the two pumps of a session. The server
// answers in order; after an error it skips everything up to the next Sync. Faults
// whose statements were skipped come back from add, answered and abandon, to be
// armed again.
type requests struct {
	mu       sync.Mutex
	queue    []request
	skipping bool // an error was answered, and its Sync is not in the queue yet
}

func (q *requests) add(r request) (skipped []*Fault) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.skipping && r.kind != 'S' {
		return waiting(r)
	}
	q.skipping = false
	q.queue = append(q.queue, r)
	return nil
}

// answered matches a message of the server with the statement that it answers, and
// returns the fault to fire in its place, or nil.
func (q *requests) answered(kind byte) (due *Fault, skipped []*Fault) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch kind {
	case 'C', 'I', 's': // CommandComplete, EmptyQueryResponse, PortalSuspended
		return q.completeStatement(), nil
	case 'E': // ErrorResponse
		due = q.completeStatement()
		return due, q.skipToSync()
	case 'Z': // ReadyForQuery; the one that ends the startup answers nothing
		if len(q.queue) > 0 {
			q.queue = q.queue[1:]
		}
	}
	return nil, nil
}

// completeStatement takes the next statement. A request without statements (an
// empty query) has nothing to take.
func (q *requests) completeStatement() *Fault {
	if len(q.queue) == 0 {
		return nil
	}
	head := &q.queue[0]
	var fault *Fault
	if len(head.replies) > 0 {
		fault, head.replies = head.replies[0], head.replies[1:]
	}
	if head.kind == 'E' {
		q.queue = q.queue[1:]
	}
	return fault
}

// skipToSync drops everything before the request that ReadyForQuery will answer.
func (q *requests) skipToSync() (skipped []*Fault) {
	for len(q.queue) > 0 {
		head := &q.queue[0]
		skipped = append(skipped, waiting(*head)...)
		head.replies = nil
		if head.kind != 'E' {
			return skipped
		}
		q.queue = q.queue[1:]
	}
	q.skipping = true
	return skipped
}

// abandon empties the queue when the session has ended.
func (q *requests) abandon() (skipped []*Fault) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.queue {
		skipped = append(skipped, waiting(r)...)
	}
	q.queue = nil
	return skipped
}

func waiting(r request) []*Fault {
	var faults []*Fault
	for _, f := range r.replies {
		if f != nil {
			faults = append(faults, f)
		}
	}
	return faults
}
