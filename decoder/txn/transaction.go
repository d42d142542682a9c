package txn

import (
	"fmt"
	"sync/atomic"

	"pgapply/decoder"
	"pgapply/internal/lsn"
)

// Kind says how a Transaction ends on the publisher.
type Kind uint8

// The kinds of transactions. The last two have no changes: they decide about
// what an earlier Prepare left behind.
const (
	Commit           Kind = iota + 1 // COMMIT
	Prepare                          // PREPARE TRANSACTION
	CommitPrepared                   // COMMIT PREPARED
	RollbackPrepared                 // ROLLBACK PREPARED
)

// String is the SQL command.
func (k Kind) String() string {
	switch k {
	case Commit:
		return "COMMIT"
	case Prepare:
		return "PREPARE TRANSACTION"
	case CommitPrepared:
		return "COMMIT PREPARED"
	case RollbackPrepared:
		return "ROLLBACK PREPARED"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Transaction is one complete transaction of the publisher. It belongs to the
// caller of Assembler.Add, who must call Release. It may be handed to another
// goroutine; two must not use it at the same time.
type Transaction struct {
	Kind Kind
	// XID is the publisher's transaction id, which wraps around.
	XID uint32
	// Streamed transactions arrived in blocks before their end was known.
	Streamed bool
	// Sequence numbers the transactions of one Assembler from 1, in the order in
	// which they became complete.
	Sequence uint64

	// FinalLSN is where the record of Kind starts in the publisher's WAL; zero
	// for RollbackPrepared, whose message does not tell.
	FinalLSN lsn.LSN
	// EndLSN is the first byte after that record: the position to store once
	// the transaction is applied.
	EndLSN lsn.LSN
	// Time is when the publisher did what Kind says.
	Time decoder.Timestamp

	// GID is the publisher's name for a prepared transaction, perhaps empty;
	// always empty for Commit.
	GID string
	// PrepareEndLSN and PrepareTime are set for RollbackPrepared only. They
	// identify the Prepare that it ends: its EndLSN and Time.
	PrepareEndLSN lsn.LSN
	PrepareTime   decoder.Timestamp

	// Origin names the replication origin, on the publisher, that the
	// transaction came from; empty for one that began there.
	Origin string

	budget      *Budget
	tape        tape
	relations   relationTable
	bookkeeping int64 // charged to the budget beside the tape's memory
	reader      Reader
	released    atomic.Bool
	open        *Open // nil unless it may have followers
}

// Len is the number of changes.
func (t *Transaction) Len() int { return t.tape.count }

// Bytes is the size of the changes as they are stored, in memory or spooled.
func (t *Transaction) Bytes() int64 { return t.tape.size }

// Relations are the descriptions of the tables that the changes are about, each at least
// once. They must not be changed, nor used after Release.
func (t *Transaction) Relations() []*decoder.Relation { return t.relations.relations }

// Changes replays the transaction from its first change. There is one Reader
// for each transaction: calling Changes again starts it over.
func (t *Transaction) Changes() *Reader {
	t.reader.rewind(t)
	return &t.reader
}

// Open is what Options.Streams was given while the transaction arrived. It is nil
// for one that was not streamed, and when nobody was told.
func (t *Transaction) Open() *Open { return t.open }

// Release gives the memory back to the budget and removes the spool file. The
// transaction's fields and Len and Bytes stay; its Reader, and every Change that
// came from it, must not be used any more. A Follower only gets an error from then
// on: wait for whoever uses it. Further calls do nothing. Release may run on
// another goroutine than the assembler's.
func (t *Transaction) Release() {
	if t.released.Swap(true) {
		return
	}
	t.open.lock()
	defer t.open.unlock()
	t.open.end(released)
	files := t.tape.files()
	freed := t.reader.close() + t.tape.free(&t.budget.recycler)
	// Closing can fail to remove the file, and nothing here can help that: its
	// space comes back with the end of the process.
	_ = t.tape.closeFile(t.budget)
	t.relations = relationTable{}
	t.budget.release(freed+t.bookkeeping, files)
}
