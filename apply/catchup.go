package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pgapply/apply/state"
	"pgapply/apply/stream"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
	"pgapply/origin"
)

// What was copied beside the stream follows the publisher until both are at the same
// place, see sync.go.

// halvedPause is how often it is looked whether a prepared transaction has ended.
const halvedPause = time.Second

// near is how many bytes of the publisher's WAL the copied tables may be behind the
// stream when it stops for them.
const near = 16 << 20

// follow lets the copied tables catch up with the stream, until it can go on with them.
func (a *attempt) follow(ctx context.Context, s *stream.Stream, slot string, reached lsn.LSN) error {
	for {
		goal, ok := a.passed(ctx, s, reached)
		if !ok {
			return ctx.Err()
		}
		var err error
		if reached, err = a.catchUp(ctx, slot, reached, goal); err != nil {
			return err
		}
		if err := a.control.store.SetSynchronized(ctx, reached); err != nil {
			return TargetError(err)
		}
		halved, err := a.halved(ctx)
		if err != nil {
			return err
		}
		if halved == "" && s.Progress().Applied < reached+near {
			return nil
		}
		if halved == "" {
			continue
		}
		if err := a.sayHalved(ctx, halved); err != nil || !sleep(ctx, halvedPause) {
			return cmp.Or(err, ctx.Err())
		}
	}
}

// sayHalved records with the copied tables what keeps them from being handed over.
func (a *attempt) sayHalved(ctx context.Context, name string) error {
	reason := fmt.Sprintf("copied, and waits for prepared transaction %q to end, which may have changed it: on the publisher COMMIT PREPARED or ROLLBACK PREPARED", name)
	tables, err := a.control.store.Tables(ctx)
	if err != nil {
		return TargetError(err)
	}
	for _, table := range inState(tables, state.TableFinishedCopy, state.TableSyncDone) {
		if err := a.control.store.CatchUpFailed(ctx, table.Member, reason, false); err != nil {
			return TargetError(err)
		}
	}
	return nil
}

// passed waits until the stream has applied everything before the position, and more
// than that, or stands there, and returns where it is.
func (a *attempt) passed(ctx context.Context, s *stream.Stream, position lsn.LSN) (lsn.LSN, bool) {
	for {
		if applied := s.Progress().Applied; applied >= position {
			return applied, true
		}
		if !sleep(ctx, waitPause) {
			return 0, false
		}
	}
}

// catchUp applies to the copied tables what committed on the publisher from one position
// on up to the other, and returns up to where they have it: that is further where an
// earlier attempt came further.
func (a *attempt) catchUp(ctx context.Context, slot string, from, to lsn.LSN) (reached lsn.LSN, err error) {
	if to <= from {
		return from, nil
	}
	tables, err := a.control.store.Tables(ctx)
	if err != nil {
		return 0, TargetError(err)
	}
	member := newMembers(a.log)
	member.set(theirs(tables))
	session, release, err := a.openSync(ctx, "sync", member)
	if err != nil {
		return 0, err
	}
	defer release()
	progress, err := a.acquire(ctx, session, origin.CopyName(a.options.Name, a.control.target.DatabaseOID, 0), from, a.waitBeside)
	if err != nil {
		return 0, err
	}
	start := max(progress, from)
	if start >= to {
		return start, targetErrorOrNil(a.control.store.SetReached(ctx, start))
	}
	publisher, err := a.dial(ctx, a.options.Name+":sync")
	if err != nil {
		return 0, err
	}
	defer func() { _ = publisher.Close() }()
	streaming := "on"
	if a.streaming() == "off" {
		streaming = "off"
	}
	var feed *source.Stream
	err = a.waitBeside(ctx, func() (string, error) {
		var err error
		feed, err = publisher.StartStream(ctx, source.StreamOptions{
			Slot: slot, Start: start, Publications: a.options.Publications, Streaming: streaming, Binary: a.options.Binary, Origin: a.options.Origin,
		})
		if busy, ok := errors.AsType[*source.SlotBusyError](err); ok {
			return busy.Error(), nil
		}
		return "", err
	})
	if err != nil {
		return 0, sourceErrorOrRefused(err)
	}
	feed.Ask() // the end may lie behind everything that the publisher will ever send
	caughtUp := stream.New(stream.Options{
		Source: feed, Target: session,
		Budget:      txn.NewBudget(a.options.MemoryLimit / 4),
		CreateSpool: func() (txn.SpoolFile, error) { return a.files.Create() },
		Limits:      a.limits(),
		Resume:      start, Recorded: from, End: to, Skip: a.skip,
		Synchronous: a.options.SynchronousCommit != "off",
		State:       setRecorder{a.recorder()},
		Log:         a.log,
	})
	if err := streamError(caughtUp.Run(ctx)); err != nil {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return to, targetErrorOrNil(a.control.store.SetReached(ctx, to))
}

// theirs lets only the copied tables take part in a stream.
func theirs(tables []state.Table) []state.Table {
	list := slices.Clone(tables)
	for i, table := range list {
		switch table.State {
		case state.TableFinishedCopy, state.TableSyncDone:
			list[i].State = state.TableReady
		case state.TableInit, state.TableDataSync, state.TableReady:
			list[i].State = state.TableInit
		}
	}
	return list
}

// setRecorder keeps how far a copy set is.
type setRecorder struct{ recorder }

func (r setRecorder) Acknowledge(ctx context.Context, position lsn.LSN) error {
	return targetErrorOrNil(r.SetReached(ctx, position))
}

// ClearSkip leaves that to the subscription's own stream.
func (setRecorder) ClearSkip(context.Context, lsn.LSN) error { return nil }

// halved names a transaction that is prepared on the target, or was committed there by
// hand, of which the publisher has not said yet how it ends, and of whose changes some were
// left out: what it did to tables that were not ready comes to them as a whole when it
// ends. Of one that was prepared before the start nobody knows what was left out of it.
func (a *attempt) halved(ctx context.Context) (string, error) {
	prepared, err := a.control.store.Prepared(ctx, a.preparedPrefix())
	if err != nil {
		return "", TargetError(err)
	}
	names, err := a.control.store.CommittedByHand(ctx)
	if err != nil {
		return "", TargetError(err)
	}
	for _, p := range prepared {
		names = append(names, p.Name)
	}
	for _, name := range names {
		if _, whole := a.engine.whole.Load(name); !whole {
			return name, nil
		}
	}
	return "", nil
}
