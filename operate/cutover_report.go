package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/plain"
)

// Step is a line of the audit trail. The JSON names are stable.
type Step struct {
	At   time.Time `json:"at"`
	Step string    `json:"step"`
	Text string    `json:"text"`
}

// String writes the line.
func (s Step) String() string {
	return fmt.Sprintf("%s  %-10s %s", s.At.UTC().Format("2006-01-02T15:04:05.000Z"), s.Step, plain.Line(s.Text))
}

// CutoverReport is what a cutover found and did. The JSON names are stable.
type CutoverReport struct {
	Subscription string `json:"subscription"`
	DryRun       bool   `json:"dry_run"`
	// Safe: nothing stands against a cutover now; otherwise Reasons do.
	Safe    bool     `json:"safe"`
	Reasons []string `json:"reasons,omitempty"`
	// Findings are all answers, with their remedies.
	Findings []Finding `json:"findings"`
	// Steps are what was done, and Done says that it was all.
	Steps []Step `json:"steps"`
	Done  bool   `json:"done"`
	// FinalLSN is up to where the publisher's changes are applied.
	FinalLSN state.Position `json:"final_lsn"`
	// DowntimeSeconds is from when writes had stopped until applications may write again.
	DowntimeSeconds float64         `json:"downtime_seconds"`
	Sequences       *SequenceReport `json:"sequences,omitempty"`
	Verification    *Verification   `json:"verification,omitempty"`
	// Next is what to do now, Undo how to go back; SQL and commands.
	Next []string `json:"next"`
	Undo []string `json:"undo,omitempty"`
}

func (c *cutover) step(name, format string, arguments ...any) {
	s := Step{At: time.Now(), Step: name, Text: fmt.Sprintf(format, arguments...)}
	c.report.Steps = append(c.report.Steps, s)
	if c.options.Tell != nil {
		c.options.Tell(s)
	}
}

// readOnlySQL and writableSQL are for the publisher's database.
func (c *cutover) readOnlySQL() string {
	return "ALTER DATABASE " + quoteIdentifier(c.database) + " SET default_transaction_read_only = on"
}

func (c *cutover) writableSQL() string { return writableAgain(c.database) }

// writableAgain is to be typed in the database itself, where each transaction begins
// read-only.
func writableAgain(database string) string {
	return "BEGIN READ WRITE; ALTER DATABASE " + quoteIdentifier(database) + " RESET default_transaction_read_only; COMMIT"
}

func quoteIdentifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// explain says how to go back from where a cutover broke off, once writes rest.
func (c *cutover) explain() {
	if c.stopped.IsZero() {
		return
	}
	if c.options.SetReadOnly {
		c.report.Undo = append(c.report.Undo, "to give the publisher's database back to writers, on it: "+c.writableSQL())
	}
	c.report.Undo = append(c.report.Undo, "the subscription goes on; to try again: pgapply cutover")
}

// broken is the error of a cutover that broke off.
func (c *cutover) broken(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if typed, ok := errors.AsType[*apply.Error](err); ok && typed.Class == apply.Refused {
		return err
	}
	return &apply.Error{Class: apply.Other, Hint: "repeat it, or go back as the report says", Err: fmt.Errorf("the cutover was stopped: %w", context.Cause(ctx))}
}

// goOn says what to do after a cutover.
func (c *cutover) goOn() {
	next := func(format string, arguments ...any) {
		c.report.Next = append(c.report.Next, fmt.Sprintf(format, arguments...))
	}
	next("point the applications to the target")
	if c.options.Reverse {
		next("stop the runner of subscription %q, then replicate back: %s", c.options.Name, c.reverseCommand())
	}
	next("once there is no way back, stop the runner and run: pgapply cleanup --name %s", c.options.Name)
	if c.options.SetReadOnly {
		c.report.Undo = append(c.report.Undo, "to let the publisher's database be written again, on it: "+c.writableSQL())
	}
	c.report.Undo = append(c.report.Undo, fmt.Sprintf("to replicate on as before, if nothing was written to the target: pgapply resume --name %s", c.options.Name))
}

// reverseCommand replicates what is written on the target back to the publisher. Where
// the target cannot tell what came from there (before 16), nothing must be replicated in
// the other direction at the same time.
func (c *cutover) reverseCommand() string {
	command := fmt.Sprintf(`pgapply run --name %[1]s --source "$PGAPPLY_TARGET" --target "$PGAPPLY_SOURCE" --publication %[1]s --slot %[1]s --create-slot=false --copy-data=false`, c.options.ReverseName)
	if c.target.server.Version >= originsTold {
		command += " --origin none"
	}
	return command
}

// originsTold is the first version that can leave out what was replicated to it.
const originsTold = 160000

// Text is the report without the steps, which were told as they happened.
func (r *CutoverReport) Text() string {
	var text strings.Builder
	if r.DryRun || !r.Safe && len(r.Findings) > 0 {
		checkup := Checkup{Findings: r.Findings}
		checkup.count()
		text.WriteString(checkup.Text())
		if r.Safe {
			text.WriteString("safe now: yes\n")
		} else {
			text.WriteString("safe now: no\n")
			for _, reason := range r.Reasons {
				fmt.Fprintf(&text, "  because %s\n", plain.Line(reason))
			}
		}
		return text.String()
	}
	if r.Sequences != nil && r.Sequences.Errors > 0 {
		text.WriteString(r.Sequences.Text())
	}
	if v := r.Verification; v != nil && v.Err() != nil {
		text.WriteString(v.Text())
	}
	if r.Done && r.DowntimeSeconds > 0 {
		fmt.Fprintf(&text, "writes rested for %s\n", seconds(r.DowntimeSeconds))
	}
	for _, next := range r.Next {
		fmt.Fprintf(&text, "next: %s\n", next)
	}
	for _, undo := range r.Undo {
		fmt.Fprintf(&text, "undo: %s\n", undo)
	}
	return text.String()
}
