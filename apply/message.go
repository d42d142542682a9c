package apply

import (
	"context"
	"time"

	"pgapply/apply/target"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
)

// Message is a logical message: what a call of pg_logical_emit_message wrote on the
// publisher.
type Message struct {
	// Prefix is in the target database's encoding. Content is as it was written, and
	// valid until the handler returns.
	Prefix  string
	Content []byte
	// LSN is where the publisher's WAL holds the message. No other has the same.
	LSN lsn.LSN
	// XID, EndLSN and CommitTime are those of the transaction that it belongs to: its
	// number, where it finishes in the publisher's WAL, and when it committed. For a
	// message that is not transactional they are zero.
	XID        uint32
	EndLSN     lsn.LSN
	CommitTime time.Time
}

// Transactional tells whether the message belongs to a transaction.
func (m *Message) Transactional() bool { return m.EndLSN != 0 }

// MessageHandler receives logical messages from an engine, whatever their prefix:
// one that a handler does not know is for it to ignore.
//
// Messages of transactions come in the order of the publisher's commits, and within
// a transaction in the order of its changes; what was rolled back does not come. The
// handler is called when the target has accepted all changes of the transaction, and
// before COMMIT. So the transaction is committed, and its position acknowledged to
// the publisher, only after the handler has returned nil: no message is lost,
// whatever crashes. One comes again when the commit does not follow, as after a crash
// or a lost connection; with it come the ones after it, again in order, so (EndLSN,
// LSN) tells what was there before. Transactions that are applied together also come
// again together. Their rows are not visible on the target yet, and stay locked there
// until the handler returns. Somebody who wants to see the rows reads table
// pgapply.message (Messages "table"), which commits with them.
//
// Where the publisher prepares a transaction and the target does so too (TwoPhase),
// PREPARE stands for COMMIT in this: the messages come before it, with its position and
// time, and a later ROLLBACK PREPARED does not take them back.
//
// Messages that are not transactional come when they arrive, in the order of LSN,
// also those of transactions that roll back later. One may come again after a
// reconnection. Nothing behind it is received or acknowledged before the handler
// returns nil.
//
// An error is an apply error: the transaction is rolled back, nothing after it is
// applied, and OnError says what follows. A transaction that is skipped brings the
// handler nothing: its messages are kept in pgapply.message.
//
// At most two calls are made at a time, one of each kind. ctx ends when the engine is
// to stop; transactional messages have some seconds before that, in which the
// transaction can still be finished. The engine does not stop before the handler
// returns.
type MessageHandler interface {
	HandleMessage(ctx context.Context, m Message) error
}

// message is what becomes of a logical message that belongs to no transaction.
func (a *attempt) message() func(context.Context, *decoder.LogicalMessage) error {
	keep, handler := a.options.Messages == "table", a.options.MessageHandler
	if !keep && handler == nil {
		return nil
	}
	return func(ctx context.Context, m *decoder.LogicalMessage) error {
		prefix := string(m.Prefix)
		if keep {
			if err := a.control.store.RecordMessage(ctx, prefix, m.Content, m.LSN); err != nil {
				return TargetError(err)
			}
		}
		if handler == nil {
			return nil
		}
		if err := handle(ctx, handler, Message{Prefix: prefix, Content: m.Content, LSN: m.LSN}); err != nil {
			return &target.MessageError{Prefix: prefix, Err: err}
		}
		return nil
	}
}

// deliver is what becomes of one that belongs to a transaction, beside what the
// target session does with it.
func (a *attempt) deliver() func(context.Context, *txn.Transaction, *decoder.LogicalMessage) error {
	handler := a.options.MessageHandler
	if handler == nil {
		return nil
	}
	return func(ctx context.Context, t *txn.Transaction, m *decoder.LogicalMessage) error {
		return handle(ctx, handler, Message{
			Prefix: string(m.Prefix), Content: m.Content, LSN: m.LSN,
			XID: t.XID, EndLSN: t.EndLSN, CommitTime: t.Time.Time(),
		})
	}
}

// handle spares the handler calls that are too late.
func handle(ctx context.Context, handler MessageHandler, m Message) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return handler.HandleMessage(ctx, m)
}
