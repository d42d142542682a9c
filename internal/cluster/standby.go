package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// StartStandby starts a hot standby of a server that runs, of major 15 or later, and
// returns when it accepts connections. It has the primary's settings, but for
// hot_standby_feedback, which is on, what concerns its link to the primary, and the
// settings of the options. On the primary it takes
// a physical slot, which lives on when the standby is closed. Of the options, Major and
// ServerDir have no meaning.
//
// It copies files between pg_backup_start and pg_backup_stop, since not every
// installation comes with pg_basebackup.
func StartStandby(ctx context.Context, primary *Cluster, options Options) (*Cluster, error) {
	cache, err := openCache(primary.account)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(primary.installation, options.Dir, cache)
	if err != nil {
		return nil, err
	}
	fill := func(ctx context.Context) error { return c.follow(ctx, primary, options) }
	if err := c.create(ctx, fill, cache.reservePort); err != nil {
		return nil, errors.Join(fmt.Errorf("make a standby of the server in %s: %w", primary.directory, err), c.Close())
	}
	return c, nil
}

// follow fills the directory with a backup of the primary, and makes it a standby.
func (c *Cluster) follow(ctx context.Context, primary *Cluster, options Options) error {
	connection, err := pgconn.Connect(ctx, primary.URI("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(context.WithoutCancel(ctx)) }() // ends the backup too, after an error
	slot := fmt.Sprintf("standby_%08x", rand.Uint32())
	if _, err := connection.Exec(ctx, "SELECT pg_create_physical_replication_slot('"+slot+"', true)").ReadAll(); err != nil {
		return fmt.Errorf("create a slot for the standby: %w", err)
	}
	if _, err := connection.Exec(ctx, "SELECT pg_backup_start('standby', true)").ReadAll(); err != nil {
		return fmt.Errorf("start a backup: %w", err)
	}
	if err := copyTree(primary.data(), c.data(), c.account, leftOut); err != nil {
		return err
	}
	stopped, err := connection.Exec(ctx, "SELECT labelfile FROM pg_backup_stop(false)").ReadAll()
	if err != nil {
		return fmt.Errorf("stop the backup: %w", err)
	}
	for name, content := range map[string][]byte{"backup_label": stopped[0].Rows[0][0], "standby.signal": nil} {
		path := filepath.Join(c.data(), name)
		if err := errors.Join(os.WriteFile(path, content, 0o600), c.account.own(path)); err != nil {
			return fmt.Errorf("write a file of the standby: %w", err)
		}
	}
	return c.configure(map[string]string{
		"hot_standby_feedback": "on",
		// The database is for those that synchronize slots.
		"primary_conninfo":  fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres application_name=%s", Host, primary.port, slot),
		"primary_slot_name": slot,
		// How long it leaves a primary alone that was not there.
		"wal_retrieve_retry_interval": "100ms",
		// How often it says what its queries and slots need.
		"wal_receiver_status_interval": "1s",
	}, options)
}

// leftOut is what a backup does not need, see "Making a Base Backup Using the Low Level
// API" in the PostgreSQL manual. The standby streams the WAL.
func leftOut(relative string) bool {
	directory, _, inside := strings.Cut(filepath.ToSlash(relative), "/")
	name := filepath.Base(relative)
	return inside && slices.Contains([]string{
		"pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans",
	}, directory) ||
		slices.Contains([]string{"postmaster.pid", "postmaster.opts", "pg_internal.init"}, name) || strings.HasPrefix(name, "pgsql_tmp")
}
