package oracle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

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

// TargetSettings are the same for the target, which knows who wrote a row if it is
// tracked.
func TargetSettings(tracked bool) map[string]string {
	return map[string]string{
		"track_commit_timestamp": strconv.FormatBool(tracked),
		"autovacuum":             "off", "log_min_messages": "error", "max_worker_processes": "24", "max_logical_replication_workers": "16",
		"max_prepared_transactions": "40",
		// A commit is not flushed at once, and its flush is what catching up waits for.
		"wal_writer_delay": "10ms",
		// The native subscription tries again soon what a moment's lock has spoilt.
		"wal_retrieve_retry_interval": "200ms",
	}
}

// Arena is a pair of servers on which scripts are played, one at a time.
type Arena struct {
	publisher, target server
	servers           Servers
	tracked           bool // the target knows who wrote a row
	spool             string
	plays             atomic.Int64

	// Patience bounds the wait for one position. It is far above what it takes.
	Patience time.Duration
}

// server is a cluster with a session of its administrator.
type server struct {
	*cluster.Cluster
	administrator *client
}

// NewArena looks at what the servers have. The caller closes the arena, and the
// servers after it. Directory takes the spools.
func NewArena(ctx context.Context, publisher, target *cluster.Cluster, directory string) (*Arena, error) {
	a := &Arena{
		publisher: server{Cluster: publisher}, target: server{Cluster: target}, spool: directory, Patience: 30 * time.Second,
		servers: Servers{Publisher: publisher.Major(), Target: target.Major(), Extensions: map[string]bool{}},
	}
	counts := map[string]int{}
	for _, s := range []*server{&a.publisher, &a.target} {
		features, err := s.features(ctx)
		if err != nil {
			a.Close()
			return nil, err
		}
		for _, feature := range features {
			counts[feature]++
		}
	}
	for name, count := range counts {
		a.servers.Extensions[name] = count == 2
	}
	tracked, err := a.target.administrator.query(ctx, "SHOW track_commit_timestamp")
	if err != nil {
		a.Close()
		return nil, err
	}
	a.tracked = tracked[0][0] == "on"
	return a, nil
}

// features opens the administrator's session and asks what kinds could need.
func (s *server) features(ctx context.Context) ([]string, error) {
	var err error
	if s.administrator, err = open(ctx, s.URI("postgres")); err != nil {
		return nil, err
	}
	rows, err := s.administrator.query(ctx, `SELECT name FROM pg_available_extensions UNION ALL SELECT DISTINCT 'icu' FROM pg_collation WHERE collprovider = 'i'`)
	if err != nil {
		return nil, err
	}
	features := make([]string, len(rows))
	for i, row := range rows {
		features[i] = row[0]
	}
	if s.administrator.exec(ctx, `SELECT '<a/>'::xml`) == nil {
		features = append(features, "xml")
	}
	return features, nil
}

// Servers say what scripts for this arena can count on.
func (a *Arena) Servers() Servers { return a.servers }

// Close ends the arena's sessions.
func (a *Arena) Close() {
	a.publisher.administrator.close()
	a.target.administrator.close()
}

// create makes the databases of one play, on both servers at once.
func (a *Arena) create(ctx context.Context, publisher string, targets []string) error {
	failed := make(chan error, 1)
	go func() { failed <- a.publisher.administrator.exec(ctx, "CREATE DATABASE "+publisher) }()
	var err error
	for _, name := range targets {
		if err == nil {
			err = a.target.administrator.exec(ctx, "CREATE DATABASE "+name)
		}
	}
	return errors.Join(<-failed, err)
}

// clear removes the databases of a play with all that hangs on them, and tells which
// server has crashed. The publisher's goes first: a native subscription that has
// brought its server down would do so again.
func (a *Arena) clear(ctx context.Context, publisher string, targets []string) (crashed *server, err error) {
	fell, err := a.revive(ctx, &a.publisher)
	if fell {
		crashed = &a.publisher
	}
	if err == nil {
		err = a.dropPublisher(ctx, publisher)
	}
	if err != nil {
		return crashed, err
	}
	if fell, err = a.revive(ctx, &a.target); fell {
		crashed = &a.target
	}
	for _, name := range targets {
		if err == nil {
			err = a.dropTarget(ctx, name)
		}
	}
	return crashed, err
}

// revive tells whether a server has crashed, and waits until it is up again.
func (a *Arena) revive(ctx context.Context, s *server) (crashed bool, err error) {
	if s.administrator.exec(ctx, `SELECT 1`) == nil {
		return false, nil
	}
	s.administrator.close()
	return true, a.until(ctx, func() (bool, error) {
		again, err := open(ctx, s.URI("postgres"))
		if err != nil {
			return false, nil // not up yet
		}
		s.administrator = again
		return true, nil
	})
}

// decide rolls back what is prepared in a database.
func (s *server) decide(ctx context.Context, database string) error {
	rows, err := s.administrator.query(ctx, fmt.Sprintf(`SELECT quote_literal(gid) FROM pg_prepared_xacts WHERE database = '%s'`, database))
	if err != nil {
		return err
	}
	statements := make([]string, len(rows))
	for i, row := range rows {
		statements[i] = "ROLLBACK PREPARED " + row[0]
	}
	return s.inside(ctx, database, statements)
}

// dropPublisher ends sessions, prepared transactions and slots before their database.
func (a *Arena) dropPublisher(ctx context.Context, name string) error {
	s := &a.publisher
	if err := s.decide(ctx, name); err != nil {
		return err
	}
	if err := a.until(ctx, func() (bool, error) {
		if err := s.administrator.exec(ctx, fmt.Sprintf(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '%s';
			SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '%[1]s' AND NOT active`, name)); err != nil {
			return false, err
		}
		left, err := s.administrator.query(ctx, fmt.Sprintf(`SELECT 1 FROM pg_replication_slots WHERE database = '%s'
			UNION ALL SELECT 1 FROM pg_stat_activity WHERE datname = '%[1]s'`, name))
		return len(left) == 0, err
	}); err != nil {
		return err
	}
	return s.administrator.exec(ctx, "DROP DATABASE IF EXISTS "+name)
}

// dropTarget ends a subscription, prepared transactions and origins before their
// database.
func (a *Arena) dropTarget(ctx context.Context, name string) error {
	s := &a.target
	rows, err := s.administrator.query(ctx, fmt.Sprintf(`SELECT s.subname FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid WHERE d.datname = '%s'`, name))
	if err != nil {
		return err
	}
	if len(rows) > 0 {
		if err := s.inside(ctx, name, []string{
			`ALTER SUBSCRIPTION s DISABLE`, `ALTER SUBSCRIPTION s SET (slot_name = NONE)`, `DROP SUBSCRIPTION s`,
		}); err != nil {
			return err
		}
	}
	if err := s.decide(ctx, name); err != nil {
		return err
	}
	if err := s.administrator.exec(ctx, fmt.Sprintf(`SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin
		WHERE roname ~ ('_' || (SELECT oid FROM pg_database WHERE datname = '%s') || '_')`, name)); err != nil {
		return err
	}
	return s.administrator.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
}

// inside runs statements in another database than the administrator's.
func (s *server) inside(ctx context.Context, database string, statements []string) error {
	if len(statements) == 0 {
		return nil
	}
	c, err := open(ctx, s.URI(database))
	if err != nil {
		return err
	}
	defer c.close()
	for _, statement := range statements {
		if err := c.exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// until repeats a question every few milliseconds until the answer is yes.
func (a *Arena) until(ctx context.Context, ask func() (bool, error)) error {
	limit := time.NewTimer(a.Patience)
	defer limit.Stop()
	pause := time.NewTicker(4 * time.Millisecond)
	defer pause.Stop()
	for {
		yes, err := ask()
		if yes || err != nil {
			return err
		}
		select {
		case <-pause.C:
		case <-limit.C:
			return errPatience
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var errPatience = errors.New("the time is up")

// playName names a database of a play, and the slot that goes with it. A publisher
// may have arenas with several targets.
func (a *Arena) playName(number int64, role string) string {
	return fmt.Sprintf("oracle_%d_%d_%s", a.target.Port(), number, role)
}
