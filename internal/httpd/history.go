package httpd

import (
	"sync"
	"time"
)

const (
	// sampleInterval times samples is what the plots show: half an hour.
	sampleInterval = 2 * time.Second
	samples        = 900
)

// history keeps the newest samples, so that a page that is loaded anew has its plots.
type history struct {
	mu struct {
		sync.Mutex
		ring [samples]Sample
		// next is where the next sample goes; count is how many there are.
		next, count int
	}
}

func (h *history) add(sample Sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.ring[h.mu.next] = sample
	h.mu.next = (h.mu.next + 1) % samples
	h.mu.count = min(h.mu.count+1, samples)
}

// columns is what the page gets: one list for each value, oldest first. The names are
// the page's.
type columns struct {
	IntervalMS   int64     `json:"interval_ms"`
	Capacity     int       `json:"capacity"`
	At           []int64   `json:"at_ms"`
	LagBytes     []int64   `json:"lag_bytes"`
	LagSeconds   []float64 `json:"lag_seconds"`
	Transactions []int64   `json:"transactions"`
	Rows         []int64   `json:"rows"`
	CopiedRows   []int64   `json:"copied_rows"`
}

// after returns the samples that are newer than a time in milliseconds.
func (h *history) after(ms int64) columns {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := columns{
		IntervalMS: sampleInterval.Milliseconds(), Capacity: samples,
		At: []int64{}, LagBytes: []int64{}, LagSeconds: []float64{}, Transactions: []int64{}, Rows: []int64{}, CopiedRows: []int64{},
	}
	for i := range h.mu.count {
		s := &h.mu.ring[(h.mu.next-h.mu.count+i+samples)%samples]
		at := s.At.UnixMilli()
		if at <= ms {
			continue
		}
		c.At = append(c.At, at)
		c.LagBytes = append(c.LagBytes, s.LagBytes)
		c.LagSeconds = append(c.LagSeconds, s.LagSeconds)
		c.Transactions = append(c.Transactions, s.Transactions)
		c.Rows = append(c.Rows, s.Rows)
		c.CopiedRows = append(c.CopiedRows, s.CopiedRows)
	}
	return c
}
