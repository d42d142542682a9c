package verify

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Progress is how far a comparison is. It is safe for concurrent use, and nobody has to look.
type Progress struct {
	mu sync.Mutex
	// since is when the first table began.
	since             time.Time
	tables, done      int
	blocks, allBlocks int64
	rows              int64
	running           []string
}

func (p *Progress) begin(tables []*table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since, p.tables = time.Now(), len(tables)
	for _, t := range tables {
		p.allBlocks += t.ends[sourceEnd].pages() + t.ends[targetEnd].pages()
	}
}

func (p *Progress) read(rows, blocks int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rows += rows
	if rows > 0 { // looking at chunks again is not foreseen
		p.blocks += blocks
	}
}

func (p *Progress) tableBegun(t Table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = append(p.running, t.String())
}

func (p *Progress) tableDone(t Table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	p.running = slices.DeleteFunc(p.running, func(name string) bool { return name == t.String() })
}

// State is a moment of a Progress.
type State struct {
	Tables, Done int
	// Rows read of both ends together, and how long that took.
	Rows    int64
	Elapsed time.Duration
	// Share estimates how much is done, from 0 to 1.
	Share float64
	// Running are the tables in work.
	Running string
}

// Now is how far the comparison is. It is the zero State before it began.
func (p *Progress) Now() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		return State{}
	}
	s := State{Tables: p.tables, Done: p.done, Rows: p.rows, Elapsed: time.Since(p.since), Running: strings.Join(p.running, ", ")}
	if p.allBlocks > 0 {
		s.Share = min(1, float64(p.blocks)/float64(p.allBlocks))
	}
	return s
}
