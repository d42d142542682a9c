package apply

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"pgapply/apply/target"
)

// errUndone ends an attempt that failed at a transaction which never comes to anything.
var errUndone = errors.New("the publisher has rolled back the transaction that failed")

// unlessUndone finds out, of a prepared transaction that failed, whether the publisher has
// rolled it back since. It is no error then: the next attempt leaves its changes out, and
// its ROLLBACK PREPARED follows. They need not even fit together. From 18 on a publisher
// drops what it has not kept in memory of a transaction that it finds rolled back, and
// sends the rest (ReorderBufferCheckAndTruncateAbortedTXN in reorderbuffer.c), also where
// that is the subtransactions of one whose own changes are dropped.
func (a *attempt) unlessUndone(ctx context.Context, err error) error {
	failed, ok := errors.AsType[*target.TransactionError](err)
	if !ok || !failed.Prepared || a.engine.undone == failed.EndLSN {
		return err
	}
	publisher, trouble := a.dial(ctx, a.options.Name+":start")
	if trouble != nil {
		return err // which another attempt meets again
	}
	defer func() { _ = publisher.Close() }() // it has answered
	rolledBack, trouble := publisher.RolledBack(ctx, failed.XID)
	if trouble != nil || !rolledBack {
		return err
	}
	a.log.Info("the publisher has rolled back a prepared transaction that cannot be applied: its changes are left out",
		zap.Uint32("xid", failed.XID), zap.Stringer("finished_at", failed.EndLSN), zap.NamedError("reason", failed))
	a.engine.undone = failed.EndLSN
	return errUndone
}
