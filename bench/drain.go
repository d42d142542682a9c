package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// drain is one contender's turn: a slot and a target database of its own.
type drain struct {
	*servers
	options   options
	backlog   *backlog
	contender contender
	round     int
	slot      string
	arrivals  *listener
	measure   measure
}

// runner runs a contender.
type runner interface {
	// prepare does what comes before anything is measured.
	prepare(context.Context) error
	// start starts to drain. done is closed when one has the backlog whose rows do not
	// arrive on the target, ended when the contender has ended.
	start(context.Context) (done, ended <-chan struct{}, err error)
	// peak is the most memory used so far, in bytes.
	peak() (int64, error)
	// stop ends what was started, and returns the CPU time of its own.
	stop(context.Context) (time.Duration, error)
}

// turn drains the backlog once.
func (s *servers) turn(ctx context.Context, o options, b *backlog, c contender, round int) (m measure, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("the backlog has not arrived within %s", o.limit))
	defer cancel()
	s.drains++
	d := &drain{servers: s, options: o, backlog: b, contender: c, round: round, slot: fmt.Sprintf("drain_%d", s.drains)}
	defer func() { err = errors.Join(err, d.clear(context.WithoutCancel(ctx))) }()
	if b.workload.copied {
		return d.copyTables(ctx)
	}
	if err := d.provide(ctx); err != nil {
		return m, fmt.Errorf("prepare: %w", err)
	}
	var r runner = &child{drain: d}
	if c.kind == native {
		r = &subscription{d}
	}
	if err := r.prepare(ctx); err != nil {
		return m, fmt.Errorf("prepare: %w", err)
	}
	if err := d.settle(ctx); err != nil {
		return m, fmt.Errorf("prepare: %w", err)
	}
	if err := d.run(ctx, r); err != nil {
		return m, err
	}
	return d.measure, d.compare(ctx)
}

// run starts a contender, measures it, and stops it.
func (d *drain) run(ctx context.Context, r runner) (err error) {
	d.arrivals, err = listen(ctx, d.target.URI(drainDatabase))
	if err != nil {
		return err
	}
	defer d.arrivals.close()
	meter, err := startMeter(ctx, d)
	if err != nil {
		return err
	}
	logged, began := d.publisher.LogSize(), time.Now()
	done, ended, err := r.start(ctx)
	if err != nil {
		return errors.Join(err, meter.stop(ctx, &d.measure))
	}
	d.arrivals.done, d.arrivals.ended = done, ended
	arrived, err := d.arrivals.wait(ctx)
	if err == nil && d.backlog.workload.live != nil {
		err = d.backlog.workload.live(ctx, d)
	}
	err = errors.Join(err, meter.stop(ctx, &d.measure))
	var peak int64
	if err == nil {
		peak, err = r.peak()
	}
	own, stopErr := r.stop(context.WithoutCancel(ctx))
	if err := errors.Join(err, stopErr); err != nil {
		return err
	}
	decoding, err := d.decodingSince(logged)
	if err != nil {
		return err
	}
	d.measure.PeakMemory, d.measure.OwnCPU = peak, own.Seconds()
	d.measure.Start, d.measure.Drain = decoding.Sub(began).Seconds(), arrived.Sub(decoding).Seconds()
	return nil
}

// decodingSince is when the publisher began to decode for the drain, as its log says
// from an offset on (CreateDecodingContext). What a contender does before that is its
// start, which neither side's speed depends on.
func (d *drain) decodingSince(offset int64) (time.Time, error) {
	text, err := d.publisher.Log(offset)
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, `starting logical decoding for slot "`+d.slot+`"`) {
			stamp, _, _ := strings.Cut(line, " [")
			return time.Parse("2006-01-02 15:04:05.000 MST", stamp)
		}
	}
	return time.Time{}, fmt.Errorf("the publisher's log does not say that it decodes for slot %s", d.slot)
}

// compare proves that the target has what the publisher has.
func (d *drain) compare(ctx context.Context) error {
	if d.contender.kind == decode {
		return nil
	}
	w, wanted := d.backlog.workload, d.backlog.sums
	var err error
	if w.live != nil {
		if wanted, err = sums(ctx, d.publisher.URI(sourceDatabase), w.tables); err != nil {
			return err
		}
	}
	found, err := sums(ctx, d.target.URI(drainDatabase), w.tables)
	if err != nil {
		return err
	}
	for i, table := range w.tables {
		if found[i] != wanted[i] {
			return fmt.Errorf("table %s differs: the publisher has %s, the target %s", table, wanted[i], found[i])
		}
	}
	return nil
}
