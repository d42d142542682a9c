package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// lags measures, in turn, how long after the COMMIT of one large transaction each
// contender has it on the target. It runs beside the transaction, and alone: the other
// one comes to that transaction before its next turn.
func (p *pair) lags(ctx context.Context, o options, load workload) error {
	measures := map[string][]time.Duration{}
	marker := 0
	for round := range o.rounds {
		contenders := []contender{p.native(), p.pgapply()}
		if round%2 == 1 {
			slices.Reverse(contenders)
		}
		for _, c := range contenders {
			marker += 2
			lag, writing, err := p.lag(ctx, c, load, marker)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			fmt.Printf("round %d  %-8s %6.2f s after the commit of a transaction that took %5.2f s\n", round+1, c.name, lag.Seconds(), writing.Seconds())
			measures[c.name] = append(measures[c.name], lag)
		}
	}
	for _, c := range []contender{p.native(), p.pgapply()} {
		if err := p.catchUp(ctx, c, marker+1); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if err := p.compare(ctx, load); err != nil {
		return err
	}
	median := func(name string) float64 {
		slices.Sort(measures[name])
		return measures[name][len(measures[name])/2].Seconds()
	}
	native, ours := median("native"), median("pgapply")
	fmt.Printf("\nmedian lag of %d rounds, %d rows of %s, streaming = parallel: native %.2f s, pgapply %.2f s, ratio %.2f\n",
		o.rounds, o.transactions, o.workload, native, ours, ours/native)
	return nil
}

// lag runs a contender until it is idle, then beside the transaction.
func (p *pair) lag(ctx context.Context, c contender, load workload, marker int) (lag, writing time.Duration, err error) {
	stop, err := c.start(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, stop(context.WithoutCancel(ctx))) }()
	if err := p.arrived(ctx, c, marker); err != nil {
		return 0, 0, err
	}
	publisher, err := pgx.Connect(ctx, p.publisher.URI("postgres"))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, publisher.Close(context.WithoutCancel(ctx))) }()
	began := time.Now()
	for _, statement := range []string{"BEGIN", fmt.Sprintf(load.fill, p.size), fmt.Sprintf(`INSERT INTO marker VALUES (%d)`, marker+1), "COMMIT"} {
		if _, err := publisher.PgConn().Exec(ctx, statement).ReadAll(); err != nil {
			return 0, 0, err
		}
	}
	committed := time.Now()
	err = p.wait(ctx, c, marker+1)
	return time.Since(committed), committed.Sub(began), err
}

// catchUp runs a contender until it has everything.
func (p *pair) catchUp(ctx context.Context, c contender, marker int) (err error) {
	stop, err := c.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(context.WithoutCancel(ctx))) }()
	return p.arrived(ctx, c, marker+1)
}

// arrived writes a marker, unless it is there, and waits until the contender has it.
func (p *pair) arrived(ctx context.Context, c contender, marker int) error {
	if err := execute(ctx, p.publisher.URI("postgres"), fmt.Sprintf(`INSERT INTO marker VALUES (%d) ON CONFLICT DO NOTHING`, marker)); err != nil {
		return err
	}
	return p.wait(ctx, c, marker)
}

// wait polls for a marker.
func (p *pair) wait(ctx context.Context, c contender, marker int) (err error) {
	conn, err := pgx.Connect(ctx, p.target.URI(c.name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		var there bool
		if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM marker WHERE n = $1)`, marker).Scan(&there); err != nil || there {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
