package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	ticks        = 200
	tickInterval = 50 * time.Millisecond
)

var (
	ticksSchema = []string{`CREATE TABLE ticks (id int PRIMARY KEY)`}
	// On the target a deferred trigger stamps each row within its COMMIT, as late as
	// one can. A default would be evaluated with the INSERT, and leave out what a
	// contender does between the two.
	ticksTarget = []string{
		`CREATE TABLE stamps (id int, at timestamptz)`,
		`CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.stamps VALUES (NEW.id, clock_timestamp()); RETURN NULL; END'`,
		`CREATE CONSTRAINT TRIGGER stamp AFTER INSERT ON ticks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stamp()`,
		`ALTER TABLE ticks ENABLE ALWAYS TRIGGER stamp`,
	}
)

// latencies commits small transactions beside an idle contender, and notes how long
// after the publisher's commit, by its own timestamp, each is stamped on the target.
// Both servers read the same clock.
func latencies(ctx context.Context, d *drain) error {
	publisher, err := pgx.Connect(ctx, d.publisher.URI(sourceDatabase))
	if err != nil {
		return err
	}
	defer publisher.Close(context.WithoutCancel(ctx)) //nolint:errcheck // everything was answered
	next := time.NewTicker(tickInterval)
	defer next.Stop()
	for i := range ticks {
		select {
		case <-next.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if _, err := publisher.Exec(ctx, `INSERT INTO ticks VALUES ($1)`, i); err != nil {
			return err
		}
	}
	if _, err := publisher.Exec(ctx, `INSERT INTO marker VALUES (1)`); err != nil {
		return err
	}
	if _, err := d.arrivals.wait(ctx); err != nil {
		return err
	}
	committed, err := moments(ctx, publisher, `SELECT id, pg_xact_commit_timestamp(xmin) FROM ticks ORDER BY id`)
	if err != nil {
		return err
	}
	target, err := pgx.Connect(ctx, d.target.URI(drainDatabase))
	if err != nil {
		return err
	}
	defer target.Close(context.WithoutCancel(ctx)) //nolint:errcheck // everything was answered
	stamped, err := moments(ctx, target, `SELECT id, at FROM stamps ORDER BY id`)
	if err != nil {
		return err
	}
	if len(committed) != ticks || len(stamped) != ticks {
		return fmt.Errorf("%d transactions were committed, %d of %d stamped", len(committed), len(stamped), ticks)
	}
	for i, at := range stamped {
		d.measure.Latencies = append(d.measure.Latencies, at.Sub(committed[i]).Seconds())
	}
	return nil
}

// moments reads rows of a number and a time, in the order of the numbers.
func moments(ctx context.Context, conn *pgx.Conn, query string) ([]time.Time, error) {
	rows, err := conn.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (at time.Time, err error) {
		var id int
		err = row.Scan(&id, &at)
		return at, err
	})
}
