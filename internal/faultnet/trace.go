package faultnet

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Trace is what clients have asked for, in turns: all that a client sends from one answer
// on to the next is one, since it costs one round trip. So the length of a trace says what
// something costs on a long link, and needs no clock.
//
// The login is a turn of its own. What comes before it is not seen here: the handshakes of
// TCP and TLS. Nor is what passes while a connection streams.
type Trace struct {
	mu            sync.Mutex
	conversations []*conversation
}

// Conversation is the trace of one connection.
type Conversation struct {
	// Application is the client's application_name.
	Application string
	// Turns are the statements that were sent at a time.
	Turns [][]string
}

// String lists the turns, a line each.
func (c Conversation) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %d turns\n", c.Application, len(c.Turns))
	for i, turn := range c.Turns {
		fmt.Fprintf(&text, "%5d  %s\n", i+1, strings.Join(strings.Fields(strings.Join(turn, "; ")), " "))
	}
	return text.String()
}

// Trace traces the connections that are opened from now on.
func (p *Proxy) Trace() *Trace {
	t := &Trace{}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.trace = t
	return t
}

// Conversations are the traces so far, in the order in which the connections were opened.
func (t *Trace) Conversations() []Conversation {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []Conversation
	for _, c := range t.conversations {
		list = append(list, Conversation{Application: c.Application, Turns: slices.Clone(c.Turns)})
	}
	return list
}

// conversation is a Conversation that goes on. The pump from the server says that it has
// answered, the one from the client writes down what comes next.
type conversation struct {
	trace *Trace
	Conversation
	answered atomic.Bool
}

// converse begins the trace of a session, and returns nil where there is none.
func (p *Proxy) converse() *conversation {
	p.mu.Lock()
	t := p.mu.trace
	p.mu.Unlock()
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &conversation{trace: t}
	t.conversations = append(t.conversations, c)
	return c
}

// login notes the startup message.
func (c *conversation) login(body []byte) {
	if c == nil {
		return
	}
	c.trace.mu.Lock()
	defer c.trace.mu.Unlock()
	c.Turns = append(c.Turns, []string{"login"})
	words := bytes.Split(body, []byte{0})
	for i, word := range words[:len(words)-1] {
		if string(word) == "application_name" {
			c.Application = string(words[i+1])
			return
		}
	}
}

// asks notes a message of the client's.
func (c *conversation) asks(kind byte, body []byte) {
	if c == nil || kind == 'X' { // Terminate has no answer
		return
	}
	c.trace.mu.Lock()
	defer c.trace.mu.Unlock()
	if c.answered.Swap(false) {
		c.Turns = append(c.Turns, nil)
	}
	turn := &c.Turns[len(c.Turns)-1]
	switch kind {
	case 'P': // Parse: name and statement, of which one may be empty
		_, sql, _ := bytes.Cut(body, []byte{0})
		sql, _, _ = bytes.Cut(sql, []byte{0})
		*turn = append(*turn, string(sql))
	case 'Q': // Query
		*turn = append(*turn, string(bytes.TrimRight(body, "\x00")))
	case 'E': // Execute: what was prepared, or what stands before it
		*turn = append(*turn, "!")
	}
}

// answers notes a message of the server's.
func (c *conversation) answers() {
	if c != nil {
		c.answered.Store(true)
	}
}
