package faultnet

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A script says, a line each, what happens when:
//
//	before COMMIT 3: cut
//	after STATUS UPDATE: reset, refuse for 500ms
//	reply PREPARE TRANSACTION: mute
//	now: stall server for 2s, delay 20ms, trickle client 500 B/s for 1s
//	# a remark
//
// A moment is `now`, or a statement with the number of its occurrence from now on over
// all connections (1 where there is none), and whether it is to happen before it, after
// it or in place of its reply. See [Point], [Proxy.Cut] and [Verb].

// Rule is one line of a script.
type Rule struct {
	When    Moment
	Actions []Action
}

// Moment is when the actions of a rule are due; without a Command it is now.
type Moment struct {
	Point   Point
	Command string
	Nth     int
}

// ScriptError says what is wrong with a script.
type ScriptError struct {
	Line   int // from 1
	Reason string
}

func (e *ScriptError) Error() string {
	return fmt.Sprintf("fault script, line %d: %s", e.Line, e.Reason)
}

// Play does what a script wants now and arms the rest. It returns a fault for each
// rule. A script with an error does nothing; the error is a *ScriptError.
func (p *Proxy) Play(script string) ([]*Fault, error) {
	rules, err := Parse(script)
	if err != nil {
		return nil, err
	}
	faults := make([]*Fault, len(rules))
	for i, rule := range rules {
		if rule.When.Command != "" {
			faults[i] = p.await(rule.When, rule.Actions...)
			continue
		}
		for _, action := range rule.Actions {
			p.Do(action)
		}
		faults[i] = &Fault{fired: make(chan struct{})}
		close(faults[i].fired)
	}
	return faults, nil
}

// Parse reads a script. The error is a *ScriptError.
func Parse(script string) ([]Rule, error) {
	var rules []Rule
	number := 0
	for line := range strings.Lines(script) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		rule, err := parseRule(line)
		if err != nil {
			return nil, &ScriptError{Line: number, Reason: err.Error()}
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// String is the rule as a line of a script.
func (r Rule) String() string {
	actions := make([]string, len(r.Actions))
	for i, action := range r.Actions {
		actions[i] = action.String()
	}
	return r.When.String() + ": " + strings.Join(actions, ", ")
}

// String is the moment in a script.
func (m Moment) String() string {
	if m.Command == "" {
		return "now"
	}
	return fmt.Sprintf("%s %s %d", points[m.Point], m.Command, m.Nth)
}

// String is the direction in a script: whose bytes go this way.
func (d Direction) String() string {
	switch d {
	case FromClient:
		return "client"
	case FromServer:
		return "server"
	default:
		return "both"
	}
}

var points = map[Point]string{Before: "before", After: "after", Reply: "reply"}

func parseRule(line string) (rule Rule, err error) {
	when, what, found := strings.Cut(line, ":")
	if !found {
		return rule, fmt.Errorf("%q has no colon between when and what", line)
	}
	if rule.When, err = parseMoment(strings.Fields(when)); err != nil {
		return rule, err
	}
	for action := range strings.SplitSeq(what, ",") {
		parsed, err := parseAction(strings.Fields(action))
		if err != nil {
			return rule, err
		}
		if parsed.onConnection() && rule.When.Command == "" {
			return rule, fmt.Errorf("%q: which connection? say %q, or a statement in place of now", parsed, parsed.Verb+" all")
		}
		rule.Actions = append(rule.Actions, parsed)
	}
	return rule, nil
}

func parseMoment(words []string) (m Moment, err error) {
	if len(words) == 1 && words[0] == "now" {
		return m, nil
	}
	known := false
	for point, name := range points {
		if len(words) > 0 && words[0] == name {
			m.Point, known = point, true
		}
	}
	if !known {
		return m, fmt.Errorf("%q is not now, nor before, after or reply with a statement", strings.Join(words, " "))
	}
	words, m.Nth = words[1:], 1
	if last := len(words) - 1; last > 0 && words[last][0] >= '0' && words[last][0] <= '9' {
		if m.Nth, err = strconv.Atoi(words[last]); err != nil || m.Nth < 1 {
			return m, fmt.Errorf("%q is not the number of a statement, from 1", words[last])
		}
		words = words[:last]
	}
	m.Command = strings.Join(words, " ")
	switch {
	case m.Command == "" || strings.Trim(m.Command, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_ ") != "":
		return m, fmt.Errorf("%q is not a statement such as COMMIT, PREPARE TRANSACTION or %s, in upper case", m.Command, StatusUpdate)
	case m.Command == StatusUpdate && m.Point == Reply:
		return m, fmt.Errorf("a %s has no reply", StatusUpdate)
	}
	return m, nil
}

// words are those of an action that are not read yet.
type words []string

func (w *words) next() string {
	if len(*w) == 0 {
		return ""
	}
	first := (*w)[0]
	*w = (*w)[1:]
	return first
}

func parseAction(text []string) (a Action, err error) {
	rest := words(text)
	a.Verb = Verb(rest.next())
	lasts := false
	switch a.Verb {
	case Cut, Reset, Mute:
		if len(rest) > 0 && rest[0] == "all" {
			a.All = rest.next() == "all"
		}
	case Stall, Resume:
		lasts = a.Verb == Stall
		a.From, err = parseDirection(rest.next())
	case Trickle:
		lasts = true
		if a.From, err = parseDirection(rest.next()); err == nil {
			a.Rate, err = parseRate(rest.next(), rest.next())
		}
	case Delay:
		lasts = true
		a.By, err = parseTime(rest.next())
	case Refuse:
		lasts = true
	case Accept:
	default:
		return a, fmt.Errorf("%q is not one of cut, reset, mute, stall, resume, delay, trickle, refuse, accept", a.Verb)
	}
	if err == nil && lasts && len(rest) > 0 && rest[0] == "for" {
		rest.next()
		a.Lasts, err = parseTime(rest.next())
	}
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%q follows %q, where nothing may", strings.Join(rest, " "), a)
	}
	if err != nil {
		return a, fmt.Errorf("%s: %w", a.Verb, err)
	}
	return a, nil
}

func parseDirection(word string) (Direction, error) {
	for _, d := range []Direction{FromClient, FromServer, BothWays} {
		if word == d.String() {
			return d, nil
		}
	}
	return 0, fmt.Errorf("%q is not client, server or both", word)
}

func parseTime(word string) (time.Duration, error) {
	d, err := time.ParseDuration(word)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a time such as 500ms", word)
	}
	return d, nil
}

func parseRate(number, unit string) (int, error) {
	rate, err := strconv.Atoi(number)
	if err != nil || rate <= 0 || unit != "B/s" {
		return 0, fmt.Errorf("%q is not a rate such as 500 B/s", strings.TrimSpace(number+" "+unit))
	}
	return rate, nil
}
