package oracle

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/internal/cluster"
)

// PublisherSettings are what an arena's publisher of a major needs beyond a cluster's
// own.
func PublisherSettings(major int) map[string]string {
	settings := map[string]string{"autovacuum": "off", "max_prepared_transactions": "40", "log_min_messages": "fatal"}
	if major >= 13 {
		settings["logical_decoding_work_mem"] = "64kB"
	}
	return settings
}

// TargetSettings are the same for the target.
func TargetSettings(int) map[string]string {
	return map[string]string{
		"autovacuum": "off", "log_min_messages": "error", "max_worker_processes": "24", "max_logical_replication_workers": "16",
		// A commit is not flushed at once, and its flush is what catching up waits for.
		"wal_writer_delay": "10ms",
		// The native subscription tries again soon what a moment's lock has spoilt.
		"wal_retrieve_retry_interval": "200ms",
	}
}

// Arena is a pair of servers on which scripts are played, one at a time.
type Arena struct {
	publisher, target *cluster.Cluster
	servers           Servers
	// administrators of the servers.
	onPublisher, onTarget *client
	spool                 string
	plays                 atomic.Int64

	// Patience bounds the wait for one position. It is far above what it takes.
	Patience time.Duration
}

// NewArena looks at what the servers have. The caller closes the arena, and the
// servers after it. Directory takes the spools.
func NewArena(ctx context.Context, publisher, target *cluster.Cluster, directory string) (*Arena, error) {
	a := &Arena{publisher: publisher, target: target, spool: directory, Patience: 30 * time.Second}
	a.servers = Servers{Publisher: publisher.Major(), Target: target.Major(), Extensions: map[string]bool{}}
	var err error
	if a.onPublisher, err = open(ctx, publisher.URI("postgres")); err != nil {
		return nil, err
	}
	if a.onTarget, err = open(ctx, target.URI("postgres")); err != nil {
		a.onPublisher.close()
		return nil, err
	}
	counts := map[string]int{}
	for _, s := range []*client{a.onPublisher, a.onTarget} {
		rows, err := s.query(ctx, `SELECT name FROM pg_available_extensions UNION ALL SELECT DISTINCT 'icu' FROM pg_collation WHERE collprovider = 'i'`)
		if err != nil {
			a.Close()
			return nil, err
		}
		for _, row := range rows {
			counts[row[0]]++
		}
		if _, err := s.query(ctx, `SELECT '<a/>'::xml`); err == nil {
			counts["xml"]++
		}
	}
	for name, count := range counts {
		a.servers.Extensions[name] = count == 2
	}
	return a, nil
}

// Servers say what scripts for this arena can count on.
func (a *Arena) Servers() Servers { return a.servers }

// Close ends the arena's sessions.
func (a *Arena) Close() {
	a.onPublisher.close()
	a.onTarget.close()
}

// client runs SQL on a connection of its own.
type client struct{ conn *pgconn.PgConn }

func open(ctx context.Context, uri string) (*client, error) {
	conn, err := pgconn.Connect(ctx, uri)
	if err != nil {
		return nil, err
	}
	return &client{conn}, nil
}

// execTimeout bounds a statement. Each takes milliseconds.
const execTimeout = 30 * time.Second

// query runs SQL and returns the last statement's rows; NULL is "␀".
func (s *client) query(ctx context.Context, sql string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	results, err := s.conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sql, err)
	}
	if len(results) == 0 {
		return nil, nil
	}
	last := results[len(results)-1]
	rows := make([][]string, len(last.Rows))
	for i, row := range last.Rows {
		rows[i] = make([]string, len(row))
		for j, value := range row {
			rows[i][j] = "␀"
			if value != nil {
				rows[i][j] = string(value)
			}
		}
	}
	return rows, nil
}

func (s *client) exec(ctx context.Context, sql string) error {
	_, err := s.query(ctx, sql)
	return err
}

func (s *client) close() {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), execTimeout)
	defer cancel()
	_ = s.conn.Close(ctx)
	<-s.conn.CleanupDone()
}

// create makes the databases of one play, on both servers at once.
func (a *Arena) create(ctx context.Context, publisher string, targets []string) error {
	failed := make(chan error, 1)
	go func() { failed <- a.onPublisher.exec(ctx, "CREATE DATABASE "+publisher) }()
	var err error
	for _, name := range targets {
		if err == nil {
			err = a.onTarget.exec(ctx, "CREATE DATABASE "+name)
		}
	}
	if other := <-failed; other != nil {
		return other
	}
	return err
}

// drop removes them, with slots, origins and prepared transactions.
func (a *Arena) drop(ctx context.Context, publisher string, targets []string) error {
	for _, sql := range []string{
		fmt.Sprintf(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '%s'`, publisher),
	} {
		if err := a.onPublisher.exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := a.dropPrepared(ctx, publisher); err != nil {
		return err
	}
	slots := fmt.Sprintf(`SELECT slot_name FROM pg_replication_slots WHERE database = '%s'`, publisher)
	drop := fmt.Sprintf(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '%s' AND NOT active`, publisher)
	if err := a.until(ctx, func() (bool, error) {
		if err := a.onPublisher.exec(ctx, drop); err != nil {
			return false, err
		}
		left, err := a.onPublisher.query(ctx, slots)
		return len(left) == 0, err
	}); err != nil {
		return err
	}
	if err := a.onPublisher.exec(ctx, "DROP DATABASE "+publisher); err != nil {
		return err
	}
	for _, name := range targets {
		origins := fmt.Sprintf(`SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin
			WHERE roname ~ ('_' || (SELECT oid FROM pg_database WHERE datname = '%s') || '_')`, name)
		if err := a.onTarget.exec(ctx, origins); err != nil {
			return err
		}
		if err := a.onTarget.exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			return err
		}
	}
	return nil
}

func (a *Arena) dropPrepared(ctx context.Context, database string) error {
	rows, err := a.onPublisher.query(ctx, fmt.Sprintf(`SELECT quote_literal(gid) FROM pg_prepared_xacts WHERE database = '%s'`, database))
	if err != nil || len(rows) == 0 {
		return err
	}
	inside, err := open(ctx, a.publisher.URI(database))
	if err != nil {
		return err
	}
	defer inside.close()
	for _, row := range rows {
		if err := inside.exec(ctx, "ROLLBACK PREPARED "+row[0]); err != nil {
			return err
		}
	}
	return nil
}

// until repeats a question every few milliseconds until the answer is yes.
func (a *Arena) until(ctx context.Context, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, a.Patience)
	defer cancel()
	pause := time.NewTicker(4 * time.Millisecond)
	defer pause.Stop()
	for {
		yes, err := ask()
		if yes || err != nil {
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return errPatience
		}
	}
}

var errPatience = fmt.Errorf("the time is up")

// name of a play's database, which is also that of its slot.
func playName(number int64, role string) string {
	return strings.ToLower(fmt.Sprintf("oracle_%d_%d_%s", os.Getpid()%100000, number, role))
}
