package tablesync

import (
	"sync"
	"time"
)

// Progress is how far a copy is. The zero value is ready; it may be read at any time.
type Progress struct {
	mu     sync.Mutex
	tables []*progress
}

// TableProgress is how far the copy of one table is.
type TableProgress struct {
	Schema, Name string
	// Rows and Bytes that have gone to the target, committed or not. A part that fails
	// takes its share back.
	Rows, Bytes int64
	// EstimatedRows is what the publisher's statistics say, -1 where they say nothing;
	// DiskBytes is the table's size there, which is not that of its rows in transit.
	EstimatedRows, DiskBytes int64
	// Parts is 0 until the table is planned.
	Parts, PartsDone int
	// Started and Finished are zero until then.
	Started, Finished time.Time
	// Err is why the table was given up, nil otherwise.
	Err error
}

// Tables returns the state of every table, in the order in which they were given to Copy.
func (p *Progress) Tables() []TableProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	tables := make([]TableProgress, len(p.tables))
	for i, table := range p.tables {
		tables[i] = table.state
	}
	return tables
}

// progress is one table's share of a Progress.
type progress struct {
	all   *Progress
	state TableProgress // under all.mu
}

// add appends a table.
func (p *Progress) add(table Table) *progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	added := &progress{all: p, state: TableProgress{Schema: table.Schema, Name: table.Name, EstimatedRows: -1}}
	p.tables = append(p.tables, added)
	return added
}

func (p *progress) update(change func(*TableProgress)) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	change(&p.state)
}

// Share estimates how much of the table is copied, from 0 to 1.
func (t *TableProgress) Share() float64 {
	// Estimates may be low, and what is sent may be larger than what is stored.
	const nearly = 0.99
	switch {
	case !t.Finished.IsZero():
		return 1
	case t.EstimatedRows > 0:
		return min(float64(t.Rows)/float64(t.EstimatedRows), nearly)
	case t.DiskBytes > 0:
		return min(float64(t.Bytes)/float64(t.DiskBytes), nearly)
	}
	return 0
}

// Share estimates how much of all tables is copied, from 0 to 1, by what they take on the
// publisher's disk.
func Share(tables []TableProgress) float64 {
	const atLeast = 8 << 10 // an empty one is some work, too
	var done, all float64
	for i := range tables {
		weight := float64(tables[i].DiskBytes + atLeast)
		all += weight
		done += weight * tables[i].Share()
	}
	if all == 0 {
		return 0
	}
	return done / all
}
