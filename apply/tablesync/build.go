package tablesync

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"pgapply/apply/target"
)

// BuiltIndex is what became of an index that was to be made again.
type BuiltIndex struct {
	Index
	// Built tells that it is there, and that built was called for it.
	Built    bool
	Duration time.Duration
	// Err is why it could not be made, an *IndexError.
	Err error
}

// IndexError says why an index could not be made again. Others are not concerned.
type IndexError struct {
	Index Index
	Err   error
	// Hint is the remedy, or empty.
	Hint string
}

func (e *IndexError) Error() string {
	return strings.ToValidUTF8(fmt.Sprintf(`make index "%s" of table "%s" again: %s`, e.Index.Name, e.Index.Table, target.Describe(e.Err)), "?")
}

// Unwrap returns the cause.
func (e *IndexError) Unwrap() error { return e.Err }

// BuildIndexes makes indexes again that a copy has dropped, as many at a time as there
// are jobs, in the sessions that o describes; it needs nothing of the publisher. built is
// called within the transaction that makes an index, to forget its definition: what exec
// does commits with it. It may be called from several goroutines. An index that is there,
// or whose table is gone, has its definition forgotten only.
//
// The result has the order of indexes. The error is for what concerns all of them: the
// target cannot be reached, a later runner has taken over, built refuses, or ctx has ended.
func BuildIndexes(ctx context.Context, o Options, indexes []Index, built func(ctx context.Context, index Index, exec Exec) error) ([]BuiltIndex, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	results := make([]BuiltIndex, len(indexes))
	next := make(chan *BuiltIndex, len(indexes))
	for i, index := range indexes {
		results[i].Index = index
		next <- &results[i]
	}
	close(next)
	var mu sync.Mutex // results that are read when an error has ended all
	builders, ctx := errgroup.WithContext(ctx)
	for number := range min(max(o.Jobs, 1), len(indexes)) {
		builders.Go(func() error {
			j := &job{copying: &copying{Options: o}, number: number}
			defer j.close()
			for result := range next {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				started := time.Now()
				err := j.build(ctx, result.Index, built)
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				fault, single := errors.AsType[*IndexError](err)
				if err != nil && !single {
					return err
				}
				mu.Lock()
				result.Duration, result.Built = time.Since(started), err == nil
				if single {
					result.Err = fault
				}
				mu.Unlock()
			}
			return nil
		})
	}
	err := builders.Wait()
	mu.Lock()
	defer mu.Unlock()
	return results, err
}

// build makes one index in a transaction.
func (j *job) build(ctx context.Context, index Index, built func(context.Context, Index, Exec) error) (err error) {
	if j.session == nil {
		if j.session, err = j.openSession(ctx, j.number); err != nil {
			return err
		}
	}
	defer j.while(ctx)()
	err = j.makeIndex(ctx, index, built)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if j.session.rollback() != nil || !j.session.usable() {
		j.closeSession()
	}
	if serious(err) || lost(err) {
		return err
	}
	fault := &IndexError{Index: index, Err: err}
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
	case refusal.Code == "23505" || refusal.Code == "23P01":
		fault.Hint = "rows of the target contradict it: remove them, or drop the index from the state if it is not wanted"
	case refusal.Code == "53100":
		fault.Hint = "make room on the target's disk"
	case refusal.Code == "42501":
		fault.Hint = "the role of --target must own the table"
	}
	return fault
}

func (j *job) makeIndex(ctx context.Context, index Index, built func(context.Context, Index, Exec) error) error {
	if err := j.session.begin(); err != nil {
		return err
	}
	// The table's row, and whether it has an index of that name.
	rows, err := j.session.Query(`
		SELECT EXISTS (SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
			WHERE i.indrelid = c.oid AND ic.relname = $3)
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, index.Table.Schema, index.Table.Name, index.Name)
	if err != nil {
		return err
	}
	wanted := len(rows) > 0 && string(rows[0][0]) == "f"
	if wanted {
		if err := j.session.exec(index.Definition); err != nil {
			return err
		}
	} else {
		j.Log.Info("an index need not be made again: it is there, or its table is gone",
			zap.String("index", index.Name), zap.String("table", index.Table.String()))
	}
	if err := j.record(func(exec Exec) error { return built(ctx, index, exec) }); err != nil {
		return err
	}
	return j.session.commit(true)
}
