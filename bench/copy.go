package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/cluster"
)

// prepareCopy fills the tables on the publisher, and makes them on the target.
func (s *servers) prepareCopy(ctx context.Context, b *backlog) (err error) {
	w := b.workload
	if err := create(ctx, s.publisher, sourceDatabase, slices.Concat(w.schema, []string{w.fill, `CREATE PUBLICATION p FOR ALL TABLES`})); err != nil {
		return fmt.Errorf("prepare the publisher: %w", err)
	}
	if err := create(ctx, s.target, startDatabase, slices.Concat(w.schema, w.target)); err != nil {
		return fmt.Errorf("prepare the target: %w", err)
	}
	b.sums, err = sums(ctx, s.publisher.URI(sourceDatabase), w.tables)
	return err
}

// copyTables lets a contender fill the target's empty tables, which have their indexes.
func (d *drain) copyTables(ctx context.Context) (measure, error) {
	target := d.target.URI(drainDatabase)
	if err := execute(ctx, d.target.URI("postgres"), `CREATE DATABASE `+drainDatabase+` TEMPLATE `+startDatabase); err != nil {
		return d.measure, fmt.Errorf("prepare: %w", err)
	}
	if err := d.settle(ctx); err != nil {
		return d.measure, fmt.Errorf("prepare: %w", err)
	}
	indexes, err := value(ctx, target, allIndexes)
	if err != nil {
		return d.measure, err
	}
	if err := d.runCopier(ctx); err != nil {
		return d.measure, err
	}
	left, err := value(ctx, target, allIndexes)
	if err != nil {
		return d.measure, err
	}
	if left != indexes {
		return d.measure, fmt.Errorf("the target has other indexes than before:\n%s\n\nwhich were\n%s", left, indexes)
	}
	return d.measure, d.compare(ctx)
}

// allIndexes are those of the tables that are copied.
const allIndexes = `SELECT coalesce(string_agg(indexdef, E'\n' ORDER BY indexdef), '') FROM pg_indexes WHERE schemaname = 'public'`

// runCopier starts a contender, measures it until all tables are ready, and stops it.
func (d *drain) runCopier(ctx context.Context) error {
	var r runner = &child{drain: d}
	if d.contender.kind == native {
		r = &copySubscription{subscription{d}}
	}
	before, err := d.spent()
	if err != nil {
		return err
	}
	began := time.Now()
	done, ended, err := r.start(ctx)
	if err != nil {
		return err
	}
	err = d.awaitCopied(ctx, done, ended)
	d.measure.Copy = time.Since(began).Seconds()
	var after serverTimes
	if err == nil {
		after, err = d.spent()
	}
	var peak int64
	if err == nil {
		peak, err = r.peak()
	}
	own, stopErr := r.stop(context.WithoutCancel(ctx))
	d.measure.PublisherCPU = (after.publisher - before.publisher).Seconds()
	d.measure.TargetCPU = (after.target - before.target).Seconds()
	d.measure.OwnCPU, d.measure.PeakMemory = own.Seconds(), peak
	return errors.Join(err, stopErr)
}

// awaitCopied returns once every table is ready and whoever copied them streams. A child
// says so; of a subscription only its catalog knows.
func (d *drain) awaitCopied(ctx context.Context, done, ended <-chan struct{}) error {
	if d.contender.kind == native {
		return d.awaitReady(ctx)
	}
	select {
	case <-done:
		return nil
	case <-ended:
		return errors.New("it has ended by itself")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *drain) awaitReady(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, d.target.URI(drainDatabase))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // everything was answered
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		var left int
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'`).Scan(&left); err != nil || left == 0 {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// serverTimes is the CPU time of all processes of either server so far.
type serverTimes struct{ publisher, target time.Duration }

func (s *servers) spent() (t serverTimes, err error) {
	if t.publisher, err = serverCPU(s.publisher.PID()); err != nil {
		return t, err
	}
	t.target, err = serverCPU(s.target.PID())
	return t, err
}

// serverCPU is the CPU time of a postmaster and its children, those that have ended
// included: a copy has many that live for moments (proc_pid_stat(5)).
func serverCPU(postmaster int) (time.Duration, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	const perSecond = 100 // USER_HZ, wherever Go runs on Linux
	parent, ticks := strconv.Itoa(postmaster), int64(0)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // gone since
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest) // from the third on
		const ppid, utime, cutime = 1, 11, 13
		var times []string
		if filepath.Base(filepath.Dir(path)) == parent {
			times = fields[utime : cutime+2]
		} else if fields[ppid] == parent {
			times = fields[utime:cutime]
		}
		for _, field := range times {
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read %s: %w", path, err)
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / perSecond, nil
}

// copySubscription is the native contender that also copies.
type copySubscription struct{ subscription }

func (s *copySubscription) start(ctx context.Context) (done, ended <-chan struct{}, err error) {
	return nil, nil, execute(ctx, s.target.URI(drainDatabase), fmt.Sprintf(
		`CREATE SUBSCRIPTION bench CONNECTION 'host=%s port=%d user=postgres dbname=%s' PUBLICATION p WITH (slot_name = '%s', binary = %t)`,
		cluster.Host, s.publisher.Port(), sourceDatabase, s.slot, s.contender.binary))
}
