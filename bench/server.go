package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgapply/internal/cluster"
)

// servers are the publisher and the target of all workloads.
type servers struct {
	publisher, target *cluster.Cluster
	cold              bool
	drains            int // so far: each has a slot of its own name
}

func startServers(ctx context.Context, o options) (*servers, error) {
	common := map[string]string{
		"shared_buffers": "1GB", "max_wal_size": "16GB", "checkpoint_timeout": "1h", "autovacuum": "off",
	}
	publisher, target := maps.Clone(common), maps.Clone(common)
	publisher["track_commit_timestamp"] = "on" // when a transaction committed, for the latency
	target["track_commit_timestamp"] = strconv.FormatBool(o.track)
	if o.cold {
		target["shared_buffers"] = "16MB"
	}
	s := &servers{cold: o.cold}
	tasks, starting := errgroup.WithContext(ctx)
	start := func(place **cluster.Cluster, settings map[string]string) {
		tasks.Go(func() (err error) {
			*place, err = cluster.Start(starting, cluster.Options{Major: o.major, Settings: settings})
			return err
		})
	}
	start(&s.publisher, publisher)
	start(&s.target, target)
	if err := tasks.Wait(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *servers) close() error {
	var faults []error
	for _, server := range []*cluster.Cluster{s.publisher, s.target} {
		if server != nil {
			faults = append(faults, server.Close())
		}
	}
	return errors.Join(faults...)
}

// execute runs statements in a session of their own.
func execute(ctx context.Context, uri string, statements ...string) error {
	conn, err := pgx.Connect(ctx, uri)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // everything was answered
	for _, statement := range statements {
		if _, err := conn.PgConn().Exec(ctx, statement).ReadAll(); err != nil {
			return fmt.Errorf("%.60s: %w", statement, err)
		}
	}
	return nil
}

// value reads one text.
func value(ctx context.Context, uri, query string) (text string, err error) {
	conn, err := pgx.Connect(ctx, uri)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // everything was answered
	if err := conn.QueryRow(ctx, query).Scan(&text); err != nil {
		return "", fmt.Errorf("%.60s: %w", query, err)
	}
	return text, nil
}
