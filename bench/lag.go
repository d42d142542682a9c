package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// lagBehind writes one large transaction beside an idle contender, and measures how
// long after its COMMIT the target shows it. A marker of its own commits behind it,
// so that the large transaction fires no trigger.
func lagBehind(statement string) func(context.Context, *drain) error {
	return func(ctx context.Context, d *drain) error {
		publisher, err := pgx.Connect(ctx, d.publisher.URI(sourceDatabase))
		if err != nil {
			return err
		}
		defer publisher.Close(context.WithoutCancel(ctx)) //nolint:errcheck // everything was answered
		began := time.Now()
		if _, err := publisher.Exec(ctx, statement); err != nil {
			return err
		}
		committed := time.Now()
		if _, err := publisher.Exec(ctx, `INSERT INTO marker VALUES (1)`); err != nil {
			return err
		}
		arrived, err := d.arrivals.wait(ctx)
		d.measure.Lag, d.measure.Writing = arrived.Sub(committed).Seconds(), committed.Sub(began).Seconds()
		return err
	}
}
