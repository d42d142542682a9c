package operate

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"pgapply/apply"
	"pgapply/internal/plain"
	"pgapply/operate/verify"
)

// Verification is what a comparison found. The JSON names are stable.
type Verification struct {
	Subscription string `json:"subscription"`
	*verify.Report
	// TablesNotReady are tables that were not compared, since they do not take part yet.
	TablesNotReady []TableView `json:"not_ready"`
	// Applied: differences were repaired.
	Applied bool `json:"applied"`
}

// Err is nil when everything that was chosen could be compared and is equal. What a
// repair has put right counts as equal.
func (v *Verification) Err() error {
	switch {
	case v.Differing-v.Repaired-v.Spared > 0, v.Unexamined > 0:
		return &DifferenceError{v}
	case v.NotCompared > 0:
		return refused("the list names the reason", "%s could not be compared", counted(int64(v.NotCompared), "table"))
	case v.Unsettled > 0:
		hint := "run it again while fewer rows change"
		for i := range v.Tables {
			if v.Tables[i].Behind != "" {
				hint = "see `pgapply status` for what keeps the runner, then run it again"
			}
		}
		return &apply.Error{Class: apply.Other, Hint: hint, Retryable: true, Err: fmt.Errorf("whether %s equal is not known", are(v.Unsettled, "row"))}
	}
	return nil
}

func are(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun + " is"
	}
	return counted(n, noun) + " are"
}

// difference says in a few words how much differs.
func (v *Verification) difference() string {
	tables := int64(0)
	for i := range v.Tables {
		if t := &v.Tables[i]; t.Missing+t.Extra+t.Different+t.Unexamined > 0 {
			tables++
		}
	}
	text := counted(v.Differing, "row")
	if v.Repaired+v.Spared > 0 {
		text += fmt.Sprintf(" (%s)", v.repaired())
	}
	if v.Unexamined > 0 {
		text += fmt.Sprintf(", and chunks with %s more", counted(v.Unexamined, "row"))
	}
	return text + " in " + counted(tables, "table")
}

func (v *Verification) repaired() string {
	text := count(v.Repaired) + " repaired"
	if v.Spared > 0 {
		text += fmt.Sprintf(", %s equal by then", count(v.Spared))
	}
	return text
}

// Text writes a line for each table, and under it what differs.
func (v *Verification) Text() string {
	rows := [][]string{{"table", "source rows", "target rows", "missing", "extra", "different", "time"}}
	for i := range v.Tables {
		t := &v.Tables[i]
		took := duration(time.Duration(t.Seconds * float64(time.Second)))
		if t.Error != "" {
			rows = append(rows, []string{plain.Line(t.Table), "", "", "", "", "", took})
			continue
		}
		rows = append(rows, []string{plain.Line(t.Table), count(t.SourceRows), count(t.TargetRows), count(t.Missing), count(t.Extra), count(t.Different), took})
	}
	var text strings.Builder
	place := -1 // of the line's table; the first line is the heading
	for line := range strings.Lines(columns(rows, "lrrrrrr")) {
		text.WriteString(line)
		if place >= 0 {
			tableLines(&text, &v.Tables[place])
		}
		place++
	}
	v.notes(&text)
	return text.String()
}

func tableLines(text *strings.Builder, t *verify.TableReport) {
	line := func(format string, arguments ...any) {
		text.WriteString("    " + plain.Line(fmt.Sprintf(format, arguments...)) + "\n")
	}
	if t.Error != "" {
		line("not compared: %s", t.Error)
	}
	for i := range t.Differences {
		line("%s", differenceLine(t, &t.Differences[i]))
	}
	if more := t.Missing + t.Extra + t.Different - int64(len(t.Differences)); more > 0 {
		line("and %s more", count(more))
	}
	if t.Unexamined > 0 {
		line("chunks with %s differ too, and were not looked at row by row", counted(t.Unexamined, "row"))
	}
	if t.Unsettled > 0 {
		line("%s: %s", counted(t.Unsettled, "row"), unsettledBecause(t))
	}
}

func unsettledBecause(t *verify.TableReport) string {
	if t.Behind != "" {
		return t.Behind
	}
	return "changed whenever compared, so that nobody knows"
}

func differenceLine(t *verify.TableReport, d *verify.Difference) string {
	var key []string
	for i, name := range t.Key {
		key = append(key, name+"="+quotedValue(d.Key[i]))
	}
	text := strings.Join(key, ", ")
	if len(t.Key) == 0 {
		text = "row with hash " + d.Key[0]
	}
	switch d.Kind {
	case verify.Missing:
		text = "missing    " + text
	case verify.Extra:
		text = "extra      " + text
	case verify.Different:
		text = "different  " + text
		if len(d.Columns) > 0 {
			text += ": " + strings.Join(d.Columns, ", ")
		}
	}
	if d.SourceRows+d.TargetRows > 0 {
		text += fmt.Sprintf(" (%s on the publisher, %s on the target)", counted(d.SourceRows, "row"), count(d.TargetRows))
	}
	return text
}

// quotedValue writes a value of a key such that it can be told from what stands around
// it, in a line of moderate length.
func quotedValue(value string) string {
	const limit = 200
	if runes := []rune(value); len(runes) > limit {
		value = string(runes[:limit]) + "..."
	}
	if strings.Trim(value, "0123456789abcdefABCDEF-.:+") == "" && value != "" {
		return value
	}
	return fmt.Sprintf("%q", value)
}

// notes are what is to be said of the whole.
func (v *Verification) notes(text *strings.Builder) {
	for _, table := range v.TablesNotReady {
		fmt.Fprintf(text, "not ready, and not compared: %s (%s)\n", plain.Line(table.Table), table.StateText)
	}
	if v.Alone {
		text.WriteString("no runner lives: compared as it is, and what is on its way counts as different\n")
	}
	equal := 0
	for i := range v.Tables {
		if v.Tables[i].Equal() {
			equal++
		}
	}
	sampled := ""
	if v.Sample > 1 {
		sampled = fmt.Sprintf(", one in %d", v.Sample)
	}
	fmt.Fprintf(text, "%d of %s equal; %s compared%s in %s", equal, counted(int64(len(v.Tables)), "table"), counted(v.Rows, "row"), sampled, seconds(v.Seconds))
	if v.Seconds > 0 && v.Rows > 0 {
		fmt.Fprintf(text, ", %s rows/s", count(int64(float64(v.Rows)/v.Seconds)))
	}
	text.WriteString("\n")
	if v.Applied {
		fmt.Fprintf(text, "%s; %s\n", counted(v.Differing, "difference"), v.repaired())
	}
}

// Script is the report as an SQL script for the target, with the statements that would
// repair what differs.
func (v *Verification) Script() string {
	var text strings.Builder
	for line := range strings.Lines(v.Text()) {
		text.WriteString("-- " + line)
	}
	if v.Differing == 0 {
		return text.String()
	}
	text.WriteString("-- Run this on the target, while nothing of these rows is on its way.\n" +
		"SET client_encoding = 'UTF8'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET standard_conforming_strings = on; SET lc_monetary = 'C';\n" +
		"SET session_replication_role = replica; -- as a superuser: no triggers, no foreign keys\n")
	for i := range v.Tables {
		t := &v.Tables[i]
		left := t.Missing + t.Extra + t.Different
		for place := range t.Differences {
			if statement := t.Differences[place].Repair; statement != "" {
				text.WriteString(statement + "\n")
				left--
			}
		}
		if left > 0 {
			fmt.Fprintf(&text, "-- %s of table %s without a statement: more than --limit, or its rows have no key\n", counted(left, "difference"), plain.Line(t.Table))
		}
	}
	return text.String()
}

// Different tells whether the error is that rows differ.
func Different(err error) bool {
	_, ok := errors.AsType[*DifferenceError](err)
	return ok
}

// VerifyLine says how far a comparison is, what matters most first.
func VerifyLine(s verify.State) string {
	if s.Tables == 0 {
		return "looks at the tables"
	}
	line := fmt.Sprintf("%d%% in %s; %d of %s; %s read", int(100*s.Share), duration(s.Elapsed), s.Done, counted(int64(s.Tables), "table"), counted(s.Rows, "row"))
	if elapsed := s.Elapsed.Seconds(); elapsed >= 1 {
		line += fmt.Sprintf(", %s/s", count(int64(float64(s.Rows)/elapsed)))
	}
	return line + after("; ", s.Running)
}
