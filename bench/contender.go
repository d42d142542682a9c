package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The kinds of contenders.
const (
	decode  = "decode"
	native  = "native"
	pgapply = "pgapply"
	pipe    = "pipe" // copies only
)

// contender is one way to drain a backlog, or to copy tables. Its zero settings are the defaults of
// its kind.
type contender struct {
	name      string // as on the command line
	kind      string
	binary    bool
	streaming string
	workers   int
	group     int           // most transactions in one of the target's
	batch     *int64        // most bytes that are merged at a time; 0 for row by row
	rtt       time.Duration // between pgapply and the target
	// Of a copy.
	deferIndexes bool
	noAnalyze    bool
	jobs         int
	split        *int64 // bytes of a table from which on it is copied in parts; 0 for never

	program string // this harness built from another commit, that takes its place
}

// parseContenders reads names such as pgapply+binary+workers=1.
func parseContenders(list string) ([]contender, error) {
	if list == "" {
		return nil, nil
	}
	var contenders []contender
	for name := range strings.SplitSeq(list, ",") {
		c, err := parseContender(name)
		if err != nil {
			return nil, fmt.Errorf("contender %q: %w", name, err)
		}
		contenders = append(contenders, c)
	}
	return contenders, nil
}

func parseContender(name string) (contender, error) {
	kind, settings, _ := strings.Cut(name, "+")
	c := contender{name: name, kind: kind}
	if kind != decode && kind != native && kind != pgapply && kind != pipe {
		return c, fmt.Errorf("is not decode, native, pgapply or pipe, with settings after a +")
	}
	if settings == "" {
		return c, nil
	}
	for setting := range strings.SplitSeq(settings, "+") {
		key, value, _ := strings.Cut(setting, "=")
		if err := c.set(key, value); err != nil {
			return c, fmt.Errorf("setting %q: %w", setting, err)
		}
	}
	return c, nil
}

func (c *contender) set(key, value string) (err error) {
	switch {
	case key == "binary" && value == "":
		c.binary = true
	case key == "streaming" && c.kind != pipe && (value == "off" || value == "on" || value == "parallel"):
		c.streaming = value
	case key == "workers" && c.kind == pgapply:
		c.workers, err = strconv.Atoi(value)
	case key == "group" && c.kind == pgapply:
		c.group, err = strconv.Atoi(value)
	case key == "batch" && c.kind == pgapply:
		c.batch = new(int64)
		*c.batch, err = strconv.ParseInt(value, 10, 64)
	case key == "rtt" && c.kind == pgapply:
		c.rtt, err = time.ParseDuration(value)
	case key == "defer-indexes" && value == "" && c.kind == pgapply:
		c.deferIndexes = true
	case key == "analyze" && value == "off" && c.kind == pgapply:
		c.noAnalyze = true
	case key == "jobs" && c.kind == pgapply:
		c.jobs, err = strconv.Atoi(value)
	case key == "split" && c.kind == pgapply:
		c.split = new(int64)
		*c.split, err = strconv.ParseInt(value, 10, 64)
	case key == "program" && c.kind != native && value != "":
		c.program = value
	default:
		err = fmt.Errorf("%s has no such setting", c.kind)
	}
	return err
}
