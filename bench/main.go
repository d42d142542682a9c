// Command bench measures pgapply beside what a user would pick instead, the native
// subscription, and beside the physical limit, which is how fast the publisher
// decodes. Everything that is compared was measured in one run, in turn:
//
//	backlog, written once ──► slot ──► a clone of it for each drain
//	                                     ├─ decode    receives and throws away
//	                                     ├─ native    CREATE SUBSCRIPTION
//	                                     └─ pgapply   in a process of its own
//	target's start state ──► template ──► a copy of it for each drain
//
// It is a harness, not a test: it asserts that both ends have the same rows after
// every drain, and nothing about time. README.md says how to read what it prints.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := dispatch(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// dispatch runs the harness, or what the harness runs in a process of its own.
func dispatch(ctx context.Context, arguments []string) error {
	if len(arguments) == 2 {
		switch arguments[0] {
		case pgapply:
			return childMain(ctx, arguments[1], runApply)
		case decode:
			return childMain(ctx, arguments[1], runDecode)
		case pipe:
			return childMain(ctx, arguments[1], runPipe)
		}
	}
	o, err := parseOptions(arguments)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	return run(ctx, o)
}

func run(ctx context.Context, o options) (err error) {
	s, err := startServers(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r, err := newReport(ctx, o, s)
	if err != nil {
		return err
	}
	fmt.Println(r.Server)
	for _, w := range o.workloads {
		began := time.Now()
		measured, err := s.measure(ctx, o, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		r.Results = append(r.Results, measured...)
		fmt.Printf("%s took %.0f s in all\n", w.name, time.Since(began).Seconds())
	}
	r.Finished = time.Now().UTC()
	fmt.Printf("\n%s", r.markdown())
	if o.save == "" {
		return nil
	}
	return r.save(o.save)
}

// measure measures one workload with each of its contenders, in every round in
// another order.
func (s *servers) measure(ctx context.Context, o options, w workload) (_ []*result, err error) {
	contenders := o.contendersOf(w)
	results := make([]*result, len(contenders))
	for i, c := range contenders {
		results[i] = &result{Workload: w.name, Contender: c.name}
	}
	b, err := s.prepare(ctx, w)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.discard(context.WithoutCancel(ctx), b)) }()
	for round := range o.rounds {
		for turn := range contenders {
			i := (turn + round) % len(contenders)
			m, err := s.turn(ctx, o, b, contenders[i], round)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", contenders[i].name, round+1, err)
			}
			results[i].Measures = append(results[i].Measures, m)
			fmt.Printf("%s round %d  %-28s %s\n", w.name, round+1, contenders[i].name, m)
		}
	}
	return results, nil
}
