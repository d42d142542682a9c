// Package stream takes one walsender stream to the target, in order.
//
//	                                ┌─ while they arrive ─► parallel.Pool ─► workers' sessions
//	                                │                  groups ▲ ▲ their turn
//	source.Stream ──read──► assembler ──► events ──apply──────┴─┴──────► target.Session ──► COMMIT + origin
//	      ▲                                                                                     │
//	      └── Report ◄──acknowledge── origin.Tracker ◄───────────────────────────────────────── ┘
//
// One goroutine reads and assembles, one applies, one finds out what is durable and
// tells the publisher. The one that applies is the head of the stream: it alone
// decides whose turn it is. Workers apply streamed transactions ahead of that (see
// worker.go), and groups of others (group.go), and one more goroutine sees to it that
// they do not stand in the head's way (stall.go). Keepalives travel through the same queue as
// transactions, so that none can acknowledge what is still queued before it
// (invariant I1). Memory is bounded by the budget: while it is used up, reading
// pauses and the publisher is answered all the same.
//
// The package connects to nothing and retries nothing: its caller opens both ends
// and starts over after an error.
package stream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"pgapply/apply/target"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
	"pgapply/origin"
	"pgapply/parallel"
)

// Limits end a group of transactions that share one target transaction.
type Limits struct {
	Transactions int
	Rows         int
	Bytes        int64
	// Age is how far apart the publisher's commit times in one group may be.
	Age time.Duration
}

// Options of a stream. All are required unless said otherwise.
type Options struct {
	// Source is a stream that starts at Resume.
	Source *source.Stream
	// Target holds its replication origin, and so does each of Workers, which apply
	// streamed transactions and groups ahead of their turn. Without any those wait for it.
	Target  *target.Session
	Workers []*target.Session
	// Budget bounds the memory of transactions; CreateSpool makes the files of
	// those that do not fit.
	Budget      *txn.Budget
	CreateSpool func() (txn.SpoolFile, error)
	Limits      Limits
	// Resume is the end of the last transaction that the target has.
	Resume lsn.LSN
	// Recorded is the position that the state on the target has as acknowledged.
	Recorded lsn.LSN
	// End, unless zero, ends the stream when everything that committed before it
	// is applied and acknowledged.
	End lsn.LSN
	// Skip, unless zero, is where the transaction ends that is to be left out.
	Skip lsn.LSN
	// Undone, unless zero, is where a transaction ends that the publisher has prepared, and
	// rolled back since: its changes are left out.
	Undone lsn.LSN
	// Message, unless nil, is called for each logical message that belongs to no
	// transaction, when it arrives.
	Message func(context.Context, *decoder.LogicalMessage) error
	// Deliver, unless nil, is called for each logical message of a transaction, just
	// before that is committed: see [target.Session.Deliver]. Its context ends when the
	// stream is to stop and the group in work has had the time to finish.
	Deliver func(context.Context, *txn.Transaction, *decoder.LogicalMessage) error
	// Synchronous says that the target's COMMIT replies when it is durable.
	Synchronous bool
	// State records acknowledged positions and knows the target's WAL.
	State Recorder
	Log   *zap.Logger
}

// Recorder is the control session on the target.
type Recorder interface {
	// Acknowledge makes durable that position is about to be acknowledged.
	Acknowledge(ctx context.Context, position lsn.LSN) error
	// LocalFlush returns where the WAL of the target's newest commit under the
	// session's origin ends, and up to where the target's WAL is flushed.
	LocalFlush(ctx context.Context) (local, flushed lsn.LSN, err error)
	// ClearSkip forgets the transaction to skip, now that everything up to done was
	// applied or skipped.
	ClearSkip(ctx context.Context, done lsn.LSN) error
	// Blockers returns whom a backend of the target waits for, directly or through
	// others.
	Blockers(ctx context.Context, pid uint32) ([]Blocker, error)
}

// Blocker is whom somebody on the target waits for: a backend, or a prepared
// transaction, which has none.
type Blocker struct {
	PID uint32
	GID string
}

// stopGrace is how long a stop lets the group in work finish. Then its statement
// is cancelled, and after cancelGrace the connection closed.
const (
	stopGrace   = 8 * time.Second
	cancelGrace = time.Second
	settleTime  = 2 * time.Second
	goodbyeTime = 2 * time.Second
)

// queueLength bounds the events between reader and applier. The budget bounds
// their memory; this only keeps tiny transactions from piling up. It is what a publisher
// decodes of them in a few round trips to a target that is far away: so groups grow with
// those, and it goes on meanwhile.
const queueLength = 32768

// Stream is one run from connection to disconnection.
type Stream struct {
	options   Options
	assembler *txn.Assembler
	order     order // belongs to the reader
	tracker   *origin.Tracker
	events    chan event
	// enough says that a group that gathers need not wait any longer.
	enough chan struct{}
	// held is an event that was taken from the queue and has to wait.
	held   *event
	urgent chan struct{}
	// forming is the group that grows, if one does, and inLine are those that wait for
	// their turn, oldest first, as line has said; keys are those of the last one asked, and
	// unconfirmed is the head's last group while its COMMIT is on its way. All belong to
	// the applier, and after that to Run.
	forming     *group
	inLine      []*group
	line        *parallel.Line
	keys        *target.Keys
	unconfirmed *group
	// pool applies streamed transactions on workers, of which open are those that are
	// still arriving; open belongs to the reader. While skipping, for Skip or Undone, none
	// is given to it.
	// Run makes the pool under mu, since Progress may be asked before.
	pool     *parallel.Pool
	open     map[*txn.Open]*ahead
	skipping atomic.Bool
	// abandoned says that the target did not let go of the group in work. It
	// belongs to the goroutine of breakOff, and after that to Run.
	abandoned bool
	// reading is the life of the reader, for what the assembler calls back.
	reading context.Context //nolint:containedctx // see Run
	// reported is the flushed position that was reported last. It belongs to the
	// goroutine that acknowledges, and after that to finish.
	reported lsn.LSN

	mu struct {
		sync.Mutex
		progress Progress
		recorded lsn.LSN
		backlog  backlog
		// head is what the applier waits for the target with, and stalled why that
		// takes long, if it is known.
		head    head
		stalled string
	}
}

// event is what the reader hands to the applier: a transaction or a keepalive.
type event struct {
	transaction *txn.Transaction
	// ahead is a streamed transaction's life on a worker; nil where it had none.
	ahead *ahead
	// complete counts the transactions up to here.
	complete uint64
	// late: the publisher sent the transaction a long time after its commit.
	late bool
	// position up to which the publisher had nothing else for us.
	position lsn.LSN
	// urgent: the publisher waits for an answer.
	urgent bool
}

// errEnd says that the position where the stream was to end is reached.
var errEnd = errors.New("the end position is reached")

// New makes a stream; Run runs it.
func New(options Options) *Stream {
	s := &Stream{
		options: options,
		tracker: origin.NewTracker(options.Resume, options.Recorded),
		events:  make(chan event, queueLength),
		enough:  make(chan struct{}, 1),
		urgent:  make(chan struct{}, 1),
		open:    make(map[*txn.Open]*ahead),
		line:    parallel.NewLine(1+len(options.Workers), mostKeys),
		keys:    target.NewKeys(),
	}
	assemble := txn.Options{Budget: options.Budget, Spool: options.CreateSpool, Message: s.message}
	s.skipping.Store(options.Skip > 0 || options.Undone > 0)
	if len(options.Workers) > 0 {
		assemble.Streams = s
	}
	s.assembler = txn.NewAssembler(assemble)
	s.mu.recorded = options.Recorded
	s.mu.progress.Received = max(options.Resume, options.Recorded)
	return s
}

// Run streams until the end position is reached, ctx is cancelled (both give nil)
// or something fails. In every case it lets the group in work finish if that does
// not take long, and tells the publisher what is durable. It closes both the
// source stream and, unless it is idle, the target session.
func (s *Stream) Run(ctx context.Context) error {
	work, stop := context.WithCancel(ctx)
	defer stop()
	interrupt := context.AfterFunc(work, s.options.Source.Interrupt)
	defer interrupt()

	// The applier may go on after ctx has ended, to finish the group in work. Until it has
	// ended, none of ours is to stand in its way.
	applying, applied := context.WithCancel(context.WithoutCancel(ctx))
	defer applied()
	tasks, failed := errgroup.WithContext(work)
	s.reading = failed
	s.mu.Lock()
	s.pool = parallel.New(len(s.options.Workers))
	s.mu.Unlock()
	if len(s.options.Workers) > 0 {
		tasks.Go(func() error { return s.watchPool(failed) })
		tasks.Go(func() error { return s.watchStalls(applying) })
	}
	patient, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	if s.options.Deliver != nil {
		for _, session := range append([]*target.Session{s.options.Target}, s.options.Workers...) {
			session.Deliver(func(t *txn.Transaction, m *decoder.LogicalMessage) error {
				return s.options.Deliver(patient, t, m)
			})
		}
	}
	tasks.Go(func() error { return s.read(failed) })
	tasks.Go(func() error { return s.acknowledge(failed) })
	tasks.Go(func() error {
		defer applied()
		defer s.breakOff(failed, giveUp)()
		return s.apply(failed, patient)
	})
	wake := context.AfterFunc(failed, s.options.Source.Interrupt)
	defer wake()
	err := tasks.Wait()
	s.closePool()
	s.discard()
	finished := s.finish()
	switch {
	case errors.Is(err, errEnd):
		return finished
	case ctx.Err() != nil:
		return nil
	}
	return err
}

// breakOff bounds how long the applier may work on after ctx has ended; giveUp ends
// what it does beside the target. The returned function ends the watch.
func (s *Stream) breakOff(ctx context.Context, giveUp context.CancelFunc) func() {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-done:
			return
		case <-ctx.Done():
		}
		if waited(done, stopGrace) {
			return
		}
		s.options.Log.Warn("the group in work does not finish: it is cancelled and rolled back")
		giveUp()
		cancel, release := context.WithTimeout(context.Background(), cancelGrace)
		defer release()
		if err := s.options.Target.Interrupt(cancel); err == nil && waited(done, cancelGrace) {
			return
		}
		s.options.Log.Warn("the target does not answer: its connections are closed")
		s.abandoned = true
		// The head may wait for a worker whose turn it is.
		for _, session := range append(s.options.Workers[:len(s.options.Workers):len(s.options.Workers)], s.options.Target) {
			session.Close()
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func waited(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// discard gives back what was read and not applied; the publisher sends it again.
func (s *Stream) discard() {
	s.forgoGroups()
	if s.held != nil {
		s.forgo(*s.held)
	}
	for {
		select {
		case e := <-s.events:
			s.forgo(e)
			continue
		default:
		}
		break
	}
	if err := s.assembler.Close(); err != nil {
		s.options.Log.Warn("clean up after the stream", zap.Error(err))
	}
}

// finish tells the publisher what is durable by now and ends the stream in order.
func (s *Stream) finish() error {
	var settled error
	if !s.abandoned { // else the target would not say what is durable either
		settle, cancel := context.WithTimeout(context.Background(), settleTime)
		defer cancel()
		settled = s.settle(settle)
	}
	goodbye, release := context.WithTimeout(context.Background(), goodbyeTime)
	defer release()
	if err := s.options.Source.Stop(goodbye); err != nil {
		s.options.Log.Debug("end the stream", zap.Error(err))
	}
	return settled
}

// message handles a logical message that belongs to no transaction.
func (s *Stream) message(m *decoder.LogicalMessage) error {
	s.mu.Lock()
	s.mu.progress.Messages++
	s.mu.Unlock()
	if s.options.Message == nil {
		return nil
	}
	return s.options.Message(s.reading, m)
}

// read assembles transactions until the stream ends.
func (s *Stream) read(ctx context.Context) error {
	for {
		frame, err := s.options.Source.Receive()
		if err != nil {
			return err
		}
		e, some, err := s.take(frame)
		if err != nil {
			return err
		}
		if !some {
			continue
		}
		s.received(e)
		select {
		case s.events <- e:
			s.tellEnough(e)
		case <-ctx.Done():
			s.forgo(e)
			return ctx.Err()
		}
		if err := s.options.Budget.Wait(ctx); err != nil {
			return err
		}
	}
}

// take takes a frame, and returns the event that it makes, if it makes one.
func (s *Stream) take(frame source.Frame) (e event, some bool, err error) {
	if frame.Kind == source.Keepalive {
		if err := s.order.keepalive(frame.WALEnd, s.assembler.Announced()); err != nil {
			return event{}, false, err
		}
		return event{position: frame.WALEnd, urgent: frame.ReplyRequested, complete: s.assembler.Completed()}, true, nil
	}
	t, err := s.assembler.Add(frame.Payload)
	if err != nil || t == nil {
		return event{}, false, err
	}
	e = event{transaction: t, ahead: s.takeAhead(t), position: t.EndLSN, complete: s.assembler.Completed()}
	e.late = frame.ServerTime.Sub(t.Time.Time()) >= lateAfter
	if err := s.order.transaction(t, frame.WALStart); err != nil {
		s.forgo(e)
		return event{}, false, err
	}
	if t.Kind != txn.Prepare && t.EndLSN <= s.options.Resume {
		// The publisher repeats itself. What is prepared may be from long ago
		// and is told apart by its name.
		s.forgo(e)
		return event{complete: e.complete}, true, nil
	}
	return e, true, nil
}
