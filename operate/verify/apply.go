package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	writing "pgapply/apply/target"
)

// Repairer writes what the publisher has onto the target:
//
//	publisher: lock rows, read them ──► the target applies up to there ──► target: lock
//	each, write what differs still, commit ──► publisher: let go
//
// While the publisher's row is locked nothing of it is on its way, and nothing that comes
// later can be overwritten. A row that the publisher does not have cannot be locked
// there: the target's is, and then the publisher is asked once more. An insert that
// commits after that waits for us, and comes behind our delete.
//
// What it writes is stamped with a replication origin, so that it does not travel on.
type Repairer struct {
	source, target *session
	// stamps: the session has an origin.
	stamps bool
}

// NewRepairer opens a session to each end. The origin, which must exist, is free for it;
// without a name what is repaired has none.
func NewRepairer(ctx context.Context, options *Options, origin string) (*Repairer, error) {
	// A lock on a row is a write.
	source, err := open(ctx, "publisher", options.Source, options.ApplicationName, map[string]string{"default_transaction_read_only": "off"})
	if err != nil {
		return nil, &EndError{Err: err}
	}
	// As for all changes that come from the publisher, triggers do not fire.
	target, err := open(ctx, "target", options.Target, options.ApplicationName, map[string]string{
		"default_transaction_read_only": "off",
	})
	if err == nil {
		_, err = target.query(ctx, writing.QuietSQL)
	}
	if err == nil && origin != "" {
		_, err = target.query(ctx, `SELECT pg_catalog.pg_replication_origin_session_setup(`+literal(origin)+`)`)
	}
	if err != nil {
		source.close()
		if target != nil {
			target.close()
		}
		return nil, &EndError{Target: true, Err: fmt.Errorf("prepare the repair: %w", err)}
	}
	return &Repairer{source: source, target: target, stamps: origin != ""}, nil
}

// Close gives the origin back, and ends the sessions.
func (r *Repairer) Close() {
	if r.stamps && !r.target.conn.IsClosed() {
		ctx, cancel := context.WithTimeout(context.Background(), cancelGrace)
		defer cancel()
		// Otherwise the server does, a moment after the session has ended.
		_, _ = r.target.query(ctx, `SELECT pg_catalog.pg_replication_origin_session_reset()`)
	}
	r.source.close()
	r.target.close()
}

// lockAtOnce is how many of the publisher's rows are locked together.
const lockAtOnce = 100

// Apply repairs the differences, all of them and not only those that are listed.
func (r *Repairer) Apply(ctx context.Context, d *Differences) error {
	var list []*candidate
	for _, candidate := range d.list {
		if d.repairable(candidate) {
			list = append(list, candidate)
		}
	}
	for batch := range slices.Chunk(list, lockAtOnce) {
		if err := r.batch(ctx, d, batch); err != nil {
			return err
		}
	}
	return nil
}

// held is a row of the publisher that cannot change.
type held struct {
	values []value // nil where there is no row
	is     image
}

func (r *Repairer) batch(ctx context.Context, d *Differences, batch []*candidate) (err error) {
	defer func() { err = errors.Join(err, r.rollback()) }()
	if _, err := r.source.query(ctx, "BEGIN"); err != nil {
		return &EndError{Err: err}
	}
	rows := make([]held, len(batch))
	for i, candidate := range batch {
		if rows[i].values, rows[i].is, err = d.table.read(ctx, r.source, candidate, " FOR SHARE"); err != nil {
			return &EndError{Err: fmt.Errorf("lock a row of the publisher's table %s: %w", d.table, err)}
		}
	}
	committed, err := d.comparison.now(ctx)
	if err != nil {
		return err
	}
	behind, err := d.comparison.follow(ctx, committed, time.Now().Add(d.comparison.options.Patience))
	switch {
	case err != nil:
		return err
	case !d.comparison.follows():
		return ErrAlone
	case behind != "":
		return fmt.Errorf("nothing more is repaired: %s", behind)
	}
	for i, candidate := range batch {
		done, err := r.row(ctx, d.table, candidate, rows[i])
		switch {
		case err != nil:
			return err
		case done:
			d.report.Repaired++
		default:
			d.report.Spared++
		}
	}
	return nil
}

// ErrAlone says that nobody applies, so that what is on its way would come behind a repair.
var ErrAlone = errors.New("no runner applies: what is on its way to the target would come behind the repair")

// row repairs one row, and tells whether it was still to be.
func (r *Repairer) row(ctx context.Context, t *table, c *candidate, source held) (done bool, err error) {
	ours := func(doing string, err error) error {
		return &EndError{Target: true, Err: fmt.Errorf("%s of the target's table %s: %w", doing, t, err)}
	}
	if _, err := r.target.query(ctx, "BEGIN"); err != nil {
		return false, ours("repair a row", err)
	}
	defer func() { err = errors.Join(err, r.target.rollback()) }()
	lock := fmt.Sprintf("SELECT FROM %s WHERE %s FOR UPDATE", t.whole(targetEnd), t.keyCondition([]*candidate{c}))
	if _, err := r.target.query(ctx, lock); err != nil {
		return false, ours("lock a row", err)
	}
	local, err := r.local(ctx, t, c, source.values != nil)
	if err != nil {
		return false, ours("read a row", err)
	}
	if source.values == nil {
		come, _, err := t.read(ctx, r.source, c, "")
		if err != nil {
			return false, &EndError{Err: err}
		}
		if come != nil {
			return false, nil // and is on its way
		}
	}
	if local.sum == source.is.sum {
		return false, nil
	}
	now := &candidate{id: c.id, values: c.values, source: source.is, target: local}
	if _, err := r.target.query(ctx, t.statement(now, source.values)); err != nil {
		return false, ours("repair a row", err)
	}
	// It is durable before the publisher's row is let go.
	if _, err := r.target.query(ctx, "SET LOCAL synchronous_commit TO local; COMMIT"); err != nil {
		return false, ours("repair a row", err)
	}
	return true, nil
}

// local reads the target's row. One that is not published counts where the publisher
// has one of that key.
func (r *Repairer) local(ctx context.Context, t *table, c *candidate, any bool) (is image, err error) {
	err = r.target.each(ctx, t.lookSQL(targetEnd, []*candidate{c}), func(row [][]byte) error {
		if string(row[0]) == strconv.FormatInt(c.id, 10) && (any || string(row[2]) == "t") {
			is = is.with(1, "", row[4:])
		}
		return nil
	})
	return is, err
}

// rollback ends what is open on both ends.
func (r *Repairer) rollback() error { return errors.Join(r.target.rollback(), r.source.rollback()) }
