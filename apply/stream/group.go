package stream

import (
	"context"
	"time"

	"go.uber.org/zap"

	"pgapply/apply/target"
	"pgapply/decoder/txn"
	"pgapply/parallel"
)

// Consecutive ordinary transactions that wait already form a group, which is one target
// transaction. While behind, there is more than one group's worth: then groups are applied
// beside each other, as far as they do not meet, and commit one after the other.
//
//	queue ──grow──► forming ──keys──► in line: head's own, worker's, worker's ..
//	                                     └─ its turn: CommitAhead, or Apply by the head
//
// What is done next with the group that forms says the [parallel.Line]. The first in an
// empty line is the head's own, to be applied at its turn, which is now; the others are
// given to workers. Whatever goes wrong with one of those leads to the same: it is rolled
// back, and the head applies it at its turn, which knows no "ahead".

// mostKeys bounds the keys of all groups that are applied at a time.
const mostKeys = 1 << 19

// group is consecutive transactions for one target transaction.
type group struct {
	transactions []*txn.Transaction
	rows         int
	size         int64
	// closed: it does not grow any more.
	closed bool
	// late says that of its last transaction, and since is when it began.
	late  bool
	since time.Time
	// keepalive is the last one that came behind its transactions, and counts after them.
	keepalive event
	// tables are what its keys rest on.
	tables []target.KeyedTable
	// ahead is its life on a worker; nil where it has none.
	ahead *ahead
}

func newGroup(e event) *group {
	first := e.transaction
	return &group{
		transactions: []*txn.Transaction{first}, rows: first.Len(), size: first.Bytes(),
		late: e.late, since: time.Now(), keepalive: event{complete: first.Sequence},
	}
}

// ordinary tells whether an event is a transaction that a group may have: others are
// applied, or decided about, each by itself.
func (s *Stream) ordinary(e event) bool {
	t := e.transaction
	return t != nil && e.ahead == nil && t.Kind == txn.Commit && !t.Streamed && !s.beyondEnd(t) && (s.options.Skip == 0 || t.EndLSN < s.options.Skip)
}

// grow adds to the group that forms what waits and fits. Keepalives on the way count after
// the whole group. It is closed if the next transaction does not fit.
func (s *Stream) grow() {
	g := s.forming
	limits, settled := s.limits()
	if settled {
		return
	}
	for {
		g.closed = len(g.transactions) >= limits.Transactions
		if g.closed {
			return
		}
		e, some := s.waiting()
		if !some {
			return
		}
		if e.transaction == nil {
			g.keepalive = g.keepalive.and(e)
			continue
		}
		if !s.ordinary(e) || !g.fits(e.transaction, &limits) {
			s.held, g.closed = &e, true
			return
		}
		g.late = e.late
		g.transactions = append(g.transactions, e.transaction)
		g.rows += e.transaction.Len()
		g.size += e.transaction.Bytes()
		g.keepalive.complete = e.transaction.Sequence
	}
}

// lateAfter is how old a commit is that is late, and gatherTime for how long a group of
// such may wait for more.
const (
	lateAfter  = time.Second
	gatherTime = 20 * time.Millisecond
)

// gather waits for more of the group that forms, where the publisher is far behind: what
// it decodes in that time comes at once, the end of a group costs as much as some hundred
// rows, and a moment more makes no difference to who waits for the last change. A keepalive
// is the publisher's word that there is no more. Nothing else may be waiting for its turn.
func (s *Stream) gather(ctx context.Context) {
	g := s.forming
	worth := func() bool { return g.late && !g.closed && g.keepalive.position == 0 }
	if !worth() || len(s.inLine) > 0 {
		return
	}
	end := time.NewTimer(time.Until(g.since.Add(gatherTime)))
	defer end.Stop()
	for worth() {
		select {
		case <-s.enough:
		case <-end.C:
			s.grow()
			return
		case <-ctx.Done():
			return
		}
		s.grow()
	}
}

// tellEnough ends the wait of a group that gathers, now that the event is in the queue.
// Whoever waits for single transactions would be woken for each of them.
func (s *Stream) tellEnough(e event) {
	if e.late && len(s.events) < s.options.Limits.Transactions {
		return
	}
	select {
	case s.enough <- struct{}{}:
	default:
	}
}

// limits are those of the group that forms: groups that are applied beside each other have
// together the rows that one may have by itself. So they lock no more of them, nor keep
// more versions from being cleaned up. The number of transactions is not shared: where it
// is reached first there are few rows in each, and the ends of groups are what costs. One
// that is settled does not grow any more.
func (s *Stream) limits() (limits Limits, settled bool) {
	limits = s.options.Limits
	switch s.line.Extent() {
	case parallel.Settled:
		return limits, true
	case parallel.Share:
		sessions := 1 + len(s.options.Workers)
		limits.Rows = max(1, limits.Rows/sessions)
		limits.Bytes = max(1, limits.Bytes/int64(sessions))
	case parallel.Whole:
	}
	return limits, false
}

// fits tells whether the group may have one more.
func (g *group) fits(t *txn.Transaction, limits *Limits) bool {
	return g.rows+t.Len() <= limits.Rows && g.size+t.Bytes() <= limits.Bytes &&
		t.Time.Time().Sub(g.transactions[0].Time.Time()) <= limits.Age
}

// and merges a later keepalive into e.
func (e event) and(later event) event {
	return event{position: max(e.position, later.position), urgent: e.urgent || later.urgent, complete: max(e.complete, later.complete)}
}

// move does what comes next with the group that forms.
func (s *Stream) move(patient context.Context) error {
	g := s.forming
	switch s.line.Next(g.closed, s.more()) {
	case parallel.Finish:
		return s.finishOldest(patient)
	case parallel.Ask:
		told, err := s.options.Target.Keys(g.transactions, s.keys)
		if err != nil {
			return err
		}
		if !told {
			s.line.Bar()
			return nil
		}
		g.tables = s.keys.Tables()
		s.line.Offer(s.keys.Hashes)
	case parallel.Enter:
		if len(s.inLine) > 0 {
			// Its keys do not meet those in line; the unconfirmed group has left that.
			if err := s.confirm(); err != nil {
				return err
			}
			s.startAhead(g)
		}
		s.forming, s.inLine = nil, append(s.inLine, g)
	case parallel.Apply:
		s.forming = nil
		return s.submit(g)
	}
	return nil
}

// submit has the head apply a group whose turn it is. Its changes follow right behind the
// COMMIT of the group before; its own may be on its way afterwards.
func (s *Stream) submit(g *group) error {
	s.waitsFor(s.options.Target)
	defer s.waitsFor(nil)
	s.options.Target.Send(g.transactions)
	if err := s.confirm(); err != nil {
		g.release()
		return err
	}
	s.waitsFor(s.options.Target)
	outcome, done, err := s.options.Target.Submit(s.more())
	if !done {
		s.unconfirmed = g
		return nil
	}
	return s.ended(g, outcome, err)
}

// confirm waits until the group is committed whose COMMIT is on its way, if there is one.
func (s *Stream) confirm() error {
	g := s.unconfirmed
	if g == nil {
		return nil
	}
	s.unconfirmed = nil
	s.waitsFor(s.options.Target)
	outcome, err := s.options.Target.Confirm()
	s.waitsFor(nil)
	return s.ended(g, outcome, err)
}

// ended accounts for a group of the head.
func (s *Stream) ended(g *group, outcome target.Outcome, err error) error {
	if err := s.applied(g.transactions, outcome, err); err != nil {
		return err
	}
	return s.idle(g.keepalive)
}

func (g *group) release() {
	for _, t := range g.transactions {
		t.Release()
	}
}

// more tells whether another group's worth waits behind the one that forms.
func (s *Stream) more() bool {
	if s.held != nil {
		return s.ordinary(*s.held)
	}
	return len(s.events) > 0
}

// startAhead gives a group to the pool.
func (s *Stream) startAhead(g *group) {
	g.ahead = &ahead{}
	first := g.transactions[0].XID
	g.ahead.running = s.pool.Start(first, func(worker int) parallel.Task {
		t := &groupTask{
			place: place{session: s.options.Workers[worker-1], transactions: len(g.transactions), log: s.options.Log.With(zap.Int("worker", worker), zap.Uint32("first_xid", first))},
			group: g,
		}
		g.ahead.place.Store(&t.place)
		return t
	})
}

// finishOldest ends the first group in line, whose turn it is.
func (s *Stream) finishOldest(patient context.Context) error {
	g := s.inLine[0]
	fate := parallel.InTurn
	var outcome target.Outcome
	if g.ahead != nil {
		if err := s.confirm(); err != nil {
			return err
		}
		s.waitsForAhead(g.ahead)
		done, err := g.ahead.running.Finish(patient, func(applied parallel.Task) (err error) {
			outcome, err = applied.(*groupTask).end() //nolint:forcetypeassert // startAhead made it
			return err
		})
		s.waitsFor(nil)
		switch {
		case err != nil:
			return err
		case done:
			fate = parallel.AsHoped
		case g.ahead.place.Load() != nil:
			fate = parallel.Missed
			s.options.Target.Recheck(g.tables)
		}
	}
	s.inLine = append(s.inLine[:0], s.inLine[1:]...)
	s.line.Leave(fate)
	s.accountAhead(fate)
	if fate == parallel.AsHoped {
		return s.ended(g, outcome, nil)
	}
	return s.submit(g)
}

// forgoGroups lets go of the groups that are not applied.
func (s *Stream) forgoGroups() {
	if s.forming != nil {
		s.inLine = append(s.inLine, s.forming)
	}
	for _, g := range s.inLine {
		g.release()
	}
	s.forming, s.inLine = nil, nil
}

// groupTask applies a group on a worker's session.
type groupTask struct {
	place
	group   *group
	applied bool
}

// Advance applies the group, at its first call.
func (t *groupTask) Advance(uint64) error {
	if t.applied {
		return nil
	}
	if err := t.session.Ahead(t.group.transactions, t.group.tables); err != nil {
		if !t.cancelled.Load() {
			t.log.Debug("a group waits for its turn", zap.Int("transactions", t.transactions), zap.Error(err))
		}
		return err
	}
	t.applied = true
	t.waiting.Store(&waitsForTurn)
	return nil
}

// end commits the group, whose turn it is.
func (t *groupTask) end() (target.Outcome, error) {
	if err := t.Advance(0); err != nil {
		return target.Outcome{}, err
	}
	return t.session.CommitAhead(t.group.transactions)
}

// Abandon rolls back.
func (t *groupTask) Abandon() error {
	t.log.Debug("roll back a group that was applied ahead", zap.Int("transactions", t.transactions))
	return t.session.Abandon()
}
