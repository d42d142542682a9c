package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"pgapply/apply/state"
	"pgapply/apply/stream"
	"pgapply/apply/target"
	"pgapply/conflict"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
	"pgapply/internal/spool"
)

// waitPause is how often something that somebody else holds is tried again.
const waitPause = 250 * time.Millisecond

// attempt is one life of the subscription: from connecting to the publisher to the
// end of its stream. What it opens it closes.
type attempt struct {
	engine  *Engine
	options *Options
	log     *zap.Logger
	control *control
	// files is the spool.
	files *spool.Dir

	// found is what there was of the state at the first look, nil where an earlier attempt
	// has looked.
	found *state.Found
	// publisher looks around; feed, unless nil, is connected already for the stream.
	publisher, feed *source.Conn
	identity        source.Identity
	// seen is what the publisher said while the target was asked other things.
	seen struct {
		identity source.Identity
		slot     *source.Slot
	}
	// subscription is its row as of the beginning; nil where there is none, or where this
	// start has changed it or its tables since. tables, origins and prepared are as they
	// were last read.
	subscription *state.Subscription
	tables       []state.Table
	origins      []state.FoundOrigin
	prepared     []state.Prepared
	session      *target.Session
	// workers are further sessions, see stream.Options.
	workers []*target.Session
	// epoch is what this runner's sessions write under.
	epoch int64
	// release ends the watch over the session while nothing streams.
	release func() bool
	member  *members
	// met gets a token when a table is met that is to be taken in.
	met chan struct{}
	// snapshot is that of the subscription's own slot, while tables are copied on it.
	snapshot *snapshot
	// tablesVersion is that of the state's tables when they were read.
	tablesVersion int64
	// progress is where the first session's transactions end.
	progress lsn.LSN
	// known is the newest position that the target can prove: everything that
	// committed before it is applied.
	known lsn.LSN
	// skip is where the transaction ends that is to be left out, zero for none.
	skip lsn.LSN
	// unstampedUntil is when the subscription began to use origins, where it had none before.
	unstampedUntil *time.Time
}

func (a *attempt) run(ctx context.Context) error {
	a.member = newMembers(a.log)
	if a.options.AutoRefresh {
		a.member.unknown = a.meets
	}
	start := inTurn(
		a.openSpool, a.refuseTarget, a.enabled,
		together(inTurn(a.look, a.settleTerms), inTurn(a.connectPublisher, a.refuseSource)),
		a.refuseFiringFirst, a.refuseSlot, a.refuseTables, a.lock, a.fence, a.enabled, a.createTables,
		together(a.readState, a.openSessions, a.askPublisher, a.connectAhead), a.watchSessions,
		a.settleSlot, a.copyFirst, a.openSessions, a.watchSessions,
		together(a.acquireOthers, inTurn(a.makeLeftIndexes, a.joinTables, a.refuseFiring, a.settleSet, a.passOver, a.warnOfSideEffects)),
	)
	if err := start(ctx); err != nil {
		return err
	}
	return a.unlessUndone(ctx, a.stream(ctx))
}

func (a *attempt) close() {
	if a.release != nil {
		a.release()
	}
	if a.session != nil {
		a.session.Close()
	}
	for _, worker := range a.workers {
		worker.Close()
	}
	for _, publisher := range []*source.Conn{a.publisher, a.feed} {
		if publisher != nil {
			_ = publisher.Close() // it is of no further use either way
		}
	}
	a.snapshot.close()
	a.closeSpool()
}

func (a *attempt) refuseTarget(context.Context) error {
	return a.ends().CheckTarget()
}

// ends are the servers as far as they were asked.
func (a *attempt) ends() *Ends {
	ends := &Ends{Options: a.options, Publisher: a.identity, Target: a.control.target}
	if a.publisher != nil {
		ends.PublisherVersion = a.publisher.Version()
	}
	return ends
}

// connectPublisher opens the session that looks around and makes the slot. Only the
// stream's own has the subscription's name: synchronous_standby_names goes by that.
func (a *attempt) connectPublisher(ctx context.Context) (err error) {
	if a.publisher, err = a.dial(ctx, a.options.Name+":start"); err != nil {
		return err
	}
	if err := a.identify(ctx); err != nil {
		return err
	}
	if followed := a.engine.followed; followed.SystemID != "" {
		return a.ends().MayFollow(followed)
	}
	return nil
}

func (a *attempt) identify(ctx context.Context) (err error) {
	if a.identity, err = a.publisher.Identify(ctx); err != nil {
		return SourceError(err)
	}
	a.engine.mu.Lock()
	a.engine.mu.status.Publisher = state.Publisher{
		Version: a.publisher.Version(), SystemID: a.identity.SystemID,
		Timeline: a.identity.Timeline, Database: a.identity.Database,
	}
	a.engine.mu.Unlock()
	if a.options.EndAtCurrent && a.options.EndLSN == 0 {
		a.options.EndLSN = a.identity.Position
	}
	return nil
}

// dial opens a session on the publisher.
func (a *attempt) dial(ctx context.Context, applicationName string) (*source.Conn, error) {
	conn, err := source.Connect(ctx, source.Options{
		URI: a.options.Source, Passfile: a.options.SourcePassfile,
		ApplicationName: applicationName, ClientEncoding: a.control.target.Encoding, Log: a.log,
	})
	if err != nil {
		return nil, SourceError(err)
	}
	return conn, nil
}

// refuseSource stops what cannot work before anything is changed on either end.
func (a *attempt) refuseSource(ctx context.Context) error {
	if err := a.ends().CheckPair(); err != nil {
		return err
	}
	if err := a.publisher.CheckLogical(ctx); err != nil {
		if source.ClassOf(err) == source.Configuration {
			return &Error{Class: Refused, Err: err}
		}
		return SourceError(err)
	}
	missing, err := a.publisher.MissingPublications(ctx, a.options.Publications)
	if err != nil {
		return SourceError(err)
	}
	if len(missing) > 0 {
		return refused("create it on the publisher, in the database of --source: CREATE PUBLICATION ... FOR TABLE ...",
			`the publisher's database %q has no publication "%s"`, a.identity.Database, strings.Join(missing, `", "`))
	}
	return nil
}

// look sees what there is of the state, before anything is made of it.
func (a *attempt) look(ctx context.Context) (err error) {
	if a.control.store == nil {
		a.found, err = state.Look(ctx, a.control.conn, a.options.Name)
	}
	return targetErrorOrNil(err)
}

func targetErrorOrNil(err error) error {
	if err == nil {
		return nil
	}
	return TargetError(err)
}

// wait tries until nobody holds what we need any more. try returns who does.
func (a *attempt) wait(ctx context.Context, try func() (string, error)) error {
	return a.await(ctx, try, func(holder string) {
		if holder == "" {
			a.engine.phase(state.Starting, "")
			return
		}
		a.engine.phase(state.Waiting, holder)
	})
}

// waitBeside is wait for what goes on beside the stream.
func (a *attempt) waitBeside(ctx context.Context, try func() (string, error)) error {
	return a.await(ctx, try, func(string) {})
}

// await tells who holds what we need, and nobody at the end.
func (a *attempt) await(ctx context.Context, try func() (string, error), tell func(holder string)) error {
	said := ""
	for {
		holder, err := try()
		if err != nil || holder == "" {
			tell("")
			return err
		}
		if !a.options.Wait && !a.engine.streamed { // later it is our own last session that ends
			return refused("stop the holder first, or let this process wait with --wait", "%s", holder)
		}
		if holder != said {
			a.log.Info("waiting: " + holder)
			said = holder
		}
		tell(holder)
		if !sleep(ctx, waitPause) {
			return ctx.Err()
		}
	}
}

// enabled waits while the subscription is paused. That needs the lock, so at first it
// comes after what a start refuses, and later before the publisher is asked for anything.
func (a *attempt) enabled(ctx context.Context) error {
	if !a.control.locked {
		return nil
	}
	select {
	case <-a.control.news:
	default:
	}
	said := false
	for {
		subscription, err := a.control.store.Subscription(ctx)
		if err != nil {
			return TargetError(err)
		}
		if subscription == nil || subscription.Enabled {
			if subscription != nil {
				a.skip = subscription.SkipLSN
			}
			a.subscription = subscription
			return nil
		}
		if !said {
			if subscription.CutOver() {
				a.log.Info("the subscription is " + subscription.PauseReason + ": the target is the one that writes, and nothing is applied any more")
			} else {
				a.log.Info("the subscription is paused: `pgapply resume` lets it go on")
			}
			a.engine.phase(state.Paused, "")
			said = true
		}
		if _, slept := doze(ctx, a.engine.poll, a.control.news); !slept {
			return ctx.Err()
		}
	}
}

// openSessions opens the sessions that apply, side by side. As long as tables are to be
// copied before the stream, the first one does: there is nothing to apply, and the target
// has the copy's own sessions to bear. Each enters the fence, which keeps off any earlier
// backend that might still write.
func (a *attempt) openSessions(ctx context.Context) error {
	first, behind := 0, a.sessions()
	if a.session != nil {
		first = 1 + len(a.workers)
	} else if !a.resumes() {
		behind = 1
	}
	sessions := make([]*target.Session, max(0, behind-first))
	opening, failed := errgroup.WithContext(ctx)
	for i := range sessions {
		opening.Go(func() (err error) {
			sessions[i], err = a.openWorker(failed, first+i)
			return err
		})
	}
	err := opening.Wait()
	for i, session := range sessions {
		switch {
		case session == nil:
		case first+i == 0:
			a.session = session
		default:
			a.workers = append(a.workers, session)
		}
	}
	return err
}

// watchSessions closes the sessions when ctx ends, until a stream has its own way to
// stop: their calls take no context, and a target that falls silent must not hold us.
func (a *attempt) watchSessions(ctx context.Context) error {
	if a.release != nil {
		a.release()
	}
	sessions := append([]*target.Session{a.session}, a.workers...)
	a.release = context.AfterFunc(ctx, func() {
		for _, session := range sessions {
			session.Close()
		}
	})
	return nil
}

// openWorker opens one apply session.
func (a *attempt) openWorker(ctx context.Context, worker int) (*target.Session, error) {
	options := a.sessionOptions()
	options.ApplicationName = fmt.Sprintf("%s:w%d", a.options.Name, worker)
	options.Member, options.Apart = a.member.has, a.member.apart
	options.Whole = func(name string) {
		if !a.member.ready() {
			a.engine.whole.Store(name, true)
		}
	}
	session, err := target.Open(ctx, options)
	if err != nil {
		return nil, TargetError(err)
	}
	return session, nil
}

// sessionOptions are what all apply sessions have in common.
func (a *attempt) sessionOptions() target.Options {
	return target.Options{
		URI: a.options.Target, Passfile: a.options.TargetPassfile,
		Fence:             a.writerFence(),
		Fires:             a.control.terms.Fires,
		SynchronousCommit: a.options.SynchronousCommit,
		Binary:            a.options.Binary,
		MaxBatch:          int(a.options.MaxBatch),
		Subscription:      a.options.Name,
		DatabaseOID:       a.control.target.DatabaseOID,
		Policies:          a.options.OnConflict,
		LogRows:           a.options.LogRows,
		SkipMissingTables: a.options.MissingTable == "skip",
		KeepMessages:      a.options.Messages == "table",
		Node:              a.control.target.SystemID,
		PublisherNode:     a.identity.SystemID,
		Log:               a.log,
	}
}

// writerFence is what every session that writes holds.
func (a *attempt) writerFence() target.Fence {
	key := a.control.store.WriterLock()
	return target.Fence{Class: key.Class, Object: key.Object, Epoch: a.epoch}
}

// stream runs the stream, with a heartbeat beside it.
func (a *attempt) stream(ctx context.Context) error {
	feed, err := a.openStream(ctx)
	if err != nil {
		return err
	}
	s := stream.New(stream.Options{
		Source: feed, Target: a.session, Workers: a.workers,
		Budget:      a.budget(),
		CreateSpool: func() (txn.SpoolFile, error) { return a.files.Create() },
		Limits:      a.limits(),
		Resume:      a.progress, Recorded: a.known, End: a.end(),
		Skip:        a.skip,
		Undone:      a.engine.undone,
		Message:     a.message(),
		Deliver:     a.deliver(),
		Synchronous: a.options.SynchronousCommit != "off",
		State:       a.recorder(),
		Log:         a.log,
	})
	if a.subscription.LastError != "" {
		if err := a.control.store.SetError(ctx, "", ""); err != nil {
			_ = feed.Close()
			return TargetError(err)
		}
	}
	a.engine.streamed, a.engine.displaced, a.engine.followed = true, false, recorded(a.identity)
	a.engine.running(s)
	defer a.engine.running(nil)
	a.engine.phase(state.Streaming, "")
	a.log.Info("streaming", zap.String("slot", a.options.SlotName()), zap.Stringer("from", a.known),
		zap.Int("publisher_version", a.publisher.Version()), zap.Int("protocol", feed.Settings().ProtocolVersion),
		zap.String("streaming", feed.Settings().Streaming), zap.Int("target_version", a.control.target.Version))

	a.release() // the stream has its own way to stop
	defer a.abandonSilent(ctx)()
	return a.supervise(ctx, s)
}

// limits are those of groups. Where commit times decide conflicts there are no
// groups: one would stamp the rows of all its transactions with the last one's time,
// and let them win or lose wrongly, here and on a third node.
func (a *attempt) limits() stream.Limits {
	limits := a.options.MaxGroup
	if a.options.OnConflict.Uses(conflict.LastUpdateWins) {
		limits.Transactions = 1
	}
	return limits
}

// end is where the stream is to end. It goes on as long as tables are copied beside it.
func (a *attempt) end() lsn.LSN {
	if !a.member.ready() {
		return 0
	}
	return a.options.EndLSN
}

// errNews ends a stream because the state says that something else is wanted.
var errNews = errors.New("the recorded settings have changed")

// supervise runs the stream until it ends, or until the state asks for a pause or
// for another transaction to skip.
func (a *attempt) supervise(ctx context.Context, s *stream.Stream) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var watch sync.WaitGroup
	watch.Go(func() { stop(a.watch(running)) })
	watch.Go(func() { stop(a.watchCalm(running, s)) })
	watch.Go(func() { stop(a.syncTables(running, s)) })
	err := streamError(s.Run(running))
	stop(nil)
	watch.Wait()
	if err == nil {
		a.log.Info("stopped streaming", zap.Stringer("applied", s.Progress().Applied), zap.Stringer("acknowledged", s.Progress().Acknowledged))
	}
	if cause := context.Cause(running); ctx.Err() == nil && (errors.Is(cause, errNews) || errors.Is(cause, errCalmOver)) {
		return cause // if something has failed as well, it will again
	}
	if trouble, ok := errors.AsType[*Error](context.Cause(running)); ok && err == nil && ctx.Err() == nil {
		return trouble // of syncTables
	}
	return err
}

// pollPause is how often the state is read for what a person wants.
const pollPause = time.Second

// watch returns errNews once the state says something else than at the start. An
// error of the control session is for its heartbeat to notice.
func (a *attempt) watch(ctx context.Context) error {
	for {
		if _, slept := doze(ctx, a.engine.poll, a.control.news); !slept {
			return nil
		}
		select {
		case <-a.met:
			return errNews
		default:
		}
		subscription, err := a.control.store.Subscription(ctx)
		if err != nil || subscription == nil {
			continue
		}
		if !subscription.Enabled || subscription.SkipLSN != a.skip && subscription.SkipLSN != 0 || subscription.TablesVersion != a.tablesVersion {
			return errNews
		}
	}
}

// streamError classifies what ended a stream.
func streamError(err error) error {
	if err == nil {
		return nil
	}
	if typed := spoolError(err); typed != nil {
		return typed
	}
	if typed := classify(err); typed.Class != Other {
		return typed
	}
	return SourceError(err)
}

func sourceErrorOrRefused(err error) error {
	if typed, ok := errors.AsType[*Error](err); ok {
		return typed
	}
	return SourceError(err)
}

// recorder is the stream's view of the state.
type recorder struct {
	*state.Store
	// stamped: the replication origins tell where our commits are in the target's WAL.
	stamped bool
}

func (a *attempt) recorder() recorder { return recorder{a.control.store, a.stamped()} }

func (r recorder) Acknowledge(ctx context.Context, position lsn.LSN) error {
	return targetErrorOrNil(r.Store.Acknowledge(ctx, position))
}

func (r recorder) LocalFlush(ctx context.Context) (local, flushed lsn.LSN, err error) {
	if !r.stamped {
		return 0, 0, targetErrorOrNil(r.Flush(ctx)) // what was applied before is durable now
	}
	local, flushed, err = r.Store.LocalFlush(ctx)
	return local, flushed, targetErrorOrNil(err)
}

func (r recorder) Blockers(ctx context.Context, pid uint32) ([]stream.Blocker, error) {
	found, err := r.Store.Blockers(ctx, pid)
	blockers := make([]stream.Blocker, len(found))
	for i, b := range found {
		blockers[i] = stream.Blocker(b)
	}
	return blockers, targetErrorOrNil(err)
}

func (r recorder) ClearSkip(ctx context.Context, done lsn.LSN) error {
	return targetErrorOrNil(r.Store.ClearSkip(ctx, done))
}
