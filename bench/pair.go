package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgapply/apply"
	"pgapply/internal/cluster"
)

// pair is a publisher and a target with a database for each contender.
type pair struct {
	publisher, target *cluster.Cluster
	size              int
}

func newPair(ctx context.Context, o options, load workload) (*pair, error) {
	p := &pair{size: o.transactions}
	tasks, starting := errgroup.WithContext(ctx)
	for _, place := range []**cluster.Cluster{&p.publisher, &p.target} {
		tasks.Go(func() error {
			server, err := cluster.Start(starting, cluster.Options{Major: o.major, Settings: map[string]string{
				"shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum": "off", "track_commit_timestamp": strconv.FormatBool(o.track),
			}})
			*place = server
			return err
		})
	}
	if err := tasks.Wait(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, p.prepare(ctx, o, load)
}

func (p *pair) close() error {
	var faults []error
	for _, server := range []*cluster.Cluster{p.publisher, p.target} {
		if server != nil {
			faults = append(faults, server.Close())
		}
	}
	return errors.Join(faults...)
}

// prepare makes the tables everywhere, and both slots before the first backlog.
func (p *pair) prepare(ctx context.Context, o options, load workload) error {
	schema := append(load.schema[:len(load.schema):len(load.schema)], `CREATE TABLE marker (n int PRIMARY KEY)`)
	for _, name := range []string{"native", "pgapply"} {
		if err := execute(ctx, p.target.URI("postgres"), "CREATE DATABASE "+name); err != nil {
			return err
		}
		if err := execute(ctx, p.target.URI(name), schema...); err != nil {
			return err
		}
	}
	if err := execute(ctx, p.publisher.URI("postgres"), append(schema, `CREATE PUBLICATION p FOR ALL TABLES`)...); err != nil {
		return err
	}
	err := execute(ctx, p.target.URI("native"), fmt.Sprintf(
		`CREATE SUBSCRIPTION native CONNECTION 'host=%s port=%d user=postgres dbname=postgres' PUBLICATION p WITH (copy_data = false, streaming = parallel)`,
		cluster.Host, p.publisher.Port()), `ALTER SUBSCRIPTION native DISABLE`)
	if err != nil {
		return err
	}
	options := p.options()
	options.EndAtCurrent = true
	engine, err := apply.New(options)
	if err != nil {
		return err
	}
	return engine.Run(ctx)
}

func (p *pair) options() apply.Options {
	o := apply.DefaultOptions()
	o.Source, o.Target = p.publisher.URI("postgres"), p.target.URI("pgapply")
	o.Publications = []string{"p"}
	return o
}

// fill writes a round's backlog and a marker behind it.
func (p *pair) fill(ctx context.Context, load workload, round int) error {
	return execute(ctx, p.publisher.URI("postgres"), fmt.Sprintf(load.fill, p.size), fmt.Sprintf(`INSERT INTO marker VALUES (%d)`, round), `CHECKPOINT`)
}

// contender is one of the two ways to drain the backlog.
type contender struct {
	name string
	// start begins to drain; stop ends it.
	start func(context.Context) (stop func(context.Context) error, err error)
	// backend is a query for the process on the target that applies.
	backend string
}

func (p *pair) native() contender {
	return contender{
		name: "native",
		start: func(ctx context.Context) (func(context.Context) error, error) {
			return func(ctx context.Context) error {
				return execute(ctx, p.target.URI("native"), `ALTER SUBSCRIPTION native DISABLE`)
			}, execute(ctx, p.target.URI("native"), `ALTER SUBSCRIPTION native ENABLE`)
		},
		backend: `SELECT pid FROM pg_stat_activity WHERE backend_type = 'logical replication apply worker'`,
	}
}

func (p *pair) pgapply() contender {
	return contender{
		name: "pgapply",
		start: func(ctx context.Context) (func(context.Context) error, error) {
			engine, err := apply.New(p.options())
			if err != nil {
				return nil, err
			}
			running, cancel := context.WithCancel(ctx)
			done := make(chan error, 1)
			go func() { done <- engine.Run(running) }()
			return func(context.Context) error {
				cancel()
				return <-done
			}, nil
		},
		backend: `SELECT pid FROM pg_stat_activity WHERE application_name = 'pgapply:w0'`,
	}
}

// drain measures from the start of a contender until the marker is on the target.
func (p *pair) drain(ctx context.Context, c contender, round int) (m measure, err error) {
	conn, err := pgx.Connect(ctx, p.target.URI(c.name))
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	began, own := time.Now(), ownCPU()
	stop, err := c.start(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, stop(context.WithoutCancel(ctx))) }()
	if err := p.wait(ctx, c, round); err != nil {
		return m, err
	}
	m.wall, m.own = time.Since(began), ownCPU()-own
	var pid int
	if err := conn.QueryRow(ctx, c.backend).Scan(&pid); err != nil {
		return m, fmt.Errorf("find the process that applies: %w", err)
	}
	m.backend, err = processCPU(pid)
	return m, err
}

// compare proves that both drained the same.
func (p *pair) compare(ctx context.Context, load workload) error {
	for _, table := range load.tables {
		query := fmt.Sprintf(`SELECT count(*) || ' rows, ' || coalesce(sum(hashtext(t::text)), 0) FROM %s t`, table)
		var sums []string
		for _, uri := range []string{p.publisher.URI("postgres"), p.target.URI("native"), p.target.URI("pgapply")} {
			sum, err := value(ctx, uri, query)
			if err != nil {
				return err
			}
			sums = append(sums, sum)
		}
		if sums[0] != sums[1] || sums[0] != sums[2] {
			return fmt.Errorf("table %s differs: publisher %s, native %s, pgapply %s", table, sums[0], sums[1], sums[2])
		}
	}
	return nil
}

func execute(ctx context.Context, uri string, statements ...string) error {
	conn, err := pgx.Connect(ctx, uri)
	if err != nil {
		return err
	}
	for _, statement := range statements {
		if _, err := conn.PgConn().Exec(ctx, statement).ReadAll(); err != nil {
			return errors.Join(fmt.Errorf("%.60s: %w", statement, err), conn.Close(ctx))
		}
	}
	return conn.Close(ctx)
}

func value(ctx context.Context, uri, query string) (text string, err error) {
	conn, err := pgx.Connect(ctx, uri)
	if err != nil {
		return "", err
	}
	err = conn.QueryRow(ctx, query).Scan(&text)
	return text, errors.Join(err, conn.Close(ctx))
}

// ownCPU is the CPU time of this process so far.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// processCPU is the CPU time of another process so far (proc_pid_stat(5), fields
// 14 and 15, in clock ticks of 10 ms).
func processCPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
