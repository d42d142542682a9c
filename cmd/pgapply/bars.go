package main

import (
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"pgapply/apply"
	"pgapply/apply/state"
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
	const mostBarWidth = 20 // where there is room for it
	width := min(mostBarWidth, s.width()/4)
	bars := mpb.New(mpb.WithOutput(s.file), mpb.WithRefreshRate(refresh), mpb.WithWidth(width), mpb.WithAutoRefresh())
	s.setBars(bars)
	c := &copyBars{bars: bars, screen: s, barWidth: width, progress: progress, tables: make(map[string]*bar)}
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
	screen   *screen
	barWidth int
	progress *tablesync.Progress
	total    *bar
	tables   map[string]*bar
}

// bar is one of them, with what is said before and behind it.
type bar struct {
	*mpb.Bar
	name string

	mu          sync.Mutex
	label, text string
}

const (
	// barSteps are in a whole bar.
	barSteps = 1000
	// belowAll is the place of the last bar.
	belowAll = 1 << 20
)

// width is that of the terminal, or of one that is wide where that is not known.
func (s *screen) width() int {
	columns, _, err := term.GetSize(int(s.file.Fd()))
	if err != nil || columns <= 0 {
		return 200
	}
	return columns
}

func (c *copyBars) add(name string, place int) *bar {
	b := &bar{name: name, label: shortened(name, c.screen.width()/3)}
	said := func(what *string) func(decor.Statistics) string {
		return func(decor.Statistics) string {
			b.mu.Lock()
			defer b.mu.Unlock()
			return *what
		}
	}
	b.Bar = c.bars.New(barSteps, mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding(" ").Rbound("]"),
		mpb.BarPriority(place),
		mpb.PrependDecorators(decor.Any(said(&b.label), decor.WCSyncSpaceR)),
		mpb.AppendDecorators(decor.Any(said(&b.text))))
	return b
}

// shortened is a name in the room that it has.
func shortened(name string, room int) string {
	runes := []rune(name)
	if room = max(room, 1); len(runes) <= room {
		return name
	}
	return string(runes[:room-1]) + "…"
}

// fitting is what fits of a text, without the part of it that would be cut in two.
func fitting(text string, room int) string {
	runes := []rune(text)
	if len(runes) <= room {
		return text
	}
	fits := string(runes[:max(room, 0)])
	return fits[:max(strings.LastIndex(fits, ", "), strings.LastIndex(fits, "; "), 0)]
}

// layout is the room that names and texts have on a line, in columns. A line that wrapped
// around could not be written over.
type layout struct{ name, text int }

func (c *copyBars) layout() layout {
	const between = 5 // blanks around names, bar and text
	longest := 0
	for _, b := range c.tables {
		longest = max(longest, len([]rune(b.name)))
	}
	width := c.screen.width()
	name := min(max(longest, len(c.total.name)), width/3)
	return layout{name: name, text: width - name - c.barWidth - between}
}

// set moves the bar and says what is said of it.
func (b *bar) set(share float64, text string, l layout) {
	b.mu.Lock()
	b.label, b.text = shortened(b.name, l.name), fitting(text, l.text)
	b.mu.Unlock()
	b.SetCurrent(int64(share * (barSteps - 1))) // a whole one would be over
}

// drop takes the bar off the screen.
func (b *bar) drop() { b.Abort(true) }

func (c *copyBars) update(now time.Time) {
	status := apply.CopyStatus(c.progress)
	running := make(map[string]*state.CopyTable, len(status.Running))
	for i := range status.Running {
		table := &status.Running[i]
		running[table.Table] = table
		if c.tables[table.Table] == nil {
			c.tables[table.Table] = c.add(table.Table, len(c.tables))
		}
	}
	l := c.layout()
	for name, b := range c.tables {
		if table := running[name]; table != nil {
			b.set(table.Share, operate.CopyTableLine(table), l)
			continue
		}
		b.drop()
		delete(c.tables, name)
	}
	c.total.set(status.Share, operate.CopyLine(status, now), l)
}

func (c *copyBars) end() {
	for _, b := range c.tables {
		b.drop()
	}
	c.total.drop()
	c.bars.Wait()
}
