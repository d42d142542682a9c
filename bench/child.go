package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"pgapply/internal/faultnet"
)

// child runs decode, pgapply or pipe: this program again, so that CPU time and memory are
// the contender's alone. It ends when its standard input does, and so with us.
type child struct {
	*drain
	process *process
	proxy   *faultnet.Proxy
}

func (c *child) job() job {
	return job{
		Source: c.publisher.URI(sourceDatabase), Target: c.target.URI(drainDatabase), Slot: c.slot,
		Streaming: c.contender.streaming, Binary: c.contender.binary, Verbose: c.options.verbose,
		Workers: c.contender.workers, Group: c.contender.group, Batch: c.contender.batch,
		Tables: c.backlog.workload.tables, Copy: c.backlog.workload.copied,
		DeferIndexes: c.contender.deferIndexes, Analyze: !c.contender.noAnalyze, TableJobs: c.contender.jobs, Split: c.contender.split,
	}
}

// prepare lets pgapply adopt the slot, as CREATE SUBSCRIPTION does for the native
// one: it runs to the end of what comes before the backlog, which is nothing.
func (c *child) prepare(ctx context.Context) error {
	if c.contender.kind == decode {
		return nil
	}
	j := c.job()
	var err error
	j.Until, err = position(ctx, j.Source, fmt.Sprintf(`SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '%s'`, c.slot))
	if err != nil {
		return err
	}
	p, err := c.launch(j)
	if err != nil {
		return err
	}
	select {
	case <-p.exited:
		return p.end()
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), p.end())
	}
}

func (c *child) start(context.Context) (<-chan struct{}, <-chan struct{}, error) {
	j := c.job()
	switch {
	case c.contender.kind == decode:
		j.Until = c.backlog.until
	case c.options.profile != "":
		j.Profile = fmt.Sprintf("%s-%s-%s-%d.pprof", c.options.profile, c.backlog.workload.name, strings.ReplaceAll(c.contender.name, "/", "_"), c.round+1)
	}
	var err error
	if c.contender.rtt > 0 {
		if c.proxy, j.Target, err = faultnet.ListenURI(j.Target); err != nil {
			return nil, nil, err
		}
		c.proxy.Delay(c.contender.rtt / 2)
	}
	if c.process, err = c.launch(j); err != nil {
		return nil, nil, err
	}
	return c.process.done, c.process.exited, nil
}

func (c *child) peak() (int64, error) { return peakMemory(c.process.command.Process.Pid) }

func (c *child) stop(context.Context) (time.Duration, error) {
	err := c.process.end()
	c.measure.tally = c.process.tally
	if c.proxy != nil {
		c.proxy.Close()
	}
	state := c.process.command.ProcessState
	return state.UserTime() + state.SystemTime(), err
}

func (c *child) launch(j job) (*process, error) {
	program := c.contender.program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	return launch(program, c.contender.kind, j)
}
