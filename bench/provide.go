package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pgapply/internal/cluster"
	"pgapply/internal/lsn"
)

// provide makes the slot and the target's database.
func (d *drain) provide(ctx context.Context) error {
	publisher := d.publisher.URI(sourceDatabase)
	slot := fmt.Sprintf(`SELECT pg_copy_logical_replication_slot('%s', '%s')`, backlogSlot, d.slot)
	if w := d.backlog.workload; w.live != nil {
		if err := execute(ctx, publisher, append([]string{`TRUNCATE marker`}, w.reset...)...); err != nil {
			return err
		}
		slot = fmt.Sprintf(`SELECT pg_create_logical_replication_slot('%s', 'pgoutput')`, d.slot)
	}
	if err := execute(ctx, publisher, slot); err != nil {
		return err
	}
	if d.backlog.workload.live != nil {
		if err := execute(ctx, publisher, `INSERT INTO marker VALUES (0)`); err != nil {
			return err
		}
	}
	return execute(ctx, d.target.URI("postgres"), `CREATE DATABASE `+drainDatabase+` TEMPLATE `+startDatabase)
}

// settle brings servers and machine into the same state before every drain: nothing left
// to write, the tables in memory, or not, and free memory at hand.
func (d *drain) settle(ctx context.Context) error {
	if err := execute(ctx, d.publisher.URI("postgres"), `CHECKPOINT`); err != nil {
		return err
	}
	warm := `SELECT sum(pg_prewarm(oid)) FROM pg_class WHERE oid >= 16384 AND relkind IN ('r', 'i', 't')`
	if d.cold {
		warm = `SELECT 1`
	}
	if err := execute(ctx, d.target.URI(drainDatabase), warm, `CHECKPOINT`); err != nil {
		return err
	}
	if d.cold {
		return forget(d.target.Dir())
	}
	touchMemory()
	return nil
}

// clear removes what provide made, and what contenders leave in the cluster.
func (d *drain) clear(ctx context.Context) error {
	return errors.Join(
		dropSlot(ctx, d.publisher, d.slot),
		execute(ctx, d.target.URI("postgres"), `DROP DATABASE IF EXISTS `+drainDatabase+` WITH (FORCE)`,
			`SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin`))
}

// dropSlot drops a slot, once nobody streams from it any more.
func dropSlot(ctx context.Context, server *cluster.Cluster, name string) error {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("slot %s is still in use", name))
	defer cancel()
	drop := fmt.Sprintf(`SELECT count(pg_drop_replication_slot(slot_name))::text FROM pg_replication_slots WHERE slot_name = '%s' AND NOT active`, name)
	left := fmt.Sprintf(`SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = '%s'`, name)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		if _, err := value(ctx, server.URI("postgres"), drop); err != nil {
			return err
		}
		count, err := value(ctx, server.URI("postgres"), left)
		if err != nil || count == "0" {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// position reads a log position.
func position(ctx context.Context, uri, query string) (lsn.LSN, error) {
	text, err := value(ctx, uri, query)
	if err != nil {
		return 0, err
	}
	return lsn.Parse(text)
}
