package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"pgapply/internal/faultnet"
	"pgapply/internal/lsn"
)

// job is what a child process is told.
type job struct {
	Source, Target, Slot string
	Streaming            string
	Binary, Verbose      bool
	Workers, Group       int
	Batch                *int64
	// Until: decode is done with the first commit that ends beyond it, pgapply ends
	// before that. Zero for no end.
	Until   lsn.LSN
	Profile string
}

// child runs decode or pgapply: this program again, so that CPU time and memory are
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

// process is a child that runs.
type process struct {
	command *exec.Cmd
	input   io.Closer
	done    chan struct{} // closed when it says that it is done
	exited  chan struct{} // closed when it is gone, with
	err     error         // what that came to
	tally   tally         // and what it said last
}

// A child says what is a line of its own on standard output: that decode is done, and
// in the end pgapply's tally.
const saidDone = "done"

// tally is what pgapply has counted.
type tally struct {
	Transactions int64 `json:"transactions,omitempty"`
	Groups       int64 `json:"groups,omitempty"`  // of the target's transactions
	Replays      int64 `json:"replays,omitempty"` // of groups, one transaction after the other
}

func (c *child) launch(j job) (*process, error) {
	program := c.contender.program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	p := &process{command: exec.Command(program, c.contender.kind, string(text)), done: make(chan struct{}), exited: make(chan struct{})}
	p.command.Stderr = os.Stderr
	input, err := p.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	p.input = input
	go func() {
		defer close(p.exited)
		err := p.listen(output)
		p.err = errors.Join(p.command.Wait(), err)
	}()
	return p, nil
}

// listen hears what the process says, until it has closed its output.
func (p *process) listen(output io.Reader) error {
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if lines.Text() == saidDone {
			close(p.done)
			continue
		}
		if err := json.Unmarshal(lines.Bytes(), &p.tally); err != nil {
			return fmt.Errorf("it said %q: %w", lines.Text(), err)
		}
	}
	return lines.Err()
}

// end ends the process in order, and waits for it.
func (p *process) end() error {
	err := p.input.Close()
	<-p.exited
	if errors.Is(err, os.ErrClosed) {
		err = nil // it was gone already
	}
	return errors.Join(p.err, err)
}
