package main

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"
)

// options are the command line's.
type options struct {
	workloads  []workload
	contenders []contender // empty: each workload's own
	rounds     int
	major      int
	rtt        time.Duration
	cold       bool
	scale      float64
	track      bool
	limit      time.Duration
	profile    string
	save       string
	verbose    bool
}

func parseOptions(arguments []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	var names, contenders string
	flags.StringVar(&names, "workloads", strings.Join(workloadNames(), ","), "which to run, separated by commas")
	flags.StringVar(&contenders, "contenders", "", "who takes part, separated by commas, instead of each workload's own: decode, native, pgapply or pipe, "+
		"each with +binary, +streaming=off|on|parallel, and pgapply with +workers=N, +group=N (transactions), +batch=N (bytes, 0 for row by row), +rtt=30ms and +program=FILE (bench built from another commit); "+
		"of copies pgapply also with +defer-indexes, +jobs=N, +split=N (bytes, 0 for never) and +analyze=off")
	lag := flags.Bool("lag", false, "only L3 and L4: the lag after the commit of one large transaction")
	copies := flags.Bool("copy", false, "only C1 to C3: the initial copy")
	flags.Float64Var(&o.scale, "copy-scale", 1, "copy this `FACTOR` of the rows of C1 and C2, and of the tables of C3")
	flags.IntVar(&o.rounds, "rounds", 3, "how often each contender has its turn")
	flags.IntVar(&o.major, "major", 18, "PostgreSQL `MAJOR` of both servers, 15 or later")
	flags.DurationVar(&o.rtt, "rtt", 0, "let pgapply also run with this round-trip time between it and the target")
	flags.BoolVar(&o.cold, "cold", false, "a target with small shared_buffers whose files are not in the page cache when a drain begins")
	flags.BoolVar(&o.track, "track-commit-timestamp", false, "turn the target's setting of that name on")
	flags.DurationVar(&o.limit, "limit", 10*time.Minute, "how long one drain may take")
	flags.StringVar(&o.profile, "cpuprofile", "", "write pgapply's CPU profiles to `PREFIX`-workload-contender-round.pprof")
	flags.StringVar(&o.save, "save", "", "write the figures to a new file in this `DIRECTORY`, as JSON and as Markdown")
	flags.BoolVar(&o.verbose, "v", false, "show pgapply's log")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	if *lag {
		names = "L3,L4"
	}
	if *copies {
		names = "C1,C2,C3"
	}
	if flags.NArg() > 0 || o.rounds < 1 {
		return o, fmt.Errorf("usage: bench [flags], with at least one round: see bench -help")
	}
	if o.scale <= 0 {
		return o, fmt.Errorf("-copy-scale must be greater than 0")
	}
	if o.major < 15 {
		return o, fmt.Errorf("before 15 a trigger that a native subscription fires notifies nobody of the end of the backlog")
	}
	for name := range strings.SplitSeq(names, ",") {
		w, err := findWorkload(name, o.scale)
		if err != nil {
			return o, err
		}
		o.workloads = append(o.workloads, w)
	}
	o.contenders, err = parseContenders(contenders)
	return o, err
}

// contendersOf are those that take part in a workload.
func (o *options) contendersOf(w workload) []contender {
	chosen := o.contenders
	if len(chosen) == 0 {
		chosen = w.contenders
	}
	chosen = slices.DeleteFunc(slices.Clone(chosen), func(c contender) bool {
		return c.kind == decode && (w.live != nil || w.copied) || c.kind == pipe && !w.copied
	})
	if o.rtt > 0 && w.live == nil && !w.copied {
		far := contender{name: pgapply + "+rtt=" + o.rtt.String(), kind: pgapply, rtt: o.rtt}
		if !slices.ContainsFunc(chosen, func(c contender) bool { return c.name == far.name }) {
			chosen = append(chosen, far)
		}
	}
	return chosen
}
