package demo

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// screen writes what a person should see. On a terminal a line of progress is
// written over the one before.
type screen struct {
	out      io.Writer
	terminal bool
	unended  bool // the cursor stands in a line of progress
}

// interval is how often a line of progress is worth it.
func (s *screen) interval() time.Duration {
	if s.terminal {
		return 100 * time.Millisecond
	}
	return time.Second
}

// line shows progress.
func (s *screen) line(text string) {
	if !s.terminal {
		fmt.Fprintln(s.out, text)
		return
	}
	fmt.Fprintf(s.out, "\r%s\x1b[K", text)
	s.unended = true
}

// endLine leaves the last line of progress where it is.
func (s *screen) endLine() {
	if s.unended {
		fmt.Fprintln(s.out)
		s.unended = false
	}
}

// say writes a line to stay.
func (s *screen) say(text string) {
	s.endLine()
	fmt.Fprintln(s.out, text)
}

// count writes a number with commas between thousands.
func count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	var parts []string
	for len(digits) > 3 {
		parts = append([]string{digits[len(digits)-3:]}, parts...)
		digits = digits[:len(digits)-3]
	}
	return strings.Join(append([]string{digits}, parts...), ",")
}

// counted is count with its noun.
func counted(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return count(n) + " " + noun
}

// size writes a number of bytes.
func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
