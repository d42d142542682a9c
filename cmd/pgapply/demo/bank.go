package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgapply/apply"
	"pgapply/apply/tablesync"
	"pgapply/internal/cluster"
	"pgapply/internal/lsn"
)

//go:embed schema.sql
var schema string

const (
	database    = "bank"
	publication = "bank"
	slot        = "demo"
)

// bank is the two servers, with the schema on both.
type bank struct{ publisher, target *cluster.Cluster }

func openBank(ctx context.Context, progress func(string)) (_ *bank, err error) {
	// Both servers need the same programs; looked for once, they are fetched once.
	found, err := cluster.Newest(ctx, progress)
	if err != nil {
		return nil, err
	}
	progress(fmt.Sprintf("starting two servers of PostgreSQL %s, found in %s", found.Version, found.BinDir))
	b := &bank{}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	servers, ctx := errgroup.WithContext(ctx)
	open := func(server **cluster.Cluster, what string, settings map[string]string, statements ...string) {
		servers.Go(func() error {
			var err error
			if *server, err = cluster.Start(ctx, cluster.Options{Settings: settings}); err != nil {
				return fmt.Errorf("start the %s: %w", what, err)
			}
			if err := execute(ctx, (*server).URI("postgres"), "CREATE DATABASE "+database); err != nil {
				return fmt.Errorf("create a database on the %s: %w", what, err)
			}
			if err := execute(ctx, (*server).URI(database), statements...); err != nil {
				return fmt.Errorf("create the tables on the %s: %w", what, err)
			}
			return nil
		})
	}
	open(&b.publisher, "publisher",
		// So little that large transactions are streamed before they commit.
		map[string]string{"logical_decoding_work_mem": "1MB"},
		append([]string{schema, "CREATE PUBLICATION " + publication + " FOR ALL TABLES"}, opening()...)...)
	open(&b.target, "target", nil, schema)
	return b, servers.Wait()
}

// opening are the rows that the bank has from the start.
func opening() []string {
	return []string{
		fmt.Sprintf("INSERT INTO branches SELECT i, 'branch ' || i FROM generate_series(1, %d) i", branches),
		fmt.Sprintf("INSERT INTO accounts SELECT i, 1 + i %% %d, 'owner ' || i, 1000 FROM generate_series(1, %d) i", branches, accounts),
		fmt.Sprintf(`INSERT INTO contracts SELECT i, 1, repeat(md5(i::text), 100), '{new,"with, comma"}' FROM generate_series(1, %d) i`, accounts/20),
		"ANALYZE",
	}
}

func (b *bank) close() error {
	var faults []error
	for _, server := range []*cluster.Cluster{b.publisher, b.target} {
		if server != nil {
			faults = append(faults, server.Close())
		}
	}
	return errors.Join(faults...)
}

// replication is what the engine is asked to do.
func (b *bank) replication(demo Options, say func(string)) apply.Options {
	options := apply.DefaultOptions()
	options.Name = slot
	options.Source, options.Target = b.publisher.URI(database), b.target.URI(database)
	options.Publications = []string{publication}
	options.OnError = "stop"
	options.ShowCopy = func(progress *tablesync.Progress) func() {
		began := time.Now()
		return func() {
			c := apply.CopyStatus(progress)
			say(fmt.Sprintf("copied     %s in %s, %d ms", counted(c.Rows, "row"), counted(int64(c.Done), "table"), time.Since(began).Milliseconds()))
		}
	}
	options.Log, options.Version = demo.Log, demo.Version
	return options
}

// position is the end of the publisher's WAL.
func position(ctx context.Context, publisher *pgx.Conn) (end lsn.LSN, err error) {
	var text string
	if err := publisher.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()").Scan(&text); err != nil {
		return 0, fmt.Errorf("ask the publisher for its position: %w", err)
	}
	return lsn.Parse(text)
}

// execute runs statements on a connection of its own.
func execute(ctx context.Context, uri string, statements ...string) error {
	conn, err := pgx.Connect(ctx, uri)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, statement := range statements {
		if _, err := conn.PgConn().Exec(ctx, statement).ReadAll(); err != nil {
			return err
		}
	}
	return nil
}
