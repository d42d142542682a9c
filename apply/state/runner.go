package state

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// HeartbeatInterval is how often a runner writes its row while nothing changes.
const HeartbeatInterval = 10 * time.Second

// Silence is after how long without a heartbeat something is wrong with a runner.
const Silence = 3 * HeartbeatInterval

// Runner is the process that runs a subscription, or last did.
type Runner struct {
	PID           int
	Host, Version string
	// StartedAt and Heartbeat are read from the target's clock.
	StartedAt, Heartbeat time.Time
	// HeartbeatAge is how long ago the heartbeat was when the row was read,
	// both by the target's clock.
	HeartbeatAge             time.Duration
	LastError, LastErrorHint string
	// Status is nil before the first one was written.
	Status *Status
}

// StartRunner puts this process into the runner row, in place of any other, and asks the
// target for what [Store.Notified] hears. The caller holds the runner lock. From runner it
// takes PID, Host and Version.
func (s *Store) StartRunner(ctx context.Context, runner Runner) error {
	s.lock()
	defer s.mu.Unlock()
	var both pgx.Batch
	both.Queue(listenSQL)
	both.Queue(`
		INSERT INTO pgapply.runner (subscription, pid, host, version, started_at, heartbeat)
		VALUES ($1, $2, $3, $4, pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp())
		ON CONFLICT (subscription) DO UPDATE SET (pid, host, version, started_at, heartbeat, last_error, last_error_hint, status)
			= ROW (EXCLUDED.pid, EXCLUDED.host, EXCLUDED.version, EXCLUDED.started_at, EXCLUDED.heartbeat, NULL, NULL, NULL)
		RETURNING started_at`, s.name, runner.PID, runner.Host, runner.Version).
		QueryRow(func(row pgx.Row) error { return row.Scan(&runner.StartedAt) })
	if err := s.mu.conn.SendBatch(ctx, &both).Close(); err != nil {
		return s.failed(ctx, "record the runner", err)
	}
	s.mu.runner = &runner
	return nil
}

// WriteStatus writes heartbeat and status into the row of [Store.StartRunner].
// The caller decides how often: when something changed, at most once a second,
// else every [HeartbeatInterval]. Losing the newest status in a crash does no
// harm, so it does not wait for the disk. The error is [ErrRunnerReplaced] when
// another process has taken the row.
func (s *Store) WriteStatus(ctx context.Context, status *Status) error {
	text, err := json.Marshal(status)
	if err != nil {
		return fmt.Errorf("write the status of subscription %q: %w", s.name, err)
	}
	return s.ownRow(ctx, "write the status", `
		WITH volatile AS MATERIALIZED (SELECT pg_catalog.set_config('synchronous_commit', 'off', true))
		UPDATE pgapply.runner SET heartbeat = pg_catalog.clock_timestamp(), status = $5::text::jsonb,
			last_error = nullif($6, ''), last_error_hint = nullif($7, '')
		FROM volatile
		WHERE subscription = $1 AND pid = $2 AND host = $3 AND started_at = $4`,
		string(text), status.LastError, status.LastErrorHint)
}

// EndRunner deletes the row on an orderly exit.
func (s *Store) EndRunner(ctx context.Context) error {
	return s.ownRow(ctx, "clear the runner row",
		`DELETE FROM pgapply.runner WHERE subscription = $1 AND pid = $2 AND host = $3 AND started_at = $4`)
}

// ownRow runs a statement on the row of this process: $2 to $4 name it.
func (s *Store) ownRow(ctx context.Context, doing, sql string, arguments ...any) error {
	s.lock()
	own := s.mu.runner
	s.mu.Unlock()
	if own == nil {
		return fmt.Errorf("%s of subscription %q: no runner was started here", doing, s.name)
	}
	touched, err := s.exec(ctx, doing, sql, append([]any{own.PID, own.Host, own.StartedAt}, arguments...)...)
	if err == nil && touched == 0 {
		return fmt.Errorf("%s of subscription %q: %w", doing, s.name, ErrRunnerReplaced)
	}
	return err
}

// Runner returns the runner row, or nil where there is none. That a row is
// there does not mean that the process lives: see [Store.LockHolder].
func (s *Store) Runner(ctx context.Context) (*Runner, error) {
	found, err := rows(ctx, s, "read the runner row", func(row pgx.CollectableRow) (*Runner, error) {
		var runner Runner
		var age float64
		var status []byte
		err := row.Scan(&runner.PID, &runner.Host, &runner.Version, &runner.StartedAt, &runner.Heartbeat, &age,
			&runner.LastError, &runner.LastErrorHint, &status)
		if err != nil {
			return nil, err
		}
		runner.HeartbeatAge = time.Duration(age * float64(time.Second))
		if status != nil {
			runner.Status = new(Status)
			if err := json.Unmarshal(status, runner.Status); err != nil {
				return nil, fmt.Errorf("read the recorded status: %w", err)
			}
		}
		return &runner, nil
	}, `SELECT pid, host, version, started_at, heartbeat,
		       extract(epoch FROM pg_catalog.clock_timestamp() - heartbeat)::float8,
		       coalesce(last_error, ''), coalesce(last_error_hint, ''), status
		FROM pgapply.runner WHERE subscription = $1`)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}
