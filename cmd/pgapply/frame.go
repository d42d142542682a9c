package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"golang.org/x/term"
)

// frames shows pages on a terminal, each over the one before.
type frames struct {
	file *os.File
	// begun: what stood on the terminal before has been scrolled away, and not overwritten.
	begun bool
}

func (f *frames) draw(page string) {
	const home, clearLine, clearBelow = "\x1b[H", "\x1b[K", "\x1b[J"
	width, height, err := term.GetSize(int(f.file.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	if !f.begun {
		f.begun = true
		say(f.file, strings.Repeat("\n", height))
	}
	// What is left of a longer page goes last. No line ends on the last row: that would
	// scroll the first away.
	lines := frame(page, width, height-1)
	say(f.file, home+strings.Join(lines, clearLine+"\n")+clearLine+"\n"+clearBelow)
}

// frame is what fits of a page. Lines that are too wide are folded, where the page has the
// height for that, and else lose their ends.
func frame(page string, width, height int) []string {
	if lines := fold(page, width); len(lines) <= height {
		return lines
	}
	lines := strings.Split(strings.TrimSuffix(page, "\n"), "\n")
	if height = max(height, 1); len(lines) > height {
		lines = append(lines[:height-1], fmt.Sprintf("(%d more lines)", len(lines)-height+1))
	}
	for i, line := range lines {
		lines[i] = shortened(line, width)
	}
	return lines
}

// fold breaks the lines of a page that are wider than a terminal, where there is a blank
// if possible. They go on below where their second column begins.
func fold(page string, width int) (lines []string) {
	for _, line := range strings.Split(strings.TrimSuffix(page, "\n"), "\n") {
		indent := 0
		if at := secondColumn.FindStringIndex(line); at != nil {
			indent = len([]rune(line[:at[1]]))
		}
		if indent > width/2 {
			indent = 2
		}
		rest := []rune(line)
		for len(rest) > width && width > indent {
			end := lastBlank(rest[:width+1], indent)
			if end < 0 {
				end = width
			}
			lines = append(lines, strings.TrimRight(string(rest[:end]), " "))
			rest = []rune(strings.Repeat(" ", indent) + strings.TrimLeft(string(rest[end:]), " "))
		}
		lines = append(lines, string(rest))
	}
	return lines
}

// secondColumn follows two blanks or more.
var secondColumn = regexp.MustCompile(`^ *\S+(?: \S+)*  +`)

// lastBlank is where the last word ends that fits whole, or -1.
func lastBlank(runes []rune, indent int) int {
	for i := len(runes) - 1; i > indent; i-- {
		if runes[i] == ' ' {
			return i
		}
	}
	return -1
}
