package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/lsn"
)

// show is the course of the demo beside the engine: work, catch up, compare, tell.
type show struct {
	options Options
	out     *screen
	bank    *bank
	engine  *apply.Engine

	begun  time.Time
	work   workload
	behind time.Duration // from the last commit until everything was durable on the target
}

func (s *show) run(ctx context.Context) error {
	// The tables are copied first.
	streaming := func(context.Context) (bool, error) { return s.engine.Status().Phase == state.Streaming, nil }
	if err := until(ctx, streaming); err != nil {
		return err
	}
	s.begun = time.Now()
	s.work = workload{uri: s.bank.publisher.URI(database), duration: s.options.Duration}
	if err := s.whileShown(ctx, s.workAndCatchUp); err != nil {
		return err
	}
	s.summary()
	if err := s.compare(ctx); err != nil {
		return err
	}
	if s.options.Keep {
		return s.keep(ctx)
	}
	return nil
}

func (s *show) workAndCatchUp(ctx context.Context) error {
	if err := s.work.run(ctx); err != nil {
		return err
	}
	return s.catchUp(ctx)
}

// catchUp waits until the publisher was told that everything is durable on the target.
func (s *show) catchUp(ctx context.Context) error {
	stopped := time.Now()
	publisher, err := pgx.Connect(ctx, s.bank.publisher.URI(database))
	if err != nil {
		return err
	}
	defer disconnect(publisher)
	end, err := position(ctx, publisher)
	if err != nil {
		return err
	}
	err = until(ctx, func(ctx context.Context) (bool, error) {
		var confirmed bool
		err := publisher.QueryRow(ctx, "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2",
			end.String(), slot).Scan(&confirmed)
		return confirmed, err
	})
	s.behind = time.Since(stopped)
	return err
}

// whileShown does something, and shows the progress meanwhile.
func (s *show) whileShown(ctx context.Context, do func(context.Context) error) error {
	publisher, err := pgx.Connect(ctx, s.bank.publisher.URI(database))
	if err != nil {
		return err
	}
	defer disconnect(publisher)
	tasks, ctx := errgroup.WithContext(ctx)
	showing, stop := context.WithCancel(ctx)
	tasks.Go(func() error {
		defer stop()
		return do(ctx)
	})
	tasks.Go(func() error {
		ticker := time.NewTicker(s.out.interval())
		defer ticker.Stop()
		for {
			select {
			case <-showing.Done():
				return nil
			case <-ticker.C:
			}
			end, err := position(showing, publisher)
			if err != nil && showing.Err() == nil {
				return err
			}
			s.progress(end)
		}
	})
	err = tasks.Wait()
	s.out.endLine()
	return err
}

// progress shows how far the target is. Lag is what the publisher has written and
// the target has not applied, with the age of what was applied last.
func (s *show) progress(end lsn.LSN) {
	status := s.engine.Status()
	lag, age := int64(0), time.Duration(0)
	if applied := lsn.LSN(status.Applied); end > applied && status.LastCommitTime != nil {
		lag, age = int64(end-applied), max(0, time.Since(*status.LastCommitTime))
	}
	s.out.line(fmt.Sprintf("%5.1f s  %s  %s  lag %s, %d ms", time.Since(s.begun).Seconds(),
		counted(status.Transactions, "transaction"), counted(rows(status), "row"), size(lag), age.Milliseconds()))
}

func (s *show) summary() {
	status := s.engine.Status()
	s.out.say(fmt.Sprintf("committed  %s on the publisher in %.1f s, beside %s rolled back",
		counted(s.work.committed.Load(), "transaction"), s.work.took.Seconds(), count(s.work.rolledBack.Load())))
	s.out.say(fmt.Sprintf("applied    %s with %s: %s inserted, %s updated, %s deleted",
		counted(status.Transactions, "transaction"), counted(rows(status), "row"),
		count(status.Rows.Inserted), count(status.Rows.Updated), count(status.Rows.Deleted)))
	s.out.say(fmt.Sprintf("caught up  %d ms after the last commit", s.behind.Milliseconds()))
}

// compare compares all tables, and says how each one came out.
func (s *show) compare(ctx context.Context) error {
	publisher, err := pgx.Connect(ctx, s.bank.publisher.URI(database))
	if err != nil {
		return err
	}
	defer disconnect(publisher)
	target, err := pgx.Connect(ctx, s.bank.target.URI(database))
	if err != nil {
		return err
	}
	defer disconnect(target)
	tables, err := tables(ctx, publisher)
	if err != nil {
		return err
	}
	var identical, different []string
	for _, table := range tables {
		found, err := compare(ctx, publisher, target, table)
		if err != nil {
			return fmt.Errorf("compare table %s: %w", table, err)
		}
		if found.identical() {
			identical = append(identical, fmt.Sprintf("%s (%s)", table, count(found.same)))
			continue
		}
		different = append(different, table)
		s.out.say(fmt.Sprintf("different  %s: %s the same, %s on the publisher only, %s on the target only",
			table, counted(found.same, "row"), count(found.publisherOnly), count(found.targetOnly)))
	}
	if len(identical) > 0 {
		s.out.say("identical  " + strings.Join(identical, ", "))
	}
	if len(different) > 0 {
		return &DifferenceError{Tables: different}
	}
	return nil
}

// keep lets the user look around.
func (s *show) keep(ctx context.Context) error {
	s.out.say("\nReplication goes on until Ctrl-C. Change something on the publisher, and look at the target:")
	s.out.say("  psql '" + s.bank.publisher.URI(database) + "'")
	s.out.say("  psql '" + s.bank.target.URI(database) + "'")
	<-ctx.Done()
	return nil
}

// rows is how many changes were applied.
func rows(status state.Status) int64 {
	return status.Rows.Inserted + status.Rows.Updated + status.Rows.Deleted + status.Rows.Truncated
}

// patience bounds what the demo waits for.
const patience = 5 * time.Minute

// until asks again and again, until something is reached.
func until(ctx context.Context, reached func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("gave up after "+patience.String()))
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		done, err := reached(ctx)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// disconnect says farewell, also when the demo was interrupted.
func disconnect(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
