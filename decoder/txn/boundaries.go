package txn

import "pgapply/decoder"

// This file handles the messages that begin, interrupt and end transactions.

func (a *Assembler) begin(m *decoder.Begin) error {
	if err := a.require(idle, m); err != nil {
		return err
	}
	t := a.newTransaction()
	t.Kind, t.XID, t.FinalLSN, t.Time = Commit, m.XID, m.FinalLSN, m.CommitTime
	a.enter(inTransaction, t)
	return nil
}

func (a *Assembler) commit(m *decoder.Commit) (*Transaction, error) {
	if err := a.require(inTransaction, m); err != nil {
		return nil, err
	}
	if m.CommitLSN != a.current.FinalLSN {
		return nil, a.violation(m, "commit LSN %s is not %s as BEGIN said", m.CommitLSN, a.current.FinalLSN)
	}
	a.current.EndLSN, a.current.Time = m.EndLSN, m.CommitTime
	return a.leave(), nil
}

func (a *Assembler) beginPrepare(m *decoder.BeginPrepare) error {
	if err := a.require(idle, m); err != nil {
		return err
	}
	a.enter(inPrepare, &Transaction{
		Kind: Prepare, XID: m.XID, GID: m.GID,
		FinalLSN: m.PrepareLSN, EndLSN: m.EndLSN, Time: m.PrepareTime,
	})
	return nil
}

// prepare ends the transaction to be prepared. Some servers send it alone, for a
// transaction without content.
func (a *Assembler) prepare(m *decoder.Prepare) (*Transaction, error) {
	if a.state == idle {
		return a.decide(m, &Transaction{
			Kind: Prepare, XID: m.XID, GID: m.GID,
			FinalLSN: m.PrepareLSN, EndLSN: m.EndLSN, Time: m.PrepareTime,
		})
	}
	if err := a.require(inPrepare, m); err != nil {
		return nil, err
	}
	switch t := a.current; {
	case m.PrepareLSN != t.FinalLSN:
		return nil, a.violation(m, "prepare LSN %s is not %s as BEGIN PREPARE said", m.PrepareLSN, t.FinalLSN)
	case m.XID != t.XID:
		return nil, a.violation(m, "it is about transaction %d", m.XID)
	case m.GID != t.GID:
		return nil, a.violation(m, "name %q is not %q as BEGIN PREPARE said", m.GID, t.GID)
	}
	a.current.EndLSN, a.current.Time = m.EndLSN, m.PrepareTime
	return a.leave(), nil
}

// enter makes an ordinary transaction the current one.
func (a *Assembler) enter(s state, t *Transaction) {
	a.plain = assembly{Transaction: t, tellAt: largeSize}
	a.admit(&a.plain)
	a.state, a.current = s, &a.plain
}

// newTransaction takes the next of several that were allocated together, as most have a
// few rows and come and go by the thousand.
func (a *Assembler) newTransaction() *Transaction {
	if len(a.fresh) == 0 {
		a.fresh = make([]Transaction, freshTransactions)
	}
	t := &a.fresh[0]
	a.fresh = a.fresh[1:]
	return t
}

// freshTransactions are few, since one that is held keeps the memory of all of them.
const freshTransactions = 32

// largeSize is from when on an ordinary transaction is one for Streams too, and tellEvery
// how often they are told of more of it, in bytes.
const (
	largeSize = 256 << 10
	tellEvery = 64 << 10
)

// tell says how far the ordinary transaction has come, if it is large. It is like a
// streamed one of a single block: it rests on all that were complete before it.
func (a *Assembler) tell() {
	o := a.current
	if o.tape.size < o.tellAt || a.state != inTransaction || a.follow == nil {
		return
	}
	o.tellAt = o.tape.size + tellEvery
	if o.open != nil {
		a.follow.Arrived(o.open)
		return
	}
	o.open = newOpen(o.Transaction)
	o.open.mu.blocks = []block{{start: 0, completed: a.completed}}
	a.account(o)
	a.follow.Opened(o.open)
}

// leave completes the ordinary transaction.
func (a *Assembler) leave() *Transaction {
	t := a.complete(a.current)
	a.state, a.current, a.plain = idle, nil, assembly{}
	if t.open != nil {
		a.follow.Ended(t.open, false)
	}
	return t
}

// streamStart opens a block of a streamed transaction. A first block throws
// away what an earlier attempt of the same transaction has left.
func (a *Assembler) streamStart(m *decoder.StreamStart) error {
	if err := a.require(idle, m); err != nil {
		return err
	}
	stream, found := a.streams[m.XID]
	if !found && !m.First {
		return a.violation(m, "it continues transaction %d, whose first block has not arrived", m.XID)
	}
	if m.First {
		if found {
			if err := a.forget(stream); err != nil {
				return err
			}
		}
		stream = a.openStream(m.XID)
	}
	a.state, a.current = inStream, stream
	if stream.open != nil {
		stream.open.begin(a.completed)
		a.account(stream)
		if m.First {
			a.follow.Opened(stream.open)
		}
	}
	return nil
}

func (a *Assembler) openStream(xid uint32) *assembly {
	stream := &assembly{
		Transaction: &Transaction{XID: xid, Streamed: true},
		overlay:     &overlay{},
	}
	if a.follow != nil {
		stream.open = newOpen(stream.Transaction)
	}
	a.admit(stream)
	a.streams[xid] = stream
	a.openStreams.Store(int64(len(a.streams)))
	return stream
}

func (a *Assembler) streamStop(m *decoder.StreamStop) error {
	if err := a.require(inStream, m); err != nil {
		return err
	}
	stream := a.current
	a.state, a.current = idle, nil
	if stream.open != nil {
		a.follow.Arrived(stream.open)
	}
	return nil
}

func (a *Assembler) streamCommit(m *decoder.StreamCommit) (*Transaction, error) {
	stream, err := a.endStream(m, m.XID)
	if err != nil {
		return nil, err
	}
	stream.Kind = Commit
	stream.FinalLSN, stream.EndLSN, stream.Time = m.CommitLSN, m.EndLSN, m.CommitTime
	return a.completeStream(stream), nil
}

func (a *Assembler) streamPrepare(m *decoder.StreamPrepare) (*Transaction, error) {
	stream, err := a.endStream(m, m.XID)
	if err != nil {
		return nil, err
	}
	stream.Kind, stream.GID = Prepare, m.GID
	stream.FinalLSN, stream.EndLSN, stream.Time = m.PrepareLSN, m.EndLSN, m.PrepareTime
	return a.completeStream(stream), nil
}

func (a *Assembler) completeStream(stream *assembly) *Transaction {
	t := a.complete(stream)
	if t.open != nil {
		a.follow.Ended(t.open, false)
	}
	return t
}

// endStream removes a streamed transaction from the open ones and makes its
// descriptions of tables valid for all.
func (a *Assembler) endStream(m decoder.Message, xid uint32) (*assembly, error) {
	if err := a.require(idle, m); err != nil {
		return nil, err
	}
	stream, found := a.streams[xid]
	if !found {
		return nil, a.violation(m, "transaction %d is not being streamed", xid)
	}
	a.catalog.merge(stream.overlay)
	delete(a.streams, xid)
	a.openStreams.Store(int64(len(a.streams)))
	return stream, nil
}

// streamAbort rolls back a streamed transaction or a part of it.
//
// A publisher of version 18 also sends aborts of transactions of which it has
// sent nothing, whatever protocol and options it was asked for: those are
// counted and have no other effect. So has the abort of a subtransaction that
// is not known: it sent nothing, or went with one that was rolled back before.
func (a *Assembler) streamAbort(m *decoder.StreamAbort) error {
	stream, found := a.streams[m.XID]
	if !found && a.state != inStream && (a.current == nil || a.current.XID != m.XID) {
		a.ignoredAborts.Add(1)
		return nil
	}
	if err := a.require(idle, m); err != nil {
		return err
	}
	if m.SubXID == m.XID {
		return a.forget(stream)
	}
	return a.rollBack(stream, m.SubXID)
}

func (a *Assembler) commitPrepared(m *decoder.CommitPrepared) (*Transaction, error) {
	return a.decide(m, &Transaction{
		Kind: CommitPrepared, XID: m.XID, GID: m.GID,
		FinalLSN: m.CommitLSN, EndLSN: m.EndLSN, Time: m.CommitTime,
	})
}

func (a *Assembler) rollbackPrepared(m *decoder.RollbackPrepared) (*Transaction, error) {
	return a.decide(m, &Transaction{
		Kind: RollbackPrepared, XID: m.XID, GID: m.GID,
		EndLSN: m.RollbackEndLSN, Time: m.RollbackTime,
		PrepareEndLSN: m.PrepareEndLSN, PrepareTime: m.PrepareTime,
	})
}

// decide returns a transaction that is one message.
func (a *Assembler) decide(m decoder.Message, t *Transaction) (*Transaction, error) {
	if err := a.require(idle, m); err != nil {
		return nil, err
	}
	whole := assembly{Transaction: t}
	a.admit(&whole)
	return a.complete(&whole), nil
}
