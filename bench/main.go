// Command bench measures how fast a backlog drains: the same transactions, from
// the same publisher, once into a native subscription and once into pgapply, in
// turn and side by side in one run. Nothing is compared across runs. With -lag it
// measures how long after the commit of one large transaction its rows are visible.
//
//	publisher ──► slot of the native subscription ──► database native
//	          ──► slot of pgapply                 ──► database pgapply
//
// Wall time is what a user sees; on a shared machine the CPU seconds of the
// backends that apply are the steadier figure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"text/tabwriter"
	"time"
)

func main() {
	var o options
	flag.IntVar(&o.transactions, "transactions", 50_000, "transactions of each round's backlog")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds, each with native and pgapply")
	flag.IntVar(&o.major, "major", 18, "PostgreSQL major of both servers")
	flag.StringVar(&o.workload, "workload", "tpcb", "tpcb, insert, load, update or delete")
	flag.BoolVar(&o.lag, "lag", false, "measure the lag after the commit of a transaction of that many rows, streamed in parallel (workload load or update)")
	flag.BoolVar(&o.track, "track-commit-timestamp", false, "turn the target's setting of that name on")
	profile := flag.String("cpuprofile", "", "write a CPU profile of pgapply's rounds to this `FILE`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := profiled(*profile, func() error { return run(ctx, o) }); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// profiled writes a CPU profile of what run does, unless file is empty.
func profiled(file string, run func() error) error {
	if file == "" {
		return run()
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(out); err != nil {
		return err
	}
	err = run()
	pprof.StopCPUProfile()
	return errors.Join(err, out.Close())
}

type options struct {
	transactions, rounds, major int
	workload                    string
	track, lag                  bool
}

// measure is what one drain of the backlog took.
type measure struct {
	wall time.Duration
	// backend is the CPU time of the target's process that applied.
	backend time.Duration
	// own is the CPU time of this process; the native subscription has none.
	own time.Duration
}

func run(ctx context.Context, o options) (err error) {
	load, known := workloads[o.workload]
	if !known {
		return fmt.Errorf("no workload %q", o.workload)
	}
	p, err := newPair(ctx, o, load)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	measures := map[string][]measure{}
	if o.lag {
		return p.lags(ctx, o, load)
	}
	for round := range o.rounds {
		if err := p.fill(ctx, load, round); err != nil {
			return err
		}
		contenders := []contender{p.native(), p.pgapply()}
		if round%2 == 1 {
			slices.Reverse(contenders)
		}
		for _, c := range contenders {
			m, err := p.drain(ctx, c, round)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			fmt.Printf("round %d  %-8s %6.2f s  backend %5.2f CPU s  pgapply %5.2f CPU s\n",
				round+1, c.name, m.wall.Seconds(), m.backend.Seconds(), m.own.Seconds())
			measures[c.name] = append(measures[c.name], m)
		}
		if err := p.compare(ctx, load); err != nil {
			return err
		}
	}
	report(o, measures)
	return nil
}

func report(o options, measures map[string][]measure) {
	median := func(name string, of func(measure) time.Duration) float64 {
		var values []time.Duration
		for _, m := range measures[name] {
			values = append(values, of(m))
		}
		slices.Sort(values)
		return values[len(values)/2].Seconds()
	}
	wall := func(m measure) time.Duration { return m.wall }
	backend := func(m measure) time.Duration { return m.backend }
	own := func(m measure) time.Duration { return m.own }
	fmt.Printf("\nmedians of %d rounds, %d transactions of %s, PostgreSQL %d, commit timestamps tracked: %t\n",
		o.rounds, o.transactions, o.workload, o.major, o.track)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\twall s\tbackend CPU s\tpgapply CPU s\t")
	for _, name := range []string{"native", "pgapply"} {
		fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%.2f\t\n", name, median(name, wall), median(name, backend), median(name, own))
	}
	fmt.Fprintf(table, "pgapply / native\t%.2f\t%.2f\t\t\n",
		median("pgapply", wall)/median("native", wall), median("pgapply", backend)/median("native", backend))
	_ = table.Flush() // to standard output
}
