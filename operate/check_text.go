package operate

import (
	"fmt"
	"strings"

	"pgapply/internal/plain"
)

// Text writes one line for each finding, and under it the remedy.
func (c *Checkup) Text() string {
	widest := 0
	for _, finding := range c.Findings {
		widest = max(widest, min(len(finding.Subject), 30)) // a longer one moves its own line only
	}
	var text strings.Builder
	for _, finding := range c.Findings {
		fmt.Fprintf(&text, "%-8s %-*s  %s\n", finding.Level, widest, finding.Subject, plain.Line(finding.Text))
		if finding.Remedy != "" {
			fmt.Fprintf(&text, "%-8s %-*s  remedy: %s\n", "", widest, "", plain.Line(finding.Remedy))
		}
	}
	fine := len(c.Findings) - c.Errors - c.Warnings
	fmt.Fprintf(&text, "%s, %s, %d ok\n", counted(int64(c.Errors), "error"), counted(int64(c.Warnings), "warning"), fine)
	return text.String()
}
