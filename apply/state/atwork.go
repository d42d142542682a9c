package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/internal/conninfo"
)

// AtWork looks, over a connection of its own, whether the target is working on what a
// session was asked: whether it answers at all, and its process of that pid is neither gone
// nor waits for its client. A target that answers, and says only that nobody may look now,
// such as one whose connections are all taken, counts as one that works. An error is that of
// one which does not answer.
func AtWork(ctx context.Context, uri, passfile, name string, pid uint32) (bool, error) {
	config, err := conninfo.Parse("target", uri, passfile, controlSettings())
	if err != nil {
		return false, err
	}
	config.RuntimeParams["application_name"] = "pgapply:" + name + ":probe"
	var works bool
	conn, err := pgx.ConnectConfig(ctx, config)
	if err == nil {
		// One who may not see what a session does is told nothing of it.
		err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND coalesce(state, '') NOT LIKE 'idle%')`, int32(pid)).Scan(&works) //nolint:gosec // a pid is one
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(bounded) // it has said what it was to say
	}
	if _, said := errors.AsType[*pgconn.PgError](err); said {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look what the target does: %w", conninfo.ConnectError(err))
	}
	return works, nil
}
