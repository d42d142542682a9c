package main

import (
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"pgapply/apply"
	"pgapply/apply/tablesync"
	"pgapply/operate"
)

// screen is a terminal that shows how far a copy of tables is, below what is logged
// meanwhile.
type screen struct {
	file *os.File

	mu sync.Mutex
	// bars is nil while nothing is copied.
	bars *mpb.Progress
}

// Write writes a part of the log. While there are bars it goes above them.
func (s *screen) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bars != nil {
		if n, err := s.bars.Write(text); err == nil {
			return n, nil
		}
	}
	return s.file.Write(text)
}

// refresh is how often bars move.
const refresh = 200 * time.Millisecond

// showCopy is an apply.Options.ShowCopy.
func (s *screen) showCopy(progress *tablesync.Progress) (ended func()) {
	bars := mpb.New(mpb.WithOutput(s.file), mpb.WithRefreshRate(refresh), mpb.WithWidth(barWidth), mpb.WithAutoRefresh())
	s.setBars(bars)
	c := &copyBars{bars: bars, file: s.file, progress: progress, tables: make(map[string]*bar)}
	c.total = c.add("together", belowAll)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(refresh)
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				c.update(now)
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-done
		c.end()
		s.setBars(nil)
		say(s.file, operate.CopySummary(progress.Tables()))
	}
}

func (s *screen) setBars(bars *mpb.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bars = bars
}

// copyBars are one for each table that is being copied, and one for all together below
// them. It belongs to one goroutine.
type copyBars struct {
	bars     *mpb.Progress
	file     *os.File
	progress *tablesync.Progress
	total    *bar
	tables   map[string]*bar
	// longest is how long the names are that stand before the bars.
	longest int
}

// bar is one of them, with what is said behind it.
type bar struct {
	*mpb.Bar
	mu   sync.Mutex
	text string
}

const (
	barWidth = 20
	// barSteps are in a whole bar.
	barSteps = 1000
	// belowAll is the place of the last bar.
	belowAll = 1 << 20
)

func (c *copyBars) add(name string, place int) *bar {
	c.longest = max(c.longest, len([]rune(name)))
	b := &bar{}
	b.Bar = c.bars.New(barSteps, mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding(" ").Rbound("]"),
		mpb.BarPriority(place),
		mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR)),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.text
		})))
	return b
}

// fitting is what fits of a text on the line behind a bar: one that wrapped around could
// not be written over.
func (c *copyBars) fitting(text string) string {
	const between = 5
	columns, _, err := term.GetSize(int(c.file.Fd()))
	if err != nil {
		return text
	}
	runes := []rune(text)
	return string(runes[:max(0, min(len(runes), columns-c.longest-barWidth-between))])
}

func (b *bar) set(share float64, text string) {
	b.mu.Lock()
	b.text = text
	b.mu.Unlock()
	b.SetCurrent(int64(share * (barSteps - 1))) // a whole one would be over
}

// drop takes the bar off the screen.
func (b *bar) drop() { b.Abort(true) }

func (c *copyBars) update(now time.Time) {
	status := apply.CopyStatus(c.progress)
	running := make(map[string]bool, len(status.Running))
	for i := range status.Running {
		table := &status.Running[i]
		running[table.Table] = true
		b := c.tables[table.Table]
		if b == nil {
			b = c.add(table.Table, len(c.tables))
			c.tables[table.Table] = b
		}
		b.set(table.Share, c.fitting(operate.CopyTableLine(table)))
	}
	for name, b := range c.tables {
		if !running[name] {
			b.drop()
			delete(c.tables, name)
		}
	}
	c.total.set(status.Share, c.fitting(operate.CopyLine(status, now)))
}

func (c *copyBars) end() {
	for _, b := range c.tables {
		b.drop()
	}
	c.total.drop()
	c.bars.Wait()
}
