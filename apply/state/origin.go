package state

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/lsn"
)

// Origin is a replication origin that was made for the subscription. The resume
// point is the maximum over all of them, and only cleanup takes one away.
type Origin struct {
	Name string
	// ID is its pg_replication_origin.roident; 0 while it is not known to exist.
	ID     uint32
	Worker int
}

// RegisterOrigin records an origin: with ID 0 before it is created, so that
// none is ever left that the state does not name, and with its ID afterwards.
// An ID, once recorded, is not taken back by 0.
func (s *Store) RegisterOrigin(ctx context.Context, origin Origin) error {
	doing := fmt.Sprintf("register replication origin %q", origin.Name)
	touched, err := s.exec(ctx, doing, `
		INSERT INTO pgapply.origin AS o (subscription, origin_name, roident, worker)
		VALUES ($1, $2, nullif($3::int8, 0)::oid, $4)
		ON CONFLICT (origin_name) DO UPDATE SET roident = coalesce(EXCLUDED.roident, o.roident), worker = EXCLUDED.worker
		WHERE o.subscription = EXCLUDED.subscription`, origin.Name, int64(origin.ID), origin.Worker)
	if err == nil && touched == 0 {
		return fmt.Errorf("%s: it belongs to another subscription", doing)
	}
	return err
}

// MakeOrigin creates an origin unless it exists, and records it: both or neither.
func (s *Store) MakeOrigin(ctx context.Context, origin Origin) error {
	doing := fmt.Sprintf("create replication origin %q", origin.Name)
	touched, err := s.exec(ctx, doing, `
		INSERT INTO pgapply.origin AS o (subscription, origin_name, roident, worker)
		SELECT $1::text, $2::text, coalesce((SELECT roident FROM pg_catalog.pg_replication_origin WHERE roname = $2), pg_catalog.pg_replication_origin_create($2)), $3::int4
		WHERE NOT EXISTS (SELECT FROM pgapply.origin WHERE origin_name = $2 AND subscription <> $1)
		ON CONFLICT (origin_name) DO UPDATE SET roident = EXCLUDED.roident, worker = EXCLUDED.worker`, origin.Name, origin.Worker)
	if err == nil && touched == 0 {
		return fmt.Errorf("%s: it belongs to another subscription", doing)
	}
	return err
}

// Origins lists the origins of the subscription in the order of their workers.
func (s *Store) Origins(ctx context.Context) ([]Origin, error) {
	return rows(ctx, s, "list the replication origins", pgx.RowToStructByPos[Origin],
		`SELECT origin_name, coalesce(roident, 0::oid), worker FROM pgapply.origin WHERE subscription = $1 ORDER BY worker, origin_name`)
}

// FoundOrigin is a recorded origin as the target has it.
type FoundOrigin struct {
	Origin
	// Exists: the target's origin of that number has that name. Replaced: it has another
	// name, since ours was dropped and the number given anew.
	Exists, Replaced bool
}

// FindOrigins is [Store.Origins] with a look at the target's own list of origins.
func (s *Store) FindOrigins(ctx context.Context) ([]FoundOrigin, error) {
	return rows(ctx, s, "look for the replication origins", pgx.RowToStructByPos[FoundOrigin],
		`SELECT o.origin_name, coalesce(o.roident, 0::oid), o.worker, coalesce(r.roname = o.origin_name, false), coalesce(r.roname <> o.origin_name, false)
		FROM pgapply.origin o LEFT JOIN pg_catalog.pg_replication_origin r ON r.roident = o.roident
		WHERE subscription = $1 ORDER BY worker, origin_name`)
}

// ForgetOrigin takes an origin off the list, after it was dropped.
func (s *Store) ForgetOrigin(ctx context.Context, name string) error {
	_, err := s.exec(ctx, fmt.Sprintf("forget replication origin %q", name),
		`DELETE FROM pgapply.origin WHERE subscription = $1 AND origin_name = $2`, name)
	return err
}

// Progress is how far the subscription is applied: the end of the last transaction
// that committed on the target. It is 0 when none did.
func (s *Store) Progress(ctx context.Context) (lsn.LSN, error) {
	progress, err := rows(ctx, s, "read the progress", pgx.RowTo[string],
		`SELECT coalesce(pg_catalog.max(position), '0/0')::text FROM pgapply.progress WHERE subscription = $1 AND gid IS NULL`)
	if err != nil {
		return 0, err
	}
	return lsn.Parse(progress[0])
}

// PruneProgress deletes the rows of table progress that a later one has made
// useless. It may run while transactions add to them.
func (s *Store) PruneProgress(ctx context.Context) error {
	_, err := s.exec(ctx, "prune the progress", `DELETE FROM pgapply.progress p WHERE subscription IN ($1, $1 || '.sync') AND gid IS NULL
		AND position < (SELECT pg_catalog.max(position) FROM pgapply.progress o WHERE o.subscription = p.subscription AND gid IS NULL)`)
	return err
}

// ForgetProgress deletes all rows of table progress, for a subscription that begins.
func (s *Store) ForgetProgress(ctx context.Context) error {
	_, err := s.exec(ctx, "begin the progress", `DELETE FROM pgapply.progress WHERE subscription IN ($1, $1 || '.sync')`)
	return err
}
