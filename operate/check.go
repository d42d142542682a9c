package operate

import (
	"context"
	"fmt"

	"pgapply/apply"
	"pgapply/internal/plain"
)

// Level says how bad a finding is.
type Level string

// The levels of findings.
const (
	// OK: it is as it should be.
	OK Level = "ok"
	// Warning: a start works, and somebody should know this.
	Warning Level = "warning"
	// Failure: a start is refused, or the subscription would stop.
	Failure Level = "error"
)

// Finding is the answer to one question of a check. The JSON names are stable.
type Finding struct {
	Level Level `json:"level"`
	// Subject is what was looked at: a topic, or a table as schema.table.
	Subject string `json:"subject"`
	Text    string `json:"text"`
	// Remedy is what to do; empty where nothing is to be done.
	Remedy string `json:"remedy,omitempty"`
}

func ok(subject, format string, arguments ...any) []Finding {
	return []Finding{{Level: OK, Subject: subject, Text: fmt.Sprintf(format, arguments...)}}
}

func warning(subject, remedy, format string, arguments ...any) []Finding {
	return []Finding{{Level: Warning, Subject: subject, Text: fmt.Sprintf(format, arguments...), Remedy: remedy}}
}

func failure(subject, remedy, format string, arguments ...any) []Finding {
	return []Finding{{Level: Failure, Subject: subject, Text: fmt.Sprintf(format, arguments...), Remedy: remedy}}
}

// failed makes a finding of an error, with the remedy that it carries.
func failed(subject string, err error) []Finding {
	return failure(subject, apply.HintOf(err), "%s", plain.Line(err.Error()))
}

// question is one thing that a check wants to know. It looks at facts that were
// gathered before, and says also when all is well, unless another one does.
type question struct {
	needs needs
	ask   func(*facts) []Finding
}

// needs says which end a question is about. It is not asked when that could not be.
type needs uint8

const (
	aTarget needs = 1 << iota
	aPublisher
	both = aTarget | aPublisher
)

// questions in the order in which they are asked and shown. One that is new gets a
// function of its own and a line here.
func questions() []question {
	return []question{
		{0, checkReachable},
		{aTarget, checkTarget},
		{aPublisher, checkLogical},
		{aPublisher, checkPlugins},
		{aPublisher, checkStandby},
		{both, checkPair},
		{aPublisher, checkPublications},
		{aPublisher, checkBeyond},
		{both, checkEncodings},
		{aTarget, checkState},
		{both, checkSlot},
		{aPublisher, checkKeeping},
		{both, checkWaits},
		{aPublisher, checkFailover},
		{both, checkTwoPhase},
		{both, checkPublisherRoom},
		{both, checkCopyRoom},
		{aTarget, checkConnections},
		{aTarget, checkOrigins},
		{aTarget, checkTerms},
		{aTarget, checkSession},
		{aTarget, checkCommitTimestamps},
		{both, checkClocks},
		{0, checkSpool},
		{aPublisher, checkPolicies},
		{both, checkTables},
		{both, checkFilled},
	}
}

// Checkup is what a check found. The JSON names are stable.
type Checkup struct {
	Subscription string    `json:"subscription"`
	Findings     []Finding `json:"findings"`
	Errors       int       `json:"errors"`
	Warnings     int       `json:"warnings"`
}

// Check looks at both ends as `run` with the same options would find them, and
// changes nothing on either. Without Publications the recorded ones are checked. An
// end that cannot be reached is a finding; the error is for options that are wrong
// and for a session that breaks off.
func Check(ctx context.Context, options apply.Options) (*Checkup, error) {
	f, err := gather(ctx, options)
	if err != nil {
		return nil, err
	}
	return f.checkup(), nil
}

// checkup asks all questions that can be asked.
func (f *facts) checkup() *Checkup {
	c := &Checkup{Subscription: f.options.Name, Findings: []Finding{}}
	var have needs
	if f.target != nil {
		have |= aTarget
	}
	if f.publisher != nil {
		have |= aPublisher
	}
	for _, question := range questions() {
		if question.needs&have == question.needs {
			c.Findings = append(c.Findings, question.ask(f)...)
		}
	}
	nameFindings(c.Findings, c.Subscription)
	c.count()
	return c
}

func (c *Checkup) count() {
	for _, finding := range c.Findings {
		switch finding.Level {
		case Failure:
			c.Errors++
		case Warning:
			c.Warnings++
		case OK:
		}
	}
}

// Err is the refusal that a start would meet, or nil.
func (c *Checkup) Err() error {
	if c.Errors == 0 {
		return nil
	}
	return refused("each error names its remedy; check again afterwards",
		"subscription %q is not ready: %s", c.Subscription, counted(int64(c.Errors), "error"))
}
