package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"

	"go.uber.org/zap"

	"pgapply/apply"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
)

// childMain is what a child process does: its job, until that ends or its standard
// input does.
func childMain(ctx context.Context, text string, run func(context.Context, job) error) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if j.Profile == "" {
		return run(ctx, j)
	}
	profile, err := os.Create(j.Profile)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(profile); err != nil {
		return err
	}
	err = run(ctx, j)
	pprof.StopCPUProfile()
	return errors.Join(err, profile.Close())
}

// runApply is pgapply with its defaults, but for what the job sets.
func runApply(ctx context.Context, j job) error {
	o := apply.DefaultOptions()
	o.Source, o.Target, o.Slot, o.Publications = j.Source, j.Target, j.Slot, []string{"p"}
	o.CreateSlot, o.CopyData, o.OnError = j.Copy, j.Copy, "stop"
	o.Binary, o.EndLSN = j.Binary, j.Until
	if j.Streaming != "" {
		o.Streaming = j.Streaming
	}
	if j.Workers > 0 {
		o.Workers = j.Workers
	}
	if j.Group > 0 {
		o.MaxGroup.Transactions = j.Group
	}
	if j.Batch != nil {
		o.MaxBatch = *j.Batch
	}
	if j.Copy {
		o.DeferIndexes, o.Analyze = j.DeferIndexes, j.Analyze
	}
	if j.TableJobs > 0 {
		o.TableJobs = j.TableJobs
	}
	if j.Split != nil {
		o.SplitLargerThan = *j.Split
	}
	config := zap.NewDevelopmentConfig()
	if !j.Verbose {
		config.Level = zap.NewAtomicLevelAt(zap.WarnLevel)
	}
	var err error
	if o.Log, err = config.Build(); err != nil {
		return err
	}
	engine, err := apply.New(o)
	if err != nil {
		return err
	}
	apply.TuneCollector(o.MemoryLimit)
	if j.Copy {
		defer sayWhenStreaming(ctx, engine)()
	}
	if err := engine.Run(ctx); err != nil {
		return err
	}
	status := engine.Status()
	return json.NewEncoder(os.Stdout).Encode(tally{Transactions: status.Transactions, Groups: status.Groups, Replays: status.Replays})
}

// runDecode receives the backlog as pgapply does, with its coalesced reads, and
// throws it away. It says when it has all of it, and keeps the connection until it
// is told to end.
func runDecode(ctx context.Context, j job) error {
	conn, err := source.Connect(ctx, source.Options{URI: j.Source, ApplicationName: "decode"})
	if err != nil {
		return err
	}
	stream, err := conn.StartStream(ctx, source.StreamOptions{Slot: j.Slot, Publications: []string{"p"}, Streaming: j.Streaming, Binary: j.Binary})
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer stream.Close() //nolint:errcheck // nothing is left to lose
	defer context.AfterFunc(ctx, stream.Interrupt)()
	for {
		frame, err := stream.Receive()
		if errors.Is(err, source.ErrInterrupted) {
			return nil
		}
		if err != nil {
			return err
		}
		end := commitEnd(frame)
		if end == 0 {
			continue
		}
		stream.Report(source.Position{Flushed: end, Applied: end}, false)
		if end > j.Until {
			j.Until = lsn.LSN(^uint64(0))
			if _, err := fmt.Println(saidDone); err != nil {
				return err
			}
		}
	}
}

// commitEnd is the end of the transaction that a frame commits, or 0: of Commit the
// second position behind kind and flags, of Stream Commit the same behind an xid
// ("Logical Replication Message Formats").
func commitEnd(frame source.Frame) lsn.LSN {
	const kind, xid, flags, position = 1, 4, 1, 8
	skip := 0
	switch {
	case frame.Kind != source.Data:
		return 0
	case frame.Payload[0] == 'C':
		skip = kind + flags + position
	case frame.Payload[0] == 'c':
		skip = kind + xid + flags + position
	default:
		return 0
	}
	return lsn.LSN(binary.BigEndian.Uint64(frame.Payload[skip:]))
}
