package operate

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"pgapply/internal/plain"
)

// SequenceOutcome says what became of a sequence.
type SequenceOutcome string

// The outcomes.
const (
	// SequenceSet: the target's was moved, or would be without --dry-run.
	SequenceSet SequenceOutcome = "set"
	// SequenceKept: the target's is there already, or ahead, and was not touched.
	SequenceKept SequenceOutcome = "kept"
	// SequenceRefused: it could not be set, and Text says why.
	SequenceRefused SequenceOutcome = "error"
)

// SequenceResult is what was found and done about a sequence. The JSON names are stable.
type SequenceResult struct {
	// Sequence is its name on the publisher, as schema.name.
	Sequence string `json:"sequence"`
	// Target is its name on the target where that is another one.
	Target  string          `json:"target,omitempty"`
	Outcome SequenceOutcome `json:"outcome"`
	// Source is where the publisher's is; nil when it could not be read.
	Source *Position `json:"source"`
	// Before and After are where the target's was and is; nil when it could not be
	// read. In a dry run After is where it would be.
	Before *Position `json:"before"`
	After  *Position `json:"after"`
	// Text is what else is to be said; empty when there is nothing.
	Text   string `json:"text,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// SequenceReport is what a copy of sequences did. The JSON names are stable.
type SequenceReport struct {
	DryRun    bool             `json:"dry_run"`
	Sequences []SequenceResult `json:"sequences"`
	Set       int              `json:"set"`
	Kept      int              `json:"kept"`
	Errors    int              `json:"errors"`
}

func (r *SequenceReport) add(result SequenceResult) {
	r.Sequences = append(r.Sequences, result)
	switch result.Outcome {
	case SequenceSet:
		r.Set++
	case SequenceKept:
		r.Kept++
	case SequenceRefused:
		r.Errors++
	}
}

// Err is the refusal when a sequence could not be set, or nil.
func (r *SequenceReport) Err() error {
	if r.Errors == 0 {
		return nil
	}
	verb := "could not be set"
	if r.DryRun {
		verb = "could not be set, had this not been a dry run"
	}
	return refused("each error names its remedy; sequences that are set stay so", "%s %s", counted(int64(r.Errors), "sequence"), verb)
}

// Text writes a line for each sequence, and what else is to be said under it.
func (r *SequenceReport) Text() string {
	if len(r.Sequences) == 0 {
		return "there are no sequences to copy\n"
	}
	var lines strings.Builder
	table := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
	now := "TARGET NOW"
	if r.DryRun {
		now = "TARGET THEN"
	}
	fmt.Fprintf(table, "RESULT\tSEQUENCE\tSOURCE\tTARGET BEFORE\t%s\n", now)
	for _, s := range r.Sequences {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", s.Outcome, plain.Line(s.Sequence), s.Source, s.Before, s.After)
	}
	_ = table.Flush() // it writes to memory
	// What is to be said stands under its line, outside of the columns.
	var text strings.Builder
	place := -1 // of the line's sequence; the first line is the heading
	for line := range strings.Lines(lines.String()) {
		text.WriteString(line)
		if place++; place == 0 {
			continue
		}
		s := r.Sequences[place-1]
		if s.Target != "" {
			fmt.Fprintf(&text, "        on the target: %s\n", plain.Line(s.Target))
		}
		if s.Text != "" {
			fmt.Fprintf(&text, "        %s\n", plain.Line(s.Text))
		}
		if s.Remedy != "" {
			fmt.Fprintf(&text, "        remedy: %s\n", plain.Line(s.Remedy))
		}
	}
	dry := ""
	if r.DryRun {
		dry = "; this was a dry run, nothing was changed"
	}
	fmt.Fprintf(&text, "%d set, %d kept, %s%s\n", r.Set, r.Kept, counted(int64(r.Errors), "error"), dry)
	return text.String()
}
