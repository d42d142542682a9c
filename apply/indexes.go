package apply

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/apply/tablesync"
)

// Indexes that are dropped for the time of a copy are made again when it has ended, or
// by the next start before it streams. Between the two, however long that takes, their
// definitions are in the state.

// makeLeftIndexes makes those that an earlier process has not come to.
func (a *attempt) makeLeftIndexes(ctx context.Context) error {
	left, err := a.control.store.DeferredIndexes(ctx)
	if err != nil || len(left) == 0 {
		return targetErrorOrNil(err)
	}
	a.engine.phase(state.Copying, fmt.Sprintf("%d indexes that a copy has dropped are made again", len(left)))
	defer a.engine.phase(state.Starting, "")
	return a.makeIndexes(ctx)
}

// makeIndexes makes again what copies have dropped. One that cannot be made stays
// recorded, for a person to see and for the next start.
func (a *attempt) makeIndexes(ctx context.Context) error {
	deferred, err := a.control.store.DeferredIndexes(ctx)
	if err != nil || len(deferred) == 0 {
		return targetErrorOrNil(err)
	}
	indexes := make([]tablesync.Index, len(deferred))
	for i, index := range deferred {
		indexes[i] = tablesync.Index{
			Table: tablesync.Table{Schema: index.Table.Schema, Name: index.Table.Name}, Name: index.Name, Definition: index.Definition,
		}
	}
	a.log.Info("make indexes again that the copy has dropped", zap.Int("indexes", len(indexes)), zap.Int("jobs", a.options.TableJobs))
	built, err := tablesync.BuildIndexes(ctx, a.copyOptions(), indexes, func(_ context.Context, index tablesync.Index, exec tablesync.Exec) error {
		return exec(a.control.store.IndexBuiltSQL(deferredIndex(index)))
	})
	for _, index := range built {
		switch {
		case index.Err != nil:
			a.log.Error(index.Err.Error(), zap.String("hint", copyHint(index.Err)))
		case index.Built:
			a.log.Info("made an index again", zap.String("index", printable(index.Name)), zap.String("table", printable(index.Table.String())),
				zap.Float64("seconds", index.Duration.Seconds()))
		}
	}
	if err != nil {
		return copyError(err)
	}
	return nil
}

// indexRecorder keeps the definitions of dropped indexes in the state.
type indexRecorder struct{ store *state.Store }

func (r indexRecorder) Dropping(_ context.Context, _ tablesync.Table, indexes []tablesync.Index, exec tablesync.Exec) error {
	for _, index := range indexes {
		if err := exec(r.store.DeferIndexSQL(deferredIndex(index))); err != nil {
			return err
		}
	}
	return nil
}

func deferredIndex(index tablesync.Index) state.DeferredIndex {
	return state.DeferredIndex{Table: member(index.Table), Name: index.Name, Definition: index.Definition}
}
