package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// meter adds up the CPU time of the server processes that work for a drain. It looks
// for them ten times a second, since parallel apply workers come and go, and once
// more at the end.
type meter struct {
	cancel    context.CancelFunc
	ended     chan error
	publisher watched
	target    watched
}

// watched are the processes that a query finds.
type watched struct {
	conn  *pgx.Conn
	query string
	used  map[uint32]time.Duration // by process, as seen last
}

const meterInterval = 100 * time.Millisecond

func startMeter(ctx context.Context, d *drain) (*meter, error) {
	m := &meter{
		publisher: watched{
			query: fmt.Sprintf(`SELECT active_pid FROM pg_replication_slots WHERE slot_name = '%s' AND active`, d.slot),
		},
		// The native leader and its parallel workers, or pgapply's workers.
		target: watched{query: `SELECT pid FROM pg_stat_activity WHERE datname = '` + drainDatabase + `'
			AND (backend_type LIKE 'logical replication %worker' OR application_name ~ '^pgapply:w\d')`},
	}
	for server, w := range map[string]*watched{d.publisher.URI("postgres"): &m.publisher, d.target.URI("postgres"): &m.target} {
		w.used = make(map[uint32]time.Duration)
		var err error
		if w.conn, err = pgx.Connect(ctx, server); err != nil {
			return nil, errors.Join(err, m.close(ctx))
		}
	}
	metering, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.cancel, m.ended = cancel, make(chan error, 1)
	go func() { m.ended <- m.run(metering) }()
	return m, nil
}

// run looks until ctx ends, but cuts no look off: that would cost the connection.
func (m *meter) run(ctx context.Context) error {
	uncut := context.WithoutCancel(ctx)
	next := time.NewTicker(meterInterval)
	defer next.Stop()
	for {
		select {
		case <-next.C:
		case <-ctx.Done():
			return m.look(uncut)
		}
		if err := m.look(uncut); err != nil {
			return err
		}
	}
}

func (m *meter) look(ctx context.Context) error {
	return errors.Join(m.publisher.look(ctx), m.target.look(ctx))
}

func (w *watched) look(ctx context.Context) error {
	rows, err := w.conn.Query(ctx, w.query)
	if err != nil {
		return err
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	if err != nil {
		return err
	}
	for _, pid := range pids {
		used, err := processCPU(pid)
		if errors.Is(err, os.ErrNotExist) {
			continue // gone since
		}
		if err != nil {
			return err
		}
		w.used[pid] = used
	}
	return nil
}

func (w *watched) total() (sum time.Duration) {
	for _, used := range w.used {
		sum += used
	}
	return sum
}

// stop looks a last time, and notes what it saw.
func (m *meter) stop(ctx context.Context, into *measure) error {
	m.cancel()
	err := <-m.ended
	into.PublisherCPU, into.TargetCPU = m.publisher.total().Seconds(), m.target.total().Seconds()
	return errors.Join(err, m.close(ctx))
}

func (m *meter) close(ctx context.Context) error {
	var faults []error
	for _, conn := range []*pgx.Conn{m.publisher.conn, m.target.conn} {
		if conn != nil {
			faults = append(faults, conn.Close(context.WithoutCancel(ctx)))
		}
	}
	return errors.Join(faults...)
}

// processCPU is the time that a process with one thread was on a CPU so far, in
// nanoseconds: the first figure of its schedstat (Linux, sched-stats.rst).
func processCPU(pid uint32) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err
}

// peakMemory is the most memory that a process had resident so far, in bytes
// (proc_pid_status(5), VmHWM). The peak that wait4 returns may be the parent's: a
// child begins in its memory.
func peakMemory(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(text), "\nVmHWM:")
	fields := strings.Fields(rest)
	if !found || len(fields) < 2 || fields[1] != "kB" {
		return 0, fmt.Errorf("no peak in the status of process %d", pid)
	}
	kilobytes, err := strconv.ParseInt(fields[0], 10, 64)
	return kilobytes << 10, err
}
