package txn

import (
	"errors"
	"sync/atomic"

	"pgapply/decoder"
	"pgapply/internal/lsn"
)

// Options of an Assembler.
type Options struct {
	// Budget that the transactions' memory is charged to. Required.
	Budget *Budget
	// Spool creates a file for a transaction that has to leave memory. Without
	// it all stay in memory, whatever the budget.
	Spool func() (SpoolFile, error)
	// Streams, unless nil, is told of streamed transactions while they arrive, so
	// that they can be followed.
	Streams Streams
	// Message, unless nil, is called by Add for each logical message that belongs
	// to no transaction. The message is valid during the call.
	Message func(*decoder.LogicalMessage) error
}

// Assembler assembles the transactions of one replication stream, all of whose
// frames it must see in order, from the first of a connection on. Only Stats
// may be called from another goroutine.
type Assembler struct {
	budget  *Budget
	spool   func() (SpoolFile, error)
	message func(*decoder.LogicalMessage) error
	follow  Streams
	decoder decoder.Decoder
	catalog catalog

	state   state
	current *assembly            // what arrives now; nil when the state is idle
	plain   assembly             // the ordinary transaction, when current
	streams map[uint32]*assembly // streamed transactions by their top-level id

	completed uint64 // transactions that were complete

	fresh []Transaction          // for those that will begin
	page  *page                  // for the changes of small ones; nil before the first
	head  [recordHeader + 1]byte // of a record that goes to a file

	broken        error // returned by every Add from then on
	openStreams   atomic.Int64
	ignoredAborts atomic.Int64
}

// NewAssembler returns an assembler for a new connection.
func NewAssembler(options Options) *Assembler {
	return &Assembler{
		budget:  options.Budget,
		spool:   options.Spool,
		message: options.Message,
		follow:  options.Streams,
		catalog: newCatalog(),
		streams: map[uint32]*assembly{},
	}
}

// Stats are counters for a status report.
type Stats struct {
	OpenStreams  int   // streamed transactions whose end has not arrived
	MemoryBytes  int64 // of all transactions that share the budget, as Budget.Used
	SpooledBytes int64 // in spool files, likewise
	// IgnoredAborts counts aborts of transactions of which nothing had arrived.
	// Publishers of version 18 send some.
	IgnoredAborts int64
}

// Stats may be called at any time from any goroutine.
func (a *Assembler) Stats() Stats {
	return Stats{
		OpenStreams:   int(a.openStreams.Load()),
		MemoryBytes:   a.budget.Used(),
		SpooledBytes:  a.budget.spooled.Load(),
		IgnoredAborts: a.ignoredAborts.Load(),
	}
}

// Add takes the next frame, copies what it keeps of it, and returns the
// transaction that the frame completes, or nil.
//
// A *decoder.FormatError or *ProtocolError means that the stream cannot be
// continued. Other errors come from the spool and name the transaction that was
// being stored. After any error every Add returns that error; Close remains.
func (a *Assembler) Add(frame []byte) (*Transaction, error) {
	if a.broken != nil {
		return nil, a.broken
	}
	transaction, err := a.add(frame)
	if err != nil {
		a.broken = err
		return nil, err
	}
	return transaction, nil
}

// Completed is how many transactions Add has returned: the Sequence of the last.
func (a *Assembler) Completed() uint64 { return a.completed }

// Announced is where the transaction that arrives now commits, by its BEGIN; zero between
// transactions, and in those that are prepared or streamed.
func (a *Assembler) Announced() lsn.LSN {
	if a.state != inTransaction {
		return 0
	}
	return a.current.FinalLSN
}

// Close drops all transactions that are not complete and removes their files.
// Transactions that Add has returned are not touched.
func (a *Assembler) Close() error {
	a.broken = errors.New("the assembler is closed")
	var faults []error
	if a.current == &a.plain {
		faults = append(faults, a.drop(a.current))
	}
	for _, stream := range a.streams {
		faults = append(faults, a.drop(stream))
	}
	a.leavePage()
	a.current = nil
	clear(a.streams)
	a.openStreams.Store(0)
	return errors.Join(faults...)
}
