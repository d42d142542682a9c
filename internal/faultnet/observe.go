package faultnet

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// interesting tells whether a client's message says which statement runs, gets an
// answer of its own, or may be a status update.
func (s *session) interesting(kind byte) bool {
	switch kind {
	case 'P', 'B', 'E', 'Q', 'S', 'F':
		return true
	case 'd':
		return s.streams.Load() // else rows of a COPY
	}
	return false
}

// observe notes what a client's message asks for, and returns the Before or After
// fault that it sets off, or nil.
func (s *session) observe(kind byte, body []byte) (*Fault, error) {
	switch kind {
	case 'P': // Parse
		var m pgproto3.Parse
		if err := m.Decode(body); err != nil {
			return nil, fmt.Errorf("message Parse: %w", err)
		}
		s.prepared[m.Name] = commands(m.Query)
	case 'B': // Bind
		var m pgproto3.Bind
		if err := m.Decode(body); err != nil {
			return nil, fmt.Errorf("message Bind: %w", err)
		}
		s.portals[m.DestinationPortal] = s.prepared[m.PreparedStatement]
	case 'E': // Execute
		var m pgproto3.Execute
		if err := m.Decode(body); err != nil {
			return nil, fmt.Errorf("message Execute: %w", err)
		}
		return s.expect(kind, s.portals[m.Portal]), nil
	case 'Q': // Query
		var m pgproto3.Query
		if err := m.Decode(body); err != nil {
			return nil, fmt.Errorf("message Query: %w", err)
		}
		return s.expect(kind, commands(m.String)), nil
	case 'd': // CopyData
		if len(body) > 0 && body[0] == 'r' {
			return s.proxy.count(StatusUpdate), nil
		}
	default: // Sync, FunctionCall: answered by ReadyForQuery
		s.proxy.rearm(s.requests.add(request{kind: kind})...)
	}
	return nil, nil
}

// expect counts the commands that a message runs, and queues the message for its reply.
func (s *session) expect(kind byte, names []string) *Fault {
	r := request{kind: kind, replies: make([]*Fault, len(names))}
	var due *Fault
	for i, name := range names {
		fault := s.proxy.count(name)
		switch {
		case fault == nil:
		case fault.point == Reply:
			r.replies[i] = fault
		case due == nil:
			due = fault
		default:
			s.proxy.rearm(fault) // one fault is all this message can take
		}
	}
	s.proxy.rearm(s.requests.add(r)...)
	return due
}
