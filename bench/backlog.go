package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pgapply/internal/cluster"
	"pgapply/internal/lsn"
)

// The databases: the publisher's, the target's start state, and the copy of that
// which a drain fills.
const (
	sourceDatabase = "source"
	startDatabase  = "start"
	drainDatabase  = "drain"
)

// backlogSlot stands before the backlog and never moves: drains use copies of it.
const backlogSlot = "backlog"

// marker is the table whose row ends a backlog. On the target a trigger announces
// it, so that nobody has to ask.
var (
	markerSchema = []string{`CREATE TABLE marker (n int PRIMARY KEY)`}
	markerTarget = []string{
		`CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY ` + arrivals + `; RETURN NULL; END'`,
		`CREATE TRIGGER announce AFTER INSERT ON marker FOR EACH ROW EXECUTE FUNCTION announce()`,
		`ALTER TABLE marker ENABLE ALWAYS TRIGGER announce`,
	}
)

// backlog is what a workload has written on the publisher, ready to be drained any
// number of times.
type backlog struct {
	workload workload
	// until is where the marker's transaction begins: the first commit that ends
	// beyond it is the last of the backlog.
	until lsn.LSN
	sums  []string // of the publisher's tables
}

// prepare makes the start state of both ends, the slot, and the backlog behind it.
func (s *servers) prepare(ctx context.Context, w workload) (*backlog, error) {
	b := &backlog{workload: w}
	if w.copied {
		return b, s.prepareCopy(ctx, b)
	}
	schema := slices.Concat(markerSchema, w.schema)
	if err := create(ctx, s.publisher, sourceDatabase, append(schema, `CREATE PUBLICATION p FOR ALL TABLES`)); err != nil {
		return nil, fmt.Errorf("prepare the publisher: %w", err)
	}
	if err := create(ctx, s.target, startDatabase, slices.Concat(schema, markerTarget, w.target)); err != nil {
		return nil, fmt.Errorf("prepare the target: %w", err)
	}
	if w.live != nil {
		return b, nil
	}
	publisher := s.publisher.URI(sourceDatabase)
	if err := execute(ctx, publisher, `SELECT pg_create_logical_replication_slot('`+backlogSlot+`', 'pgoutput')`, w.fill); err != nil {
		return nil, fmt.Errorf("write the backlog: %w", err)
	}
	var err error
	if b.until, err = position(ctx, publisher, `SELECT pg_current_wal_insert_lsn()::text`); err != nil {
		return nil, err
	}
	if err := execute(ctx, publisher, `INSERT INTO marker VALUES (0)`, `CHECKPOINT`); err != nil {
		return nil, err
	}
	b.sums, err = sums(ctx, publisher, w.tables)
	return b, err
}

// create makes a database with a schema, analyzed and on disk.
func create(ctx context.Context, server *cluster.Cluster, name string, schema []string) error {
	if err := execute(ctx, server.URI("postgres"), `CREATE DATABASE `+name); err != nil {
		return err
	}
	return execute(ctx, server.URI(name), append(schema, `VACUUM ANALYZE`, `CREATE EXTENSION pg_prewarm`, `CHECKPOINT`)...)
}

// discard removes what prepare made.
func (s *servers) discard(ctx context.Context, b *backlog) error {
	var err error
	if b.workload.live == nil && !b.workload.copied {
		err = dropSlot(ctx, s.publisher, backlogSlot)
	}
	return errors.Join(err,
		execute(ctx, s.publisher.URI("postgres"), `DROP DATABASE `+sourceDatabase+` WITH (FORCE)`, `CHECKPOINT`),
		execute(ctx, s.target.URI("postgres"), `DROP DATABASE `+startDatabase, `CHECKPOINT`))
}

// sums are the contents of tables, each row with all of its columns.
func sums(ctx context.Context, uri string, tables []string) (sums []string, err error) {
	for _, table := range tables {
		sum, err := value(ctx, uri, `SELECT count(*) || ' rows with sum ' || coalesce(sum(hashtextextended(t::text, 0)::numeric), 0) FROM `+table+` t`)
		if err != nil {
			return nil, err
		}
		sums = append(sums, sum)
	}
	return sums, nil
}
