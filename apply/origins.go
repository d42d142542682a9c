package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/apply/target"
	"pgapply/internal/lsn"
	"pgapply/origin"
)

// Each session that applies or copies has a replication origin of its own, where the role
// may use them. The state has the list, and the target says which of it still exist.

func (a *attempt) originOf(worker int) string {
	return origin.Name(a.options.Name, a.control.target.DatabaseOID, worker)
}

// findOrigins reads the list. Whoever makes origins finds them again.
func (a *attempt) findOrigins(ctx context.Context) (err error) {
	a.origins, err = a.control.store.FindOrigins(ctx)
	return targetErrorOrNil(err)
}

// living tells whether an origin of ours exists.
func (a *attempt) living(name string) bool {
	return slices.ContainsFunc(a.origins, func(o state.FoundOrigin) bool { return o.Name == name && o.Exists })
}

// newOrigin makes the origin anew: a left-over of the same name holds a position
// that means nothing to the slot that is about to exist.
func (a *attempt) newOrigin(ctx context.Context) error {
	if !a.stamped() {
		return targetErrorOrNil(a.control.store.ForgetProgress(ctx))
	}
	if err := a.control.store.RegisterOrigin(ctx, state.Origin{Name: a.originOf(0)}); err != nil {
		return TargetError(err)
	}
	for _, name := range a.positionedOrigins() {
		if err := origin.Drop(a.session, name); err != nil {
			return TargetError(err)
		}
	}
	if err := a.control.store.ForgetProgress(ctx); err != nil {
		return TargetError(err)
	}
	if err := a.control.store.MakeOrigin(ctx, state.Origin{Name: a.originOf(0)}); err != nil {
		return TargetError(err)
	}
	return a.findOrigins(ctx)
}

// dropStrangers drops origins of our names that the state does not know: what an earlier
// subscription has left holds a position that means nothing to this one.
func (a *attempt) dropStrangers(ctx context.Context) error {
	for _, name := range a.positionedOrigins() {
		if a.living(name) {
			continue
		}
		if err := origin.Drop(a.session, name); err != nil {
			return TargetError(err)
		}
	}
	return nil
}

// positionedOrigins are the names of those whose position counts: the first one's, and the copies'.
func (a *attempt) positionedOrigins() []string {
	list := []string{a.originOf(0)}
	for job := range a.options.TableJobs {
		list = append(list, origin.CopyName(a.options.Name, a.control.target.DatabaseOID, job))
	}
	return list
}

// settleProgress proves that the progress is where it was, or moves it: the table has it
// in either case.
func (a *attempt) settleProgress(ctx context.Context, subscription *state.Subscription) error {
	a.unstampedUntil = subscription.UnstampedUntil
	place := a.control.terms.Progress
	if place == subscription.ProgressIn {
		if place == state.InTable {
			return nil
		}
		if !a.living(a.originOf(0)) {
			return a.ends().LostOrigin(a.originOf(0)) // its progress is what the slot goes with
		}
		return nil
	}
	if place == state.InOrigins {
		if err := a.dropStrangers(ctx); err != nil {
			return err
		}
		if err := a.control.store.MakeOrigin(ctx, state.Origin{Name: a.originOf(0)}); err != nil {
			return TargetError(err)
		}
		if err := a.findOrigins(ctx); err != nil {
			return err
		}
		a.log.Info("transactions are stamped with replication origins from now on; rows from before count as our own")
	} else {
		a.log.Warn("transactions are not stamped with replication origins any more", zap.String("progress", a.options.Progress))
	}
	if err := a.control.store.SetProgressIn(ctx, place); err != nil {
		return TargetError(err)
	}
	now, err := a.control.store.Subscription(ctx)
	if err != nil {
		return TargetError(err)
	}
	a.unstampedUntil = now.UnstampedUntil
	return nil
}

// makeOrigins makes the origins of the workers and of the copying sessions, unless they
// are there: a session is told once which rows are ours, also of those that are copied
// later. They are kept, since rows carry their numbers.
func (a *attempt) makeOrigins(ctx context.Context) error {
	var missing []state.Origin
	for worker := 1; worker < a.sessions(); worker++ {
		missing = append(missing, state.Origin{Name: a.originOf(worker), Worker: worker})
	}
	for job := range a.options.TableJobs {
		missing = append(missing, state.Origin{Name: origin.CopyName(a.options.Name, a.control.target.DatabaseOID, job), Worker: -1 - job})
	}
	missing = slices.DeleteFunc(missing, func(o state.Origin) bool { return a.living(o.Name) })
	if len(missing) == 0 {
		return nil
	}
	for _, o := range missing {
		if err := a.control.store.MakeOrigin(ctx, o); err != nil {
			return TargetError(err)
		}
	}
	return a.findOrigins(ctx)
}

// acquireFirst gives the first session its origin, and reads the progress.
func (a *attempt) acquireFirst(ctx context.Context) (err error) {
	if a.stamped() {
		if err := a.makeOrigins(ctx); err != nil {
			return err
		}
	}
	a.progress, err = a.acquire(ctx, a.session, a.originOf(0), a.known, a.wait)
	return err
}

// acquireOthers gives the workers theirs, one after the other: where the target has no room
// for all, a later start with fewer needs those of the first, and the target keeps the place
// of each that was ever used.
func (a *attempt) acquireOthers(ctx context.Context) error {
	var resumes []step
	for i, worker := range a.workers {
		if err := a.take(ctx, worker, a.originOf(i+1), a.wait); err != nil {
			return err
		}
		resumes = append(resumes, func(context.Context) error {
			_, err := worker.Resume(a.known)
			return targetErrorOrNil(err)
		})
	}
	return together(resumes...)(ctx)
}

// acquire makes an origin a session's own, and reads the progress: floor where there is
// none.
func (a *attempt) acquire(ctx context.Context, session *target.Session, name string, floor lsn.LSN,
	wait func(context.Context, func() (string, error)) error,
) (lsn.LSN, error) {
	if err := a.take(ctx, session, name, wait); err != nil {
		return 0, err
	}
	progress, err := session.Resume(floor)
	return progress, targetErrorOrNil(err)
}

// take makes an origin a session's own, and all origins of the subscription known to it.
func (a *attempt) take(ctx context.Context, session *target.Session, name string, wait func(context.Context, func() (string, error)) error) error {
	if !a.stamped() {
		return nil
	}
	ours := target.Ours{UnstampedUntil: a.unstampedUntil, Tracked: a.control.target.TracksCommits}
	for _, o := range a.origins {
		if !o.Replaced {
			ours.Origins = append(ours.Origins, o.ID)
		}
	}
	err := wait(ctx, func() (string, error) {
		err := session.TakeOrigin(name, ours)
		if held, ok := errors.AsType[*origin.HeldError](err); ok {
			return held.Error(), nil
		}
		return "", err
	})
	if full, ok := errors.AsType[*origin.LimitError](err); ok {
		return refused(fmt.Sprintf("raise %s on the target and restart it, drop origins that nobody needs any more, or run with fewer --workers", a.originLimit()), "%s", full.Error())
	}
	return targetErrorOrNil(err)
}

// originLimit names the target's setting.
func (a *attempt) originLimit() string {
	if a.control.target.Version >= 18_00_00 {
		return "max_active_replication_origins"
	}
	return "max_replication_slots"
}
