package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

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

	// Copy makes the slot and copies the tables first, done when changes stream.
	Copy                  bool
	Tables                []string // that pipe copies
	DeferIndexes, Analyze bool
	TableJobs             int
	Split                 *int64
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

// A child says what is a line of its own on standard output: that decode or a copy is done, and
// in the end pgapply's tally.
const saidDone = "done"

// tally is what pgapply has counted.
type tally struct {
	Transactions int64 `json:"transactions,omitempty"`
	Groups       int64 `json:"groups,omitempty"`  // of the target's transactions
	Replays      int64 `json:"replays,omitempty"` // of groups, one transaction after the other
}

// launch starts a program, this one or the same of another commit, on a job.
func launch(program, kind string, j job) (*process, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	p := &process{command: exec.Command(program, kind, string(text)), done: make(chan struct{}), exited: make(chan struct{})}
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
